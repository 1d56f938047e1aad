"""The page says what was cut from the paper's setting, by comparing specs with the paper's own study files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from worlds import paper_world

from tacit.report import Report, build_report, catalogue, read_parts, render
from tacit.report.build import by_regime
from tacit.report.export import figure_json
from tacit.report.rows import unshared_seeds
from tacit.report.settings import Setting, compared, described, paper_studies, planned, used
from tacit.studies.describe.library import library
from tacit.studies.describe.spec import LATER, RunSpec

Maker = Callable[..., Path]


@pytest.fixture(scope="module")
def quick(make_world: Maker) -> Report:
    return build_report(read_parts([make_world(paper_world)]))


@pytest.fixture(scope="module")
def paper(make_world: Maker) -> Report:
    """Every figure from made-up rows of the paper's own files: fewer seeds and evaluations, or it takes minutes."""
    return build_report(read_parts([make_world(paper_world, scale="paper", overrides=("seeds=0:2", "evaluations=2"))]))


def named(report: Report, id: str) -> dict[str, Setting]:
    (figure,) = (figure for figure in report.figures if figure.id == id)
    return {setting.name: setting for setting in figure.settings}


def test_the_papers_files_give_every_figure_of_the_paper(paper: Report) -> None:
    assert paper.absent == {}
    assert len(paper.figures) == 18


def test_nothing_but_seeds_was_cut_from_the_papers_own_files(paper: Report) -> None:
    for figure in paper.figures:
        assert [setting.name for setting in figure.settings if setting.differs] == ["runs per point"]


def test_a_cut_names_this_run_and_the_paper(quick: Report) -> None:
    found = named(quick, "1b")
    assert (found["dataset"].here, found["dataset"].paper) == ("MNIST-1D", "CIFAR-10")
    assert (found["model"].here, found["model"].paper) == ("MLP, 3 hidden layers of 64", "WRN-10-1")
    assert (found["training examples N"].here, found["training examples N"].paper) == ("2,048", "49,920")
    assert (found["length"].here, found["length"].paper) == ("200 epochs", "6,400 epochs")
    assert (found["image size"].here, found["image size"].paper) == ("", "32 x 32")
    assert (found["runs per point"].here, found["runs per point"].paper) == ("3 to 6 seeds", "7 seeds")
    assert (found["small rate ε of the strengths"].paper) == "2⁻⁹"
    assert not found["learning rate over a run"].differs


def test_a_figure_is_compared_by_the_runs_that_it_reads(quick: Report) -> None:
    assert named(quick, "7b")["length"].paper == "6,000,000 updates"
    assert named(quick, "3b")["length"].paper == "9,984,000, 10,000,000 updates"
    assert named(quick, "4a")["length"].paper == "400 epochs"  # not the budgets of 4c, which share its study
    assert named(quick, "3b")["batch size B"].paper == "8, 16, 32, 64"


def test_budgets_that_not_every_n_has_are_not_those_of_7c(quick: Report, paper: Report) -> None:
    """Figure 7b needs 1600 epochs at n = 1 and 800 at n = 2; its study is that of 7c."""
    assert named(quick, "7c")["length"].paper == "50, 100, 200, 400 epochs"
    (figure,) = (figure for figure in paper.figures if figure.id == "7c")
    assert {tuple(curve.x) for curve in figure.panels[0].curves} == {(50, 100, 200, 400)}


@pytest.mark.parametrize("world", ["quick", "paper"])
def test_what_is_called_used_is_what_a_figure_counts(world: str, request: pytest.FixtureRequest) -> None:
    report: Report = request.getfixturevalue(world)
    for figure in report.figures:
        feeding = by_regime([part for part in report.parts if figure.id in part.study.figures])[figure.regime]
        left_out = unshared_seeds([part.study for part in feeding])
        distinct = {row["run"]: row for part in feeding for row in part.rows}.values()
        rows = [row for row in distinct if row["spec"]["seed"] not in left_out]
        options = {key: value for part in feeding for key, value in part.study.figures[figure.id].items()}
        if figure.id != "1a":  # it draws two points of those that it reads
            assert len(used(catalogue()[figure.id], rows, options)) == figure.runs, figure.id


def test_planned_runs_have_the_seeds_that_a_report_takes() -> None:
    """Of the 6 seeds at B = 16 in the quick 3a and 6b, the other batch sizes have 3."""
    for id in ("3a", "6b"):
        figure = catalogue()[id]
        rows, options = planned(id, library(None, "quick").values())
        assert described(figure, used(figure, rows, options))["runs per point"] == "3 seeds"


def test_a_figure_that_the_paper_does_not_have_is_compared_with_nothing(quick: Report) -> None:
    assert named(quick, "orders") == {}


def test_smaller_images_are_a_cut() -> None:
    rows = [
        {"spec": {**LATER, **run.model_dump(), "image_size": 16}}
        for run in library(None, "paper")["fig3a-cifar10"].runs
    ]
    (cut,) = (each for each in compared(catalogue()["3a"], rows, options={}) if each.name == "image size")
    assert (cut.here, cut.paper) == ("16 x 16", "32 x 32")


def test_without_the_papers_files_a_report_is_made_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tacit.studies.describe import library as module

    monkeypatch.setattr(module, "library_folder", lambda: tmp_path)
    paper_studies.cache_clear()
    try:
        row = {"spec": {**LATER, **RunSpec(learning_rate=0.1, epochs=1).model_dump()}}
        assert compared(catalogue()["2a"], [row], options={}) == ()
    finally:
        paper_studies.cache_clear()


def test_the_page_and_the_json_list_the_cuts(quick: Report) -> None:
    (figure,) = (figure for figure in quick.figures if figure.id == "1b")
    page = render(replace(quick, figures=(figure,)), command="")
    assert "Not as in the paper: dataset, model, training examples N" in page
    assert "<td><strong>MNIST-1D</strong></td><td>CIFAR-10</td>" in page
    assert figure_json(figure)["not_as_in_the_paper"]["model"] == ["MLP, 3 hidden layers of 64", "WRN-10-1"]


# -- texts that come from the rows ------------------------------------------------------------------------------------
def undrawn(report: Report) -> str:
    """The page without its figures: drawing them takes most of the time."""
    return render(replace(report, figures=(), beside={}), command="")


def test_the_title_names_the_datasets_of_the_rows(paper: Report, quick: Report) -> None:
    assert "on CIFAR-10 and Fashion-MNIST</title>" in undrawn(paper)
    assert "on MNIST-1D</title>" in undrawn(quick)


def test_a_page_on_other_data_says_where_the_thresholds_come_from(paper: Report, quick: Report) -> None:
    words = "The margins were chosen for MNIST-1D"
    assert words in undrawn(paper)
    assert words not in undrawn(quick)


def test_figures_of_appendix_d_with_runs_of_their_own_are_not_called_those_of_the_main_text(paper: Report) -> None:
    assert paper.twins == {}
    (figure,) = (figure for figure in paper.figures if figure.id == "6a")
    assert "1b" not in figure.caption
