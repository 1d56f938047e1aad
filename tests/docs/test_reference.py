"""Every public name of the package is on a page of the reference, once, and has a docstring to show there."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from types import ModuleType

import pytest
from site_modules import DOCS

import tacit

DIRECTIVES = [
    name
    for page in sorted((DOCS / "reference").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
]
# Modules whose names a user imports. Those of trainers need their framework: their names are read from the source.
MODULES = [
    *["tacit", "tacit.penalty", "tacit.nstep", "tacit.problem", "tacit.convert", "tacit.batching", "tacit.schedules"],
    *["tacit.diagnostics", "tacit.theory", "tacit.theory.problems", "tacit.studies", "tacit.report", "tacit.explore"],
    *["tacit.sinks", "tacit.edges", "tacit.advice"],
]
TRAINERS = ["lightning", "transformers"]


def resolved(path: str) -> object:
    """The object behind a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or what the module itself defines without an underscore; modules and constants of text aside."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if name != "__version__"]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def documented_objects() -> set[int]:
    return {id(resolved(name)) for name in DIRECTIVES if name.split(".")[1] not in TRAINERS}


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    module, shown = importlib.import_module(name), documented_objects()
    objects = {public: getattr(module, public) for public in public_names(module)}
    missing = [
        public for public, value in objects.items() if not isinstance(value, ModuleType) and id(value) not in shown
    ]
    assert objects
    assert missing == [], f"add `::: {name}.NAME` to a page of docs/reference"


def test_every_public_module_of_the_package_is_among_them() -> None:
    modules = [f"tacit.{name}" for name in tacit.__all__ if isinstance(getattr(tacit, name), ModuleType)]
    assert set(modules) <= set(MODULES)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_name_of_a_trainer_is_in_the_reference(trainer: str) -> None:
    source = (DOCS.parent / "src" / "tacit" / f"{trainer}.py").read_text()
    (listed,) = re.findall(r"__all__ = \[(.*?)\]", source, re.DOTALL)
    wanted = {f"tacit.{trainer}.{name}" for name in re.findall(r'"(\w+)"', listed)}
    assert wanted == {name for name in DIRECTIVES if name.startswith(f"tacit.{trainer}.")}


def test_no_name_is_there_twice() -> None:
    assert [name for name, count in Counter(DIRECTIVES).items() if count > 1] == []


@pytest.mark.parametrize("name", [name for name in DIRECTIVES if name.split(".")[1] not in TRAINERS])
def test_a_documented_name_exists_and_has_a_docstring_of_its_own(name: str) -> None:
    found = resolved(name)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert vars(found)["__doc__"] if inspect.isclass(found) else found.__doc__
