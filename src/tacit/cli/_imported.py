"""A problem or an update of the user's own, named as package.module:function on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tacit._errors import InputError

if TYPE_CHECKING:
    from tacit.problem import Problem


def imported_function(name: str, kind: str) -> Callable[..., Any]:
    """The function named as package.module:function; `kind` says in the error message what it was to be."""
    import importlib
    import sys

    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise InputError(f"{kind} {name!r}; expected package.module:function.")
    sys.path.insert(0, "")  # a module in the current folder, as python -m would find it
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # the module is the user's: whatever it raises becomes one sentence
        raise InputError(f"{kind} {name!r} cannot be imported: {error}.") from error
    finally:
        sys.path.remove("")
    if not callable(function):
        raise InputError(f"{kind} {name!r} is a {type(function).__name__}; expected a function.")
    return function  # type: ignore[no-any-return]


def imported(name: str) -> Callable[[], Problem]:
    """The function that makes a problem, imported now; its error, or a wrong result, is reported when it is called."""
    from tacit.problem import Problem

    function = imported_function(name, "problem")

    def make() -> Problem:
        try:
            made = function()
        except Exception as error:
            raise InputError(f"problem {name!r} raised {type(error).__name__}: {error}") from error
        if not isinstance(made, Problem):
            raise InputError(f"{name} returned a {type(made).__name__}; expected a tacit.Problem.")
        return made

    return make
