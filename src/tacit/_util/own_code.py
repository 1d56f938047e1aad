"""Functions and objects of the user's own, named `module:function` in a study file or on the command line.

Their module is looked for in the current folder and on PYTHONPATH only, by its file: nothing is imported to find it.
The SHA-256 of that file belongs to the run, so a changed function is another run.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tacit._util.errors import InputError

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_own(name: object) -> bool:
    """
    >>> is_own("mymodule:load"), is_own("mnist1d")
    (True, False)
    """
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def source_file(name: str) -> Path:
    """The file of the module; InputError when it is neither in the current folder nor on PYTHONPATH."""
    if not is_own(name):
        raise InputError(f"{name!r} names no function of your own; expected module:function, such as mymodule:make.")
    module = name.partition(":")[0]
    inside = Path(*module.split("."))
    for root in _roots():
        for path in (root / inside.with_suffix(".py"), root / inside / "__init__.py"):
            if path.is_file():
                return path
    raise InputError(
        f"{name} cannot be imported: there is no {inside.with_suffix('.py')} in the current folder or on PYTHONPATH; "
        "own code is imported from there only. Change to its folder, or set PYTHONPATH."
    )


def source_sha256(name: str) -> str:
    """16 hex digits of the SHA-256 of the module's file."""
    path = source_file(name)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise InputError(f"{name}: {path} cannot be read ({error.strerror}).") from None


def source_hashes(names: Iterable[str]) -> dict[str, str]:
    return {name: source_sha256(name) for name in sorted(set(names))}


def check_unchanged(hashes: Mapping[str, str]) -> None:
    """InputError when a module's file is not the one that the study was read with."""
    for name, wanted in hashes.items():
        found = source_sha256(name)
        if found != wanted:
            raise InputError(
                f"{name}: {source_file(name)} has changed since the study was read ({wanted} then, {found} now); "
                "run the study file again, and its runs are new ones."
            )


def import_function(name: str) -> Callable[..., Any]:
    """The function, imported from the file that `source_file` names."""
    function = import_object(name)
    if not callable(function):
        raise InputError(f"{name} is a {type(function).__name__}; expected a function.")
    return function  # type: ignore[no-any-return]


def import_object(name: str) -> Any:
    """The function or object, imported from the file that `source_file` names."""
    path = source_file(name)
    module_name, _, object_name = name.partition(":")
    root = path.parents[len(module_name.split(".")) - (path.name != "__init__.py")]
    sys.path.insert(0, str(root))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module is the user's: whatever it raises becomes one sentence
        raise InputError(f"{name}: {path} cannot be imported: {type(error).__name__}: {error}.") from error
    finally:
        sys.path.remove(str(root))
    origin = getattr(module, "__file__", None)
    if origin is None or Path(origin).resolve() != path.resolve():
        raise InputError(f"{name}: Python already has a module {module_name} from {origin}; rename {path.name}.")
    if not hasattr(module, object_name):
        raise InputError(f"{name} cannot be imported: {path} has no function {object_name}.")
    return getattr(module, object_name)


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """What the function returns; whatever it raises becomes one sentence that names it."""
    function = import_function(name)
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise InputError(f"{name} raised {type(error).__name__}: {error}") from error


def call_for(name: str, kind: type[T], words: str) -> T:
    """What the function returns without arguments, which must be of this kind; `words` are the kind's name."""
    made = call(name)
    if not isinstance(made, kind):
        raise InputError(f"{name} returned a {type(made).__name__}; expected {words}.")
    return made


def _roots() -> list[Path]:
    listed = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return [Path.cwd(), *[Path(entry) for entry in listed]]
