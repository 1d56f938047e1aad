"""`tacit reproduce` at every scale, on any executor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from worlds import paper_world

from tacit import InputError
from tacit.cli import app
from tacit.studies import runner
from tacit.studies.describe import study as study_module
from tacit.studies.describe.library import library
from tacit.studies.describe.spec import canonical
from tacit.studies.execute.executor import FleetsFailedError
from tacit.studies.store import rows as rows_module


@pytest.mark.parametrize("scale,study", [("paper", "fig7-fashion-mnist"), ("small", "fig7-fashion-mnist")])
def test_a_dry_run_lists_the_studies_of_a_mixed_scale(scale: str, study: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", "--scale", scale, "--figure", "7b", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert f"into runs/{scale}" in result.output
    assert f"  {study}: " in result.output


@pytest.mark.parametrize(
    "words,named",
    [
        (("--executor", "cloud"), "local or ray"),
        (("--address", "auto"), "--executor ray"),
        (("--device", "tpu"), "tpu"),
    ],
)
def test_a_place_to_train_that_is_not_known_is_refused(words: tuple[str, str], named: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", "--into", str(tmp_path / "out"), *words])
    assert isinstance(result.exception, InputError)
    assert named in str(result.exception)


def test_fleets_that_fail_leave_the_other_studies_and_the_report_alone(
    make_world: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_world(paper_world, only=("rates", "orders"))
    asked: list[str] = []

    def run(study: Any, into: Any, **_: Any) -> None:
        asked.append(study.name)
        if study.name == "orders":
            raise FleetsFailedError("1 fleet failed.")

    monkeypatch.setattr(runner, "run", run)
    result = CliRunner().invoke(app, ["reproduce", "--figure", "orders", "--into", str(folder), "--workers", "1"])
    assert asked == ["orders", "rates"]
    assert result.exit_code == 1
    assert "tacit: orders: 1 fleet failed." in result.output
    assert (folder / "report-orders.html").exists()


def test_finished_results_are_walked_once(make_world: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the study files to the page: every row on disk is read once, and every study is validated once."""
    folder = make_world(paper_world)
    stored = sum(len(path.read_bytes().splitlines()) for path in folder.glob("fleets/*/rows.jsonl"))
    rows_read, validated = 0, Counter[str]()
    check_row, expand_grid = rows_module.row_problem, study_module.expand

    def check(row: Any, number: int) -> str | None:
        nonlocal rows_read
        rows_read += 1
        return check_row(row, number)

    def expand(fixed: Any, grid: Any, *, where: str) -> Any:
        validated[canonical([fixed, grid])] += 1
        return expand_grid(fixed, grid, where=where)

    monkeypatch.setattr(rows_module, "row_problem", check)
    monkeypatch.setattr(study_module, "expand", expand)
    result = CliRunner().invoke(app, ["reproduce", "--into", str(folder), "--workers", "1"])
    assert result.exit_code == 0, result.output
    assert rows_read == stored
    assert set(validated.values()) == {1}
    assert len(validated) >= len(library("mnist1d", "quick"))
