"""`tacit.theory` as a namespace: public names only, each under a question of the guide."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import tacit

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "theory.md"


def test_files_are_not_mixed_with_functions() -> None:
    listed = dir(tacit.theory)
    assert listed == sorted(tacit.theory.__all__)
    modules = [name for name in listed if isinstance(getattr(tacit.theory, name), ModuleType)]
    assert modules == ["problems"]  # the closed-form problems, meant to be used as a module


def test_every_public_name_stands_under_a_question_of_the_reference() -> None:
    questions = REFERENCE.read_text().split("\n## ")[1:]
    names = {name for part in questions for name in re.findall(r"^::: tacit\.theory\.(\w+)", part, re.MULTILINE)}
    assert names == set(tacit.theory.__all__)
