"""The stored ten-seed run beside a smaller one of the same task."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from worlds import paper_world

from tacit.report import Report, build_report, read_parts, render
from tacit.report.ten_seeds import stored_beside, ten_seeds
from tacit.report.terminal import print_verdicts

RESULTS = Path(__file__).parents[2] / "docs/results/mnist1d"


@pytest.fixture(scope="module")
def quick(make_world: Callable[..., Path]) -> Report:
    return build_report(read_parts([make_world(paper_world)]))


def test_the_stored_verdicts_are_those_of_the_results_for_documents() -> None:
    results = json.loads((RESULTS / "results.json").read_text())
    for figure in [*results["figures"], *results["beside"]]:
        assert ten_seeds().verdicts[figure["regime"]][figure["figure"]] == figure["verdict"]["outcome"]
    assert ten_seeds().runs == results["runs"]
    assert ten_seeds().answer.startswith("Partly: ")


def test_a_quick_report_names_what_ten_seeds_say_where_that_is_something_else(quick: Report) -> None:
    page = render(quick, command="")
    assert f"With ten seeds ({ten_seeds().runs:,} stored runs of the same task): Partly: " in page
    disagreeing = [f.id for f in quick.figures if f.verdict and ten_seeds().of(f) != f.verdict.label]
    assert "7a" in disagreeing  # it agrees in this world
    assert "1a" not in disagreeing
    section = page[page.index('<table class="verdicts">') : page.index("</table>")]
    rows = {id: section.split(f'href="#{id}"')[1].split("</tr>")[0] for id in ("1a", "7a")}
    assert "ten seeds: undecided" in rows["7a"]
    assert "ten seeds" not in rows["1a"]


def test_only_reports_of_fewer_seeds_on_the_same_task_name_them(quick: Report) -> None:
    assert stored_beside(quick) is ten_seeds()
    assert stored_beside(build_report(read_parts([RESULTS]))) is None
    assert stored_beside(build_report(read_parts([RESULTS.parent / "mnist1d-conv"]))) is None
    part = quick.parts[0]
    own = replace(part, study=part.study.model_copy(update={"name": "mine"}))
    assert stored_beside(build_report([own])) is None


@pytest.mark.parametrize("stored", [True, False])
def test_a_verdict_has_one_or_two_lines_at_80_columns(
    stored: bool, quick: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = quick if stored else build_report(read_parts([RESULTS]))
    print_verdicts(report)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) - 2 <= 2 * sum(figure.verdict is not None for figure in report.figures)
    judged = [line for line in lines[1:-1] if not line.startswith(" ")]
    assert len(judged) == len(report.figures)


def test_the_table_is_as_wide_as_columns_says(
    quick: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    print_verdicts(quick)
    every = [*quick.figures, *quick.beside.values()]
    two_lines = {figure.id for figure in every if figure.verdict and figure.verdict.few}  # "undecided" and "so far"
    assert len(capsys.readouterr().out.splitlines()) == len(quick.figures) + len(two_lines) + 2
