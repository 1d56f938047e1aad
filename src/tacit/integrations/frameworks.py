"""Optional frameworks, imported only when used: one sentence when one is missing or older than what was tested."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from types import ModuleType

from tacit._util.errors import TacitError

# The oldest versions that the matrix of docs/integrations.md was made with; the extras of pyproject.toml agree.
OLDEST = {"lightning": "2.6", "transformers": "5.22"}


class MissingFrameworkError(TacitError, ImportError):
    """A framework that a module of tacit builds on is not installed, or too old."""


def load(module: str) -> ModuleType:
    """The imported module; its first part names the framework."""
    name = module.partition(".")[0]
    wanted = f"tacit.{name} needs version {OLDEST[name]} or newer. In a clone of tacit run: pip install '.[{name}]'"
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise MissingFrameworkError(f"{name} is not installed; {wanted}") from None
    if release(found) < release(OLDEST[name]):
        raise MissingFrameworkError(f"{name} {found} is too old; {wanted}")
    return importlib.import_module(module)


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version up to the first other part: `2.6.0rc1` is (2, 6, 0), `2.13.0+cpu` is (2, 13, 0)."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else ()
