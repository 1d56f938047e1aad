"""The tables of `benchmarks/advice.py`: accuracies between evaluations, and what is not known before the first one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def advice_table(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield __import__("advice_table")
    for name in ("advice_table", "large_batch_tasks"):
        sys.modules.pop(name)


def test_accuracies_are_linear_between_evaluations_and_unknown_before_the_first(advice_table: Any) -> None:
    row = {"updates": [100, 200, 300], "test": [0.2, 0.4, 0.3]}
    assert advice_table.accuracy_at(row, 50) is None
    assert advice_table.accuracy_at(row, 100) == 0.2
    assert advice_table.accuracy_at(row, 150) == pytest.approx(0.3, rel=1e-12)
    assert advice_table.accuracy_at(row, 275) == pytest.approx(0.325, rel=1e-12)
    assert advice_table.accuracy_at(row, 300) == 0.3


@pytest.mark.parametrize(
    ("test", "diverged", "lost"),
    [([0.2, 0.8, 0.75], False, False), ([0.2, 0.8, 0.69], False, True), ([0.1, 0.1, 0.1], True, True)],
)
def test_a_run_is_lost_that_diverged_or_ends_far_below_its_best(
    advice_table: Any, test: list[float], diverged: bool, lost: bool
) -> None:
    assert advice_table.is_lost({"test": test, "diverged": diverged}) == lost


@pytest.mark.parametrize(("stored", "number"), [({"value": 0.25, "low": 0.2, "high": 0.3}, 0.25), (0.25, 0.25)])
def test_a_strength_is_read_from_rows_of_the_first_advices_and_of_todays(
    advice_table: Any, stored: object, number: float
) -> None:
    number_of = sys.modules["large_batch_tasks"].number_of
    assert number_of({"strength": stored}, "strength") == number
