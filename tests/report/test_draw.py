"""Pictures: what they leave out is said in them, and what they mark is in its place."""

from __future__ import annotations

import re

import pytest

from tacit.report.draw import colour, draw_panel, x_axis
from tacit.report.gauge import gauge
from tacit.report.numbers import Interval, Number
from tacit.report.points import Curve, Panel, Point
from tacit.report.verdict import Criterion


def panel_of(*accuracies: list[float], x: list[float] | None = None, curves: int = 1, **more: object) -> Panel:
    """A panel with one point per list of runs, the same on each curve."""
    points = []
    for number, runs in enumerate(accuracies):
        summary = Interval(sum(runs) / len(runs), min(runs), max(runs))
        points.append(Point(x[number] if x else 2.0**number, summary, summary, tuple((run, True) for run in runs)))
    made = tuple(Curve(f"curve {number}", "rate", tuple(points)) for number in range(curves))
    return Panel(made, "ε", "test accuracy", **more)  # type: ignore[arg-type]


def words(panel: Panel) -> list[str]:
    return re.findall(r">([^<>]+)</text>", "".join(draw_panel(panel, prefix="x")))


def test_points_that_fell_apart_do_not_flatten_the_others_and_are_told_of() -> None:
    found = words(panel_of([0.82, 0.83], [0.83, 0.84], [0.84, 0.85], [0.10, 0.12]))
    assert "↓ 1 point below" in found
    assert "0" not in found  # no tick down there
    assert "84" in found


def test_a_run_that_diverged_at_once_is_told_of() -> None:
    found = words(panel_of([0.82, 0.83], [0.83, 0.84], [0.84, 0.85, 0.84, 0.0], [0.83, 0.84], [0.82, 0.83]))
    assert any("below" in word for word in found)


def test_without_such_points_the_axis_holds_every_run_and_nothing_is_said() -> None:
    assert not any("below" in word for word in words(panel_of([0.82, 0.83], [0.83, 0.84], [0.81, 0.82])))


def test_two_curves_have_bands_and_three_have_bars() -> None:
    runs = [[0.5, 0.6], [0.55, 0.65]]
    two, three = ("".join(draw_panel(panel_of(*runs, curves=count), prefix="x")) for count in (2, 3))
    assert ('class="band"' in two, 'class="bar"' in two) == (True, False)
    assert ('class="band"' in three, 'class="bar"' in three) == (False, True)


def test_zero_has_a_place_of_its_own_left_of_the_powers_of_two() -> None:
    panel = panel_of([0.5, 0.6], [0.6, 0.7], [0.55, 0.6], x=[0.0, 0.25, 0.5], x_scale="symlog2")
    axis = x_axis(panel)
    assert [label for _, label in axis.ticks] == ["0", "2⁻²", "2⁻¹"]
    assert axis(0.25) - axis(0.0) > axis(0.5) - axis(0.25)


def test_the_papers_optimum_is_marked_where_the_axis_has_it() -> None:
    panel = panel_of([0.5, 0.6], [0.6, 0.7], x=[2**-7, 2**-5], marks=((2.0**-6, "paper’s best"), (2.0**3, "beyond")))
    found = words(panel)
    assert "paper’s best 2⁻⁶" in found
    assert not any("beyond" in word for word in found)


@pytest.mark.parametrize(("kind", "first"), [("batch", 3), ("steps", 0)])
def test_neighbours_on_a_scale_have_different_colours(kind: str, first: int) -> None:
    colours = (
        [colour(f"{kind}{2**k}") for k in range(3, 8)]
        if kind == "batch"
        else [colour(f"steps{2**k}") for k in range(5)]
    )
    assert len(set(colours)) == 5


def test_a_gauge_shows_the_interval_and_the_papers_number() -> None:
    number = Number(2.0, lambda level: (1.0, 3.0), 3)
    drawn = gauge(Criterion(number, "points", "above", 0.5, paper=4.7))
    assert drawn.count('class="reach') == 1
    assert 'class="theirs"' in drawn
    assert 'class="theirs"' not in gauge(Criterion(number, "points", "above", 0.5))
    assert gauge(Criterion(number, "points", "within", 0.5)).count('class="reach') == 2  # 95 % and 90 %
