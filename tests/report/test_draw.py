"""Pictures: what they leave out is said in them."""

from __future__ import annotations

from matplotlib.figure import Figure as Canvas

from tacit.report.draw import draw_panel
from tacit.report.numbers import Interval
from tacit.report.points import Curve, Panel, Point


def drawn(*accuracies: list[float]) -> tuple[tuple[float, float], str]:
    """The y axis of a panel with one point per list of runs, and all its words."""
    points = []
    for number, runs in enumerate(accuracies):
        summary = Interval(sum(runs) / len(runs), min(runs), max(runs))
        points.append(Point(2.0**number, summary, summary, tuple((run, True) for run in runs)))
    axis = Canvas().add_subplot()
    draw_panel(axis, Panel((Curve("runs", "rate", tuple(points)),), "ε", "test accuracy"), prefix="x")
    return axis.get_ylim(), " ".join(text.get_text() for text in axis.texts)


def test_runs_that_diverged_at_once_do_not_flatten_the_others_and_are_told_of() -> None:
    (low, high), words = drawn([0.82, 0.83], [0.83, 0.84], [0.82, 0.0])
    assert 80 < low < 82
    assert 84 < high < 86
    assert "1 run diverged" in words


def test_without_lost_runs_the_axis_holds_every_run_and_nothing_is_said() -> None:
    (low, high), words = drawn([0.82, 0.83], [0.83, 0.84], [0.82, 0.11])
    assert low < 11
    assert high > 84
    assert words == ""
