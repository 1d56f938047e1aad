"""A number that the runs do not give is said in words, with the reason: never nan, on no page and in no table."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worlds import paper_world

from tacit.report import Criterion, Report, build_report, read_parts, render
from tacit.report.numbers import unknown
from tacit.report.terminal import print_verdicts
from tacit.report.verdict import Verdict
from tacit.studies.describe.spec import RunSpec
from tacit.studies.store.status import folder_status
from tacit.watch.figures import figures_of

Maker = Callable[..., Path]


def rises(run: RunSpec) -> float:
    """The largest rate and the largest strength are the best: no curve has a peak."""
    return 0.5 + 0.01 * math.log2(run.learning_rate + run.strength)


def falls(run: RunSpec) -> float:
    """No rate gains anything over the small one, 2^-6."""
    return 0.5 - 0.01 * abs(math.log2(run.learning_rate + run.strength) + 6)


def is_large(run: RunSpec) -> bool:
    return run.learning_rate + run.strength > 2**-5


def learns_nothing_if_large(row: dict[str, Any]) -> None:
    """Few points are left that a collapse may be judged by."""
    if row["spec"]["learning_rate"] > 2**-5:
        row["final_train_accuracy"] = 0.1
        row["history"]["train_accuracy"] = [0.1 for _ in row["history"]["train_accuracy"]]


WORLDS: dict[str, dict[str, Any]] = {
    "rises": {"law": rises, "only": ("rates", "strengths")},
    "falls": {"law": falls, "only": ("rates", "strengths"), "scatter": 0.0},
    "large values diverge": {"law": rises, "only": ("rates", "strengths"), "diverges": is_large},
    "all diverge": {"law": rises, "only": ("rates", "strengths"), "diverges": lambda run: True},
    "few points": {"law": paper_world, "only": ("batch-rates",), "change": learns_nothing_if_large},
    "one seed": {"law": paper_world, "only": ("rates", "strengths"), "overrides": ("seeds=0:1",)},
}


# The figures without a number in each world: their tests would say nothing if there were none.
WITHOUT = {"rises": {"1b"}, "falls": {"1b", "6a"}, "large values diverge": {"1b", "1c", "5b"}, "all diverge": {"1b"},
           "few points": {"3a", "6b"}, "one seed": set()}  # fmt: skip


@pytest.fixture(scope="module", params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def root(world: str, make_world: Maker) -> Path:
    return make_world(**WORLDS[world])


@pytest.fixture(scope="module")
def report(world: str, root: Path) -> Report:
    made = build_report(read_parts([root]))
    without = {each.id for each in made.figures if each.verdict and math.isnan(each.verdict.number.value)}
    assert without == WITHOUT[world]
    return made


def has_nan(text: str) -> list[str]:
    return [text[max(0, found.start() - 60) : found.end() + 60] for found in re.finditer(r"\b(nan|NaN|None)\b", text)]


def test_no_page_and_no_table_shows_nan(root: Path, report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    print_verdicts(report)
    assert has_nan(capsys.readouterr().out) == []
    assert has_nan(re.sub(r"<style>.*?</style>|<script>.*?</script>", "", render(report, command=""), flags=re.S)) == []
    assert has_nan(json.dumps(figures_of(folder_status(root)[0])[0]).replace("null", "")) == []


def test_a_missing_number_gives_its_reason_once(report: Report) -> None:
    missing = [each.verdict for each in report.figures if each.verdict and math.isnan(each.verdict.number.value)]
    for verdict in missing:
        assert verdict.deciding.blocked
        assert verdict.number_text == f"no number: {verdict.deciding.blocked}"
        assert verdict.advice_beside_number == ""


def test_the_best_value_at_an_end_of_its_grid_is_the_reason(make_world: Maker) -> None:
    report = build_report(read_parts([make_world(**WORLDS["rises"])]))
    (figure,) = (each for each in report.figures if each.id == "1b")
    assert figure.verdict is not None
    assert figure.verdict.number_text.startswith("no number: the best ε and the best λ are ends of their grids")


def test_a_criterion_without_a_reason_says_that_there_is_no_number() -> None:
    verdict = Verdict("", "", (Criterion(unknown(), "= something", "above", 0.0),))
    assert verdict.number_text == "no number"
    assert verdict.advice == "Undecided: these runs give no number."
