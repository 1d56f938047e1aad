"""`make mutants` cannot rot unseen: every mutant fits the source. Slow: a renamed line breaks no default run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutants import ROOT, Mutant, apply, read_mutants


@pytest.mark.slow
@pytest.mark.parametrize("change", read_mutants(), ids=lambda change: change.name)
def test_its_old_text_occurs_exactly_once_and_the_edit_still_parses(change: Mutant, tmp_path: Path) -> None:
    copied = tmp_path / "src" / "tacit" / change.file
    copied.parent.mkdir(parents=True)
    copied.write_text((ROOT / "src" / "tacit" / change.file).read_text())
    apply(change, tmp_path)
    ast.parse(copied.read_text())
    assert all((ROOT / "tests" / test.split("::")[0]).exists() for test in change.tests)


def test_names_are_unique_and_there_are_two_dozen() -> None:
    names = [change.name for change in read_mutants()]
    assert len(set(names)) == len(names) >= 24
    assert all(change.tests for change in read_mutants())


def test_a_missing_old_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "src" / "tacit").mkdir(parents=True)
    (tmp_path / "src" / "tacit" / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(SystemExit, match="occurs 2 times"):
        apply(Mutant("twice", "a.py", "x = 1", "x = 2", ("a",)), tmp_path)
