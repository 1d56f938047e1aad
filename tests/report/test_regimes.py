"""Runs with and without augmentation stand side by side, and the page says where that decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from worlds import bump, paper_world

from tacit.report import Report, build_report, read_parts, render
from tacit.report.page import decided_by_regime
from tacit.studies.describe.spec import RunSpec

Maker = Callable[..., Path]


def shifted(run: RunSpec) -> float:
    """The best λ is four times the best ε."""
    return bump((run.learning_rate + run.strength / 4) / run.batch_size, -7)


@pytest.fixture(scope="module")
def report(make_world: Maker) -> Report:
    only = ("rates", "strengths", "orders")
    without = make_world(shifted, only=only, overrides=("augmentation=none",))
    return build_report(read_parts([without, make_world(paper_world, only=only)]))


def test_the_papers_regime_leads_and_the_other_stands_beside_it(report: Report) -> None:
    assert {figure.regime for figure in report.figures} == {"with augmentation"}
    assert {figure.regime for figure in report.beside.values()} == {"without augmentation"}
    assert [figure.id for figure in report.figures] == list(report.beside)


def test_runs_of_two_regimes_are_never_taken_for_one_point(report: Report) -> None:
    figure = next(figure for figure in report.figures if figure.id == "1b")
    assert {len(point.runs) for point in figure.panels[0].curves[0].points} == {3, 6}  # as the study file says


def test_a_claim_that_holds_in_one_regime_alone_is_named(report: Report) -> None:
    assert decided_by_regime(report) == ["1b"]
    page = render(report, command="")
    assert 'The regime decides <a href="#1b">1b</a>' in page
    assert 'id="1b-beside-p0-c0-"' in page


def test_one_regime_alone_needs_no_second_column(make_world: Maker) -> None:
    found = build_report(read_parts([make_world(paper_world, only=("rates",))]))
    assert found.beside == {}
    assert 'class="results two"' not in render(found, command="")
