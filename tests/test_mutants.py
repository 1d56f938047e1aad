"""Every mutant of `make mutants` still fits the source, so that the command cannot rot unseen."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutants import MUTANTS, ROOT, Mutant, apply


@pytest.mark.slow  # a renamed line is no reason for a red default suite; `make mutants` tells of it
@pytest.mark.parametrize("change", MUTANTS, ids=lambda change: change.name)
def test_its_old_text_occurs_exactly_once_and_the_edit_still_parses(change: Mutant, tmp_path: Path) -> None:
    original = (ROOT / "src" / "tacit" / change.file).read_text()
    copied = tmp_path / "src" / "tacit" / change.file
    copied.parent.mkdir(parents=True)
    copied.write_text(original)
    apply(change, tmp_path)
    assert copied.read_text() != original
    ast.parse(copied.read_text())
    assert change.tests
    assert all((ROOT / "tests" / test.split("::")[0]).exists() for test in change.tests)


def test_names_are_unique_and_more_than_a_dozen() -> None:
    names = [change.name for change in MUTANTS]
    assert len(set(names)) == len(names) > 12


def test_a_missing_old_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "src" / "tacit").mkdir(parents=True)
    (tmp_path / "src" / "tacit" / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(SystemExit, match="occurs 2 times"):
        apply(Mutant("twice", "a.py", "x = 1", "x = 2", ("a",)), tmp_path)
