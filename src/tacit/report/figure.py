"""What a figure is before it is drawn: panels of curves, each curve a line, a band and the runs as points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tacit.report.ensemble import Array, Cell, Ensemble, Interval, Row, ensemble, finite_cell, score_cell
from tacit.report.selection import Source, learned
from tacit.report.verdict import Verdict

if TYPE_CHECKING:
    from tacit.report.settings import Setting

Scale = Literal["log2", "linear", "percent"]
SUPERSCRIPTS = str.maketrans("-0123456789.", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹·")


@dataclass(frozen=True)
class Point:
    """One grid point of a curve: its summary, the mean of all its runs, and each run with whether it counts."""

    x: float
    summary: Interval
    mean: Interval
    runs: tuple[tuple[float, bool], ...]
    diverged: int = 0
    counts: bool = True  # False: drawn pale, not part of the number that decides


@dataclass(frozen=True)
class Curve:
    label: str
    colour: str  # a key of draw.COLOURS: one colour, one meaning
    points: tuple[Point, ...]
    style: Literal["line", "dashed", "level"] = "line"
    ensemble: Ensemble | None = field(default=None, compare=False, repr=False)
    traces: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = ()  # runs drawn as thin lines, not as points

    @property
    def x(self) -> list[float]:
        return [point.x for point in self.points]

    @property
    def drawn(self) -> Ensemble:
        """The points as observed and resampled."""
        assert self.ensemble is not None, f"the curve {self.label!r} is a level: it has no runs of its own"
        return self.ensemble


@dataclass(frozen=True)
class Panel:
    curves: tuple[Curve, ...]
    x_label: str
    y_label: str
    x_scale: Scale = "log2"
    y_scale: Scale = "percent"
    title: str = ""


@dataclass(frozen=True)
class Figure:
    """One figure of the report. `verdict` is None for a figure that a study defines without a claim."""

    id: str
    title: str
    panels: tuple[Panel, ...]
    verdict: Verdict | None
    caption: str
    runs: int
    diverged: int
    settings: tuple[Setting, ...] = ()  # of its runs, beside the paper's

    @property
    def name(self) -> str:
        """What it is called: "Figure 1b"; one that the paper has no number for, by its id."""
        return f"Figure {self.id}" if self.id[:1].isdigit() else self.id.capitalize()


def make_points(
    cells: Sequence[tuple[float, Sequence[Row]]],
    *,
    score: str,
    best: int | None,
    only_finite: bool = False,
    transform: Callable[[Array], Array] | None = None,
) -> tuple[tuple[Point, ...], Ensemble]:
    """Points of one curve and their ensemble, for (x, runs) pairs.

    `only_finite` leaves diverged runs out instead of scoring them; `transform` is applied to each run's value first
    (log₂ for quantities that span decades, so that means are geometric).
    """
    kept: list[tuple[float, Sequence[Row], Cell]] = []
    for x, rows in cells:
        cell = finite_cell(rows, score) if only_finite else score_cell(rows, score)
        if len(cell):
            kept.append((x, rows, cell.mapped(transform)))
    if not kept:
        return (), ensemble([])
    summary = ensemble([cell for _, _, cell in kept], best=best)
    mean = ensemble([cell for _, _, cell in kept], best=None)
    points = []
    for index, (x, rows, cell) in enumerate(kept):
        values = cell.values
        ranks = np.argsort(np.argsort(-values, kind="stable"), kind="stable")
        counted = len(values) if best is None else best
        points.append(
            Point(
                x=float(x),
                summary=summary.point(index) if transform else share(summary.point(index)),
                mean=mean.point(index) if transform else share(mean.point(index)),
                runs=tuple((float(value), bool(rank < counted)) for value, rank in zip(values, ranks, strict=True)),
                diverged=sum(row["status"] != "finished" for row in rows),
                counts=learned(rows),
            )
        )
    return tuple(points), summary


def share(number: Interval) -> Interval:
    """An accuracy with the ends of its interval kept to what a share can be."""
    low, high = (min(max(end, 0.0), 1.0) if math.isfinite(end) else end for end in (number.low, number.high))
    return Interval(number.value, low, high)


def score_curve(
    source: Source,
    rows: Sequence[Row],
    *,
    x: Callable[[Any], float],
    label: str,
    colour: str,
    score: str | None = None,
    style: Literal["line", "dashed"] = "line",
) -> Curve:
    """Accuracy against x: the line is the mean of the best k of n runs."""
    points, summary = make_points(cells_by(rows, x), score=score or source.score, best=source.best)
    return Curve(label, colour, points, style, summary)


def log_curve(rows: Sequence[Row], key: str, *, x: Callable[[Any], float], label: str, colour: str) -> Curve:
    """log₂ of a positive quantity at the end of training against x: geometric means of all runs that ended finite."""
    points, summary = make_points(
        cells_by(rows, x), score=key, best=None, only_finite=True, transform=lambda v: np.log2(np.maximum(v, 2.0**-60))
    )
    return Curve(label, colour, points, "line", summary)


def cells_by(rows: Sequence[Row], x: Callable[[Any], float]) -> list[tuple[float, list[Row]]]:
    """The runs by their x, sorted."""
    found: dict[float, list[Row]] = {}
    for row in rows:
        found.setdefault(float(x(row["spec"])), []).append(row)
    return sorted(found.items())


def all_count(curve: Curve) -> Curve:
    """The curve with every point counting: for figures whose number uses all of them."""
    return replace(curve, points=tuple(replace(point, counts=True) for point in curve.points))


def relocated(curve: Curve, x: Callable[[float], float]) -> Curve:
    """The same curve against another variable."""
    return replace(curve, points=tuple(replace(point, x=x(point.x)) for point in curve.points))


def caption(source: Source, rows: Sequence[Row], *, says: str, pale: bool = False, lines: bool = False) -> str:
    """What is drawn, how many runs, which were left out."""
    diverged = sum(row["status"] != "finished" for row in rows)
    left_out = sum(max(0, len(cell) - source.best) for cell in _cells(rows))
    runs = f"{len(rows)} runs, {seeds_text(rows)} per point{protocol_text(rows)}."
    if lines:
        means = "Thick lines are means of all runs, bands their 95 % bootstrap intervals, thin lines single runs."
    else:
        hollow = f"The {left_out} runs left out of those means are drawn hollow." if left_out else "No run is left out."
        means = (
            f"Points are runs; lines are means of the best {source.best} of {source.of} by highest test accuracy, "
            f"bands their 95 % bootstrap intervals. {hollow}"
        )
    failed = f" {diverged} runs diverged and count with what they reached before." if diverged else " No run diverged."
    faint = " Pale points end below 90 % training accuracy and do not count in the number." if pale else ""
    return f"{says} {runs} {means}{failed}{faint}"


def seeds_text(rows: Sequence[Row]) -> str:
    """How many seeds a point has: a range when points differ, as in unfinished studies."""
    counts = [len(cell) for cell in _cells(rows)] or [0]
    fewest, most = min(counts), max(counts)
    return f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"


PROTOCOL = {
    ("schedule", "constant"): "constant rate",
    ("schedule", "paper_decay"): "rate constant for half of the run, then halved every tenth",
    ("order", "shuffled"): "shuffled every epoch",
    ("weight_decay", 0.0): "no weight decay",
}


def protocol_text(rows: Sequence[Row]) -> str:
    """What all runs have in common, as far as it has words here."""
    words = [said for (key, value), said in PROTOCOL.items() if rows and all(row["spec"][key] == value for row in rows)]
    return f" ({', '.join(words)})" if words else ""


def _cells(rows: Sequence[Row]) -> list[list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(value for key, value in sorted(row["spec"].items()) if key != "seed"), []).append(row)
    return list(found.values())


def power(value: float) -> str:
    """A value as a power of two: 2⁻³; other values as they are.

    >>> power(0.125)
    '2⁻³'
    """
    if value <= 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = math.log2(value)
    return exponent_text(round(exponent)) if abs(exponent - round(exponent)) < 1e-9 else f"{value:.3g}"


def exponent_text(exponent: float) -> str:
    return "2" + f"{exponent:g}".translate(SUPERSCRIPTS)


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"
