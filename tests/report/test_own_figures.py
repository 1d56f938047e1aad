"""A study of one's own: its question leads, its figure may be its own code, and λ = 0 has a place."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worlds import paper_world

from tacit._util.errors import InputError
from tacit.report import build_report, catalogue, read_parts, render
from tacit.report.build import Part
from tacit.report.registry import find_figure
from tacit.report.text import power
from tacit.studies.describe.study import Summary

OWN = """
from tacit.report import Criterion, Drawing, Figure, Source
from tacit.report.points import Panel, curve
from tacit.report.rows import VARIABLES


def draw(source: Source) -> Drawing:
    points, rate = source.points, VARIABLES["learning_rate"]
    drawn = curve(points, range(len(points.specs)), x=rate, label="mine", colour="rate", best=None)
    best, height = points.layout.highest(range(len(points.specs)))
    number = points.layout.difference(best, 0).scaled(100)
    criterion = Criterion(number, "points", "above", float(source.options["least"]))
    return Drawing((Panel((drawn,), rate.label, "accuracy"),), "Mine.", "Seen.", (criterion,))


FIGURE = Figure(id="mine", title="My figure", claim="Rates matter.", draw=draw, options=("least",))
"""


@pytest.fixture
def part(make_world: Callable[..., Path]) -> Part:
    (found,) = read_parts([make_world(paper_world, only=("rates",))])
    return found


def with_figures(part: Part, **figures: dict[str, object]) -> Part:
    return replace(part, study=part.study.model_copy(update={"figures": figures}))


def test_a_study_brings_a_figure_of_its_own(part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_figures.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    own = with_figures(part, mine={"figure": "my_figures:FIGURE", "least": 1})
    (figure,) = build_report([own]).figures
    assert figure.verdict is not None
    assert (figure.title, figure.verdict.outcome) == ("My figure", "agrees")
    assert "Rates matter." in render(build_report([own]), command="")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("no_such_module:FIGURE", "cannot be imported"),
        ("json:dumps", "own code is imported from there only"),
        ("no_figures:NUMBER", "is not a tacit.report.Figure"),
    ],
)
def test_a_place_without_a_figure_is_one_sentence(
    place: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_figures.py").write_text("NUMBER = 3\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        find_figure("mine", {"figure": place})


def test_an_option_that_a_figure_does_not_take_is_one_sentence_in_the_report(part: Part) -> None:
    report = build_report([with_figures(part, **{"1b": {"x": "strength"}})])
    assert report.absent["1b"] == "figure 1b: the key x is unknown; this figure takes no options."


def test_every_figure_is_found_once_and_in_order() -> None:
    known = "1a 1b 1c 2a 2b 3a 3b 4a 4b 4c 5a 5b 6a 6b 6c 7a 7b 7c orders"
    assert " ".join(catalogue()) == known


def test_the_report_of_an_own_study_leads_with_its_question_and_its_name(part: Part) -> None:
    own = with_figures(part, mine={})
    page = render(build_report([own]), command="")
    assert f"<h1>{part.study.question}</h1>" in page
    assert "undecided" not in page[page.index("<main>") :]
    assert "On the Origin of Implicit" not in page


def test_all_runs_are_in_the_mean_unless_a_study_asks_for_the_best(part: Part) -> None:
    study = part.study.model_copy(update={"figures": {"mine": {}}, "summary": Summary()})
    (figure,) = build_report([replace(part, study=study)]).figures
    assert all(kept for curve in figure.panels[0].curves for point in curve.points for _, kept in point.runs)
    assert "means of all runs" in figure.caption


def test_a_strength_of_zero_has_a_place_on_the_axis(part: Part) -> None:
    def swept(row: dict) -> dict:  # type: ignore[type-arg]
        spec = row["spec"]
        small = {**spec, "strength": 0.0 if spec["learning_rate"] < 2**-6 else spec["learning_rate"]}
        return {**row, "spec": {**small, "learning_rate": 2**-6}}

    own = replace(with_figures(part, mine={"x": "strength"}), rows=[swept(dict(row)) for row in part.rows])
    (figure,) = build_report([own]).figures
    assert figure.panels[0].x_scale == "symlog2"
    assert ">0</text>" in render(build_report([own]), command="")


def test_an_own_study_answers_with_its_best_setting_an_interval_and_the_next_best(part: Part) -> None:
    report = build_report([with_figures(part, mine={})])
    (figure,) = report.figures
    heights = {point.x: point.mean.value for curve in figure.panels[0].curves for point in curve.points}
    best, second = sorted(heights, key=lambda x: -heights[x])[:2]
    shown = re.search(
        r"^Highest test accuracy: (\S+) \[(\S+), (\S+)\] % at ε = (\S+)\. "
        r"The next best setting, ε = (\S+), has (\S+) %: (\S+) \[(\S+), (\S+)\] points less\.$",
        figure.answer,
    )
    assert shown is not None, figure.answer
    assert (shown[4], shown[5]) == (power(best), power(second))
    names = ("height", "low", "high", "next", "gain", "least", "most")
    numbers = (float(shown[place].replace("−", "-")) for place in (1, 2, 3, 6, 7, 8, 9))
    found = dict(zip(names, numbers, strict=True))
    assert found["low"] < found["height"] < found["high"]
    assert found["height"] == pytest.approx(100 * heights[best], abs=0.05)
    assert found["next"] == pytest.approx(100 * heights[second], abs=0.05)
    assert found["gain"] == pytest.approx(100 * (heights[best] - heights[second]), abs=0.05)
    assert found["least"] < found["gain"] < found["most"]
    assert figure.answer.replace(" = ", "\u00a0=\u00a0").replace(" %", "\u00a0%") in render(report, command="")


def test_an_own_study_with_a_penalty_is_compared_with_its_best_plain_setting(part: Part) -> None:
    def change(number: int, spec: dict[str, Any]) -> dict[str, Any]:
        return {"strength": spec["learning_rate"] if spec["learning_rate"] > 2**-4 else 0.0}

    rows = [{**row, "spec": {**row["spec"], **change(0, row["spec"])}} for row in part.rows]
    (figure,) = build_report([replace(with_figures(part, mine={"x": "learning_rate"}), rows=rows)]).figures
    assert "The best without it, ε = 2⁻⁴, λ = 0, has" in figure.answer


def test_settings_and_arguments_of_a_study_are_listed_in_words(part: Part) -> None:
    fixed = {**part.study.fixed, "model_arguments": {"channels": 8}, "dataset_arguments": {"size": 4}}
    own = replace(part, study=part.study.model_copy(update={"fixed": fixed, "figures": {"mine": {}}}))
    page = render(build_report([own]), command="")
    assert "model_arguments (channels = 8), dataset_arguments (size = 4)" in page


def legend_of(part: Part, change: Callable[[int, dict[str, Any]], dict[str, Any]], **options: object) -> list[str]:
    """The curves of a study's own figure after a change of each row's spec."""
    rows = [{**row, "spec": {**row["spec"], **change(number, row["spec"])}} for number, row in enumerate(part.rows)]
    own = replace(with_figures(part, mine={"x": "learning_rate", **options}), rows=rows)
    report = build_report([own])
    (figure,) = report.figures
    page = render(report, command="")
    labels = [curve.label for curve in figure.panels[0].curves]
    assert all(label.replace("'", "&#39;") in page for label in labels)
    return labels


OLD, NEW = "0123456789abcdef", "fedcba9876543210"


def test_own_models_are_told_apart_by_their_names_and_not_by_hashes(part: Part) -> None:
    def change(number: int, spec: dict[str, Any]) -> dict[str, Any]:
        name, code = [("nets:small", OLD), ("nets:large", NEW)][number % 2]
        return {"model": name, "own_code": {name: code}}

    assert legend_of(part, change) == ["model = nets:large", "model = nets:small"]


def test_a_changed_file_is_told_apart_by_its_version(part: Part) -> None:
    """The same name, two hashes: runs of another model, which must not be taken for other seeds."""

    def change(number: int, spec: dict[str, Any]) -> dict[str, Any]:
        return {"model": "nets:small", "own_code": {"data:load": OLD, "nets:small": [OLD, NEW][number % 2]}}

    assert legend_of(part, change) == ["nets:small, version 1", "nets:small, version 2"]


@pytest.mark.parametrize("key", ["model_arguments", "dataset_arguments"])
def test_arguments_are_shown_by_their_own_names_and_only_those_that_vary(part: Part, key: str) -> None:
    def change(number: int, spec: dict[str, Any]) -> dict[str, Any]:
        return {key: [{"channels": 8, "bias": True}, {"channels": 16, "bias": True}, None][number % 3]}

    labels = legend_of(part, change)
    assert labels == ["channels = 16, bias = True", "channels = 8, bias = True", "channels = default, bias = default"]

    def only_channels(number: int, spec: dict[str, Any]) -> dict[str, Any]:
        return {key: {"channels": [8, 16][number % 2], "bias": True}}

    assert legend_of(part, only_channels) == ["channels = 16", "channels = 8"]
    assert legend_of(part, only_channels, curve=key) == ["channels = 16", "channels = 8"]


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        ("model_arguments", [{"channels": 8}, {"channels": 16}], "model_arguments: channels = 16, channels = 8."),
        ("own_code", [{"nets:small": OLD}, {"nets:small": NEW}], "own_code: a file changed between them."),
    ],
)
def test_a_figure_of_the_paper_names_tables_that_differ_and_no_hash(
    make_world: Callable[..., Path], key: str, values: list[dict[str, Any]], words: str
) -> None:
    parts = [
        replace(
            part,
            rows=[{**row, "spec": {**row["spec"], key: values[number % 2]}} for number, row in enumerate(part.rows)],
        )
        for part in read_parts([make_world(paper_world, only=("rates", "strengths"))])
    ]
    assert build_report(parts, only=["1b"]).absent["1b"].endswith(words)


def test_epochs_are_an_axis_also_where_the_length_was_given_in_updates(part: Part) -> None:
    def change(number: int, spec: dict[str, Any]) -> dict[str, Any]:
        batches = spec["train_size"] // spec["batch_size"]
        return {"epochs": None, "updates": [2, 4][number % 2] * batches}

    rows = [{**row, "spec": {**row["spec"], **change(number, row["spec"])}} for number, row in enumerate(part.rows)]
    report = build_report([replace(with_figures(part, mine={"x": "epochs", "curve": "learning_rate"}), rows=rows)])
    (figure,) = report.figures
    assert {place for curve in figure.panels[0].curves for place in curve.x} == {2.0, 4.0}
    assert not any("updates" in curve.label for curve in figure.panels[0].curves)
