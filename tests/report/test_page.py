"""The page is self-contained, complete and says what was left out."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from worlds import paper_world

from tacit._util.errors import InputError, TacitError
from tacit.cli import app
from tacit.report import Report, build_report, read_parts, render, write_page
from tacit.report.build import training_seconds
from tacit.report.export import export
from tacit.report.page import answer
from tacit.studies.describe.library import library

Maker = Callable[..., Path]
RESULTS = Path(__file__).parents[2] / "docs/results"


@pytest.fixture(scope="module")
def root(make_world: Maker) -> Path:
    return make_world(paper_world, diverges=lambda run: run.learning_rate == 0.5 and run.strength == 0)


@pytest.fixture(scope="module")
def report(root: Path) -> Report:
    return build_report(read_parts([root]))


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return render(report, command="tacit reproduce --scale quick")


class Elements(HTMLParser):
    """Every attribute that makes a browser fetch something, and the nesting of tags."""

    VOID = frozenset({"meta", "link", "br", "img", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("src", "href", "xlink:href", "action", "data", "srcset"):
                self.addresses.append(value or "")
            if key == "id":
                self.ids.append(value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_fetches_nothing(page: str) -> None:
    parser = Elements()
    parser.feed(page)
    assert all(address.startswith(("#", "data:,")) for address in parser.addresses)
    assert "http" not in page
    assert "@import" not in page
    assert set(re.findall(r"url\(([^)]*)\)", page)) <= {f"#{id}" for id in parser.ids}


def test_every_tag_is_closed(page: str) -> None:
    parser = Elements()
    parser.feed(page)
    assert parser.open == []


def test_the_page_is_small_enough_to_mail(page: str) -> None:
    assert len(page.encode()) < 1_000_000


def test_question_answer_figure_and_thumbnails_come_first_then_the_table_then_the_figures(page: str) -> None:
    order = ["<h1>", 'class="answer"', 'id="hero-p0-c0-"', 'class="thumbs"', 'class="verdicts"', '<section id="1a"']
    places = [page.index(part) for part in order]
    assert places == sorted(places)


def test_every_figure_has_a_thumbnail_with_its_verdict_that_links_down(report: Report, page: str) -> None:
    thumbs = page[page.index('class="thumbs"') :]
    thumbs = thumbs[: thumbs.index("</ul>")]
    for figure in report.figures:
        assert figure.verdict is not None
        entry = thumbs[thumbs.index(f'href="#{figure.id}"') :]
        assert f'class="dot {figure.verdict.shown_outcome}"' in entry[: entry.index("</li>")]


def test_the_answer_has_the_numbers_of_figure_1b(page: str) -> None:
    start = page.index('class="answer">')
    assert re.search(
        r"Yes: .* penalty λ = 2⁻³ reaches \d\d\.\d %", page[start : page.index("</p>", start)].replace("\u00a0", " ")
    )


def test_the_answer_has_means_of_all_runs_where_the_picture_has_the_best(make_world: Maker) -> None:
    root = make_world(paper_world, scale="standard", only=("rates", "strengths"))
    found = build_report(read_parts([root]), only=["1b"])
    verdict = found.figures[0].verdict
    assert verdict is not None
    numbers = re.findall(r"\d\d\.\d(?=.%)", answer(found))
    assert len(numbers) == 3
    assert all(number in verdict.seen for number in numbers)  # which the statistics print


@pytest.mark.parametrize(
    "folder,words",
    [
        ("mnist1d", r"^Partly: the best penalty .* It gives 61 % of .* does not count as similar \(figure 6a\)\.$"),
        ("fashion-mnist-small", r"^The best penalty gives 115 % of the .* counts as similar \(figure 6a\)\.$"),
    ],
)
def test_the_answer_says_how_much_of_the_gain_a_penalty_gives(folder: str, words: str) -> None:
    found = build_report(read_parts([RESULTS / folder]))
    assert re.search(words, answer(found))


def test_every_figure_is_drawn_with_its_runs(report: Report, page: str) -> None:
    for figure in report.figures:
        section = page[page.index(f'<section id="{figure.id}"') :]
        section = section[: section.index("</section>")]
        shown = [figure, *([report.beside[figure.id]] if figure.id in report.beside else [])]
        assert section.count("<svg") == sum(len(each.panels) + 1 for each in shown)  # and the number that decides
        points = sum(len(curve.points) for each in shown for panel in each.panels for curve in panel.curves)
        assert section.count("<circle") >= points or figure.id == "1a"  # 1a draws runs as lines


def test_captions_say_how_many_runs_and_which_were_left_out(report: Report) -> None:
    figure = next(figure for figure in report.figures if figure.id == "2a")
    assert "33 runs, 3 to 6 seeds per point" in figure.caption  # six at four rates, three at three
    assert "3 runs diverged" in figure.caption


def test_captions_say_which_runs_the_best_of_n_leaves_out(make_world: Maker) -> None:
    root = make_world(paper_world, scale="standard", only=("rates",))
    (figure,) = build_report(read_parts([root]), only=["2a"]).figures
    assert "80 runs, 10 seeds per point" in figure.caption
    assert "The 24 runs left out of those means are drawn hollow" in figure.caption  # three of ten at eight rates


def test_log_ticks_are_powers_of_two(page: str) -> None:
    assert "2⁻³" in page


@pytest.fixture(scope="module")
def stored_page() -> str:
    return render(build_report(read_parts([RESULTS / "mnist1d"])), command="")


def test_a_whole_report_has_at_most_3000_words_outside_details(stored_page: str) -> None:
    text = re.sub(r"<(style|script|svg|details)\b.*?</\1>", "", stored_page, flags=re.S)
    assert 2000 < len(re.sub(r"<[^>]+>", " ", text).split()) <= 3000


def test_a_page_names_symbols_in_words_and_whole_powers_of_two_only(stored_page: str) -> None:
    assert "1c" in stored_page
    assert not re.findall(r"\w_(?:reg|opt)\b|⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+·[⁰¹²³⁴⁵⁶⁷⁸⁹]", stored_page)


def test_one_legend_switches_the_curves_of_both_regimes(stored_page: str) -> None:
    section = stored_page[stored_page.index('<section id="1b"') :]
    entry = re.search(r'data-ids="([^"]*)"', section[: section.index("</section>")])
    assert entry is not None
    assert entry[1].split() == ["1b-p0-c0-", "1b-p1-c0-", "1b-beside-p0-c0-", "1b-beside-p1-c0-"]


def test_switching_a_curve_reaches_parts_of_the_drawing(page: str) -> None:
    parser = Elements()
    parser.feed(page)
    for prefix in {part for text in re.findall(r'data-ids="([^"]*)"', page) for part in text.split()}:
        assert any(id.startswith(prefix) for id in parser.ids), prefix


def test_the_page_names_its_command_and_environment(page: str) -> None:
    assert "tacit reproduce --scale quick" in page
    assert "a processor" in page


def test_the_same_rows_give_the_same_page(report: Report, page: str) -> None:
    assert render(report, command="tacit reproduce --scale quick") == page


def test_text_from_a_study_cannot_become_markup(root: Path) -> None:
    found = render(build_report(read_parts([root])), command="<script>alert(1)</script>")
    assert "<script>alert" not in found


def test_an_unfinished_study_is_reported_as_such(make_world: Maker) -> None:
    root = make_world(paper_world, only=("rates", "batch-rates"), keep=0.4)
    found = render(build_report(read_parts([root])), command="")
    assert "is unfinished" in found


def test_a_figure_without_its_rows_is_named_with_the_reason(make_world: Maker) -> None:
    report = build_report(read_parts([make_world(paper_world, only=("rates",))]))
    assert "needs runs with a strength" in report.absent["1b"]


def test_every_verdict_quotes_the_paper_in_at_most_25_words_and_says_where(report: Report, page: str) -> None:
    for figure in report.figures:
        assert figure.verdict is not None
        assert 0 < len(figure.verdict.quote.split()) <= 25
        assert figure.verdict.where in page
    assert "implied by section 2.2, not shown in the paper" in page


def test_the_page_says_which_figures_share_their_runs(page: str) -> None:
    assert "not independent: 6a on those of 1b, 6b on those of 3a, 6c on those of 3b." in page


def test_captions_of_partial_runs_give_a_range_of_seeds(report: Report) -> None:
    kept = [
        [r for r in part.rows if r["spec"]["learning_rate"] < 0.2 or r["spec"]["seed"] < 82] for part in report.parts
    ]
    parts = [replace(part, rows=rows) for part, rows in zip(report.parts, kept, strict=True)]
    (figure,) = build_report(parts, only=["2a"]).figures
    assert "2 to 6 seeds per point" in figure.caption


def test_intervals_of_shares_stay_shares(make_world: Maker) -> None:
    root = make_world(lambda run: 0.98, scatter=0.05, only=("rates",))
    (figure,) = build_report(read_parts([root]), only=["2a"]).figures
    assert all(0 <= p.summary.low <= p.summary.high <= 1 for curve in figure.panels[0].curves for p in curve.points)


def test_1a_says_which_runs_the_thick_line_leaves_out(make_world: Maker) -> None:
    def stops_early(row: dict[str, Any]) -> None:
        if row["spec"]["strength"] == 0.125 and row["spec"]["seed"] == 80:  # 2^-3, the strength that 1a draws
            row["status"] = "diverged"
            row["history"] = {key: values[:5] for key, values in row["history"].items()}

    root = make_world(paper_world, only=("rates", "strengths"), change=stops_early)
    (figure,) = build_report(read_parts([root]), only=["1a"]).figures
    assert "Diverged on the way, drawn as far as they got, left out of the thick line: 1." in figure.caption


def test_a_figure_of_ones_own_draws_a_curve_for_each_setting(report: Report) -> None:
    part = next(part for part in report.parts if part.study.name == "inner-steps-decay")
    study = part.study.model_copy(update={"figures": {"mine": {"x": "bare_learning_rate", "curve": "inner_steps"}}})
    (figure,) = build_report([replace(part, study=study)]).figures
    settings = {(row["spec"]["inner_steps"], row["spec"]["epochs"]) for row in part.rows}
    assert len(figure.panels[0].curves) == len(settings)
    assert all(len(point.runs) == 4 for curve in figure.panels[0].curves for point in curve.points)


def with_figures(report: Report, figures: dict[str, dict[str, object]]) -> Report:
    """The report of the first study as if its file had these figures."""
    part = report.parts[0]
    return build_report([replace(part, study=part.study.model_copy(update={"figures": figures}))])


def test_one_figure_with_bad_options_does_not_take_the_others_along(report: Report) -> None:
    found = with_figures(report, {"mine": {"y": "speed"}, "other": {"x": ["learning_rate"]}, "good": {}})
    assert [figure.id for figure in found.figures] == ["good"]
    assert "y is 'speed'" in found.absent["mine"]
    assert "options cannot be used" in found.absent["other"]


def test_an_id_that_is_no_name_is_never_a_file_name(report: Report) -> None:
    assert "its id has characters" in with_figures(report, {"../up": {}}).absent["../up"]


def test_a_title_cannot_break_out_of_an_attribute(report: Report) -> None:
    found = render(with_figures(report, {"mine": {"title": 'a"><script>alert(1)</script>'}}), command="")
    assert "<script>alert" not in found


def test_a_page_that_cannot_be_written_is_one_sentence(report: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TacitError, match="cannot be written"):
        write_page(report, tmp_path / "file" / "report.html", command="")
    with pytest.raises(TacitError, match="cannot be written"):
        export(build_report(report.parts, only=["2a"]), tmp_path / "file" / "out", command="")


# -- export -----------------------------------------------------------------------------------------------------------
def test_the_export_holds_the_numbers_of_every_figure(report: Report, tmp_path: Path) -> None:
    written = export(build_report(report.parts, only=["1b", "3a"]), tmp_path, command="x")
    assert {path.name for path in written} == {
        "results.json", "figure-1b.svg", "figure-3a.svg",
    }  # fmt: skip
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["figures"][0]["verdict"]["outcome"] == "agrees"
    assert len(found["figures"][0]["panels"][0]["curves"][0]["points"][0]["runs"]) == 3


# -- study files ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("scale", ["quick", "standard"])
def test_no_run_is_trained_twice(scale: str) -> None:
    hashes = [run.hash for study in library("mnist1d", scale).values() for run in study.runs]
    assert len(set(hashes)) == len(hashes)


def test_the_standard_scale_has_as_many_seeds_as_its_summary_says() -> None:
    for study in library("mnist1d", "standard").values():
        assert len({run.seed for run in study.runs}) == study.summary.of == 10
        assert study.summary.best == 7  # the share of the paper's 5 of 7


def test_the_quick_scale_draws_means_of_all_runs() -> None:
    """Its points have different numbers of seeds: the best 2 of 6 would lie above the best 2 of 3."""
    assert {study.summary.best for study in library("mnist1d", "quick").values()} == {None}


def test_the_standard_scale_shares_no_seed_with_the_runs_the_rules_were_written_on() -> None:
    seeds = {scale: {run.seed for study in library("mnist1d", scale).values() for run in study.runs}
             for scale in ("quick", "standard")}  # fmt: skip
    assert not seeds["quick"] & seeds["standard"]


def test_the_standard_scale_builds_every_figure_too(make_world: Maker) -> None:
    found = build_report(read_parts([make_world(paper_world, scale="standard")]))
    assert found.absent == {}
    assert len(found.figures) == 19


# -- command line -----------------------------------------------------------------------------------------------------
def test_report_writes_a_page_and_prints_the_verdicts(root: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(root), "--out", str(tmp_path / "page.html"), "--figure", "2a"])
    assert result.exit_code == 0, result.output
    assert "agrees" in result.output
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_report_refuses_a_figure_that_does_not_exist(root: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(root), "--figure", "9z"])
    assert isinstance(result.exception, InputError)
    assert "'9z' is not one of these studies; use one of 1a, 1b" in str(result.exception)


def test_reproducing_one_figure_leaves_the_whole_report_alone(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(root, folder)
    (folder / "report.html").write_text("the whole report")
    result = CliRunner().invoke(app, ["reproduce", "--figure", "2a", "--into", str(folder), "--workers", "1"])
    assert result.exit_code == 0, result.output
    assert (folder / "report.html").read_text() == "the whole report"
    assert f"--into {folder}" in (folder / "report-2a.html").read_text()


def test_a_folder_without_a_study_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no study"):
        read_parts([tmp_path])


def test_reproduce_refuses_a_figure_that_does_not_exist() -> None:
    result = CliRunner().invoke(app, ["reproduce", "--figure", "9z", "--dry-run"])
    assert isinstance(result.exception, InputError)
    assert "9z" in str(result.exception)


def test_reproduce_refuses_an_unknown_dataset() -> None:
    result = CliRunner().invoke(app, ["reproduce", "--dataset", "cifar", "--dry-run"])
    assert "cifar" in str(result.exception)


def test_a_study_of_ones_own_gets_a_figure_without_a_verdict(tmp_path: Path, make_world: Maker) -> None:
    root = make_world(paper_world, only=("batch-rates",))
    stored = json.loads((root / "studies" / "batch-rates.json").read_text())
    stored["study"]["figures"] = {"mine": {"x": "temperature", "curve": "batch_size"}}
    (root / "studies" / "batch-rates.json").write_text(json.dumps(stored))
    (figure,) = build_report(read_parts([root])).figures
    assert figure.verdict is None
    assert [curve.label for curve in figure.panels[0].curves] == [f"B = {B}" for B in (8, 32, 64)]


def test_points_of_one_figure_are_means_of_equally_many_runs(make_world: Maker) -> None:
    """The quick 3a has up to 6 seeds at B = 16 and 3 at the others."""
    root = make_world(paper_world, only=("rates", "batch-rates"))
    (figure,) = build_report(read_parts([root]), only=["3a"]).figures
    points = [point for panel in figure.panels for curve in panel.curves for point in curve.points]
    assert {len(point.runs) for point in points} == {3}
    assert " 12 runs of seeds that not every study of this figure has are left out" in figure.caption


def test_captions_of_one_seed_say_seed(report: Report) -> None:
    parts = [replace(part, rows=[row for row in part.rows if row["spec"]["seed"] == 80]) for part in report.parts]
    (figure,) = build_report(parts, only=["2a"]).figures
    assert "1 seed per point" in figure.caption


def test_a_figure_costs_its_part_of_the_time_of_its_fleets(report: Report) -> None:
    """Two of the four runs of a fleet that took 60 seconds cost 30."""
    rows = [{"fleet": "a"}, {"fleet": "a"}, {"fleet": "b"}]
    metas = [{"fleet": "a", "runs": 4, "seconds": 60.0}, {"fleet": "b", "runs": 1, "seconds": 7.0}] * 2
    assert training_seconds(rows, metas) == 37.0
    known = [{**metas[0], "cpu_seconds": 40.0, "device": "cpu"}, {**metas[1], "cpu_seconds": 1.0, "device": "cuda (A)"}]
    assert training_seconds(rows, known) == 27.0  # CPU time, but for the GPU, which has none
    strange = [{"runs": 4}, {"fleet": "a", "runs": "4"}, {"fleet": "b", "runs": 1, "cpu_seconds": "x", "seconds": [1]}]
    assert training_seconds(rows, strange) == 0.0
    assert all(figure.seconds > 0 for figure in report.figures)
