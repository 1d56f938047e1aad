"""The grid points of a figure with their runs, and what is drawn of them: points, curves, panels."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np

from tacit.report import rules
from tacit.report.layout import Layout
from tacit.report.numbers import LEVEL, Array, Interval, student
from tacit.report.rows import Row, Spec, Variable, epochs_of
from tacit.report.scatter import Cell

Scale = Literal["log2", "symlog2", "linear", "percent"]


@dataclass(frozen=True)
class Score:
    """A run's number, None for a run that has none, and the limits that such a number can have."""

    of: Callable[[Row], float | None]
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class Points:
    """Runs grouped by everything but the seed, and one number of each run."""

    specs: tuple[Spec, ...]
    rows: tuple[tuple[Row, ...], ...]
    layout: Layout
    score: Score

    def where(self, **conditions: Any) -> list[int]:
        """The points whose spec has these values; a function as a value is a condition."""

        def holds(spec: Spec) -> bool:
            return all(
                wanted(spec[key]) if callable(wanted) else spec[key] == wanted for key, wanted in conditions.items()
            )

        return [index for index, spec in enumerate(self.specs) if holds(spec)]

    def x(self, variable: Variable) -> list[float]:
        """The variable's value at every point."""
        return [float(variable.of(spec)) for spec in self.specs]

    def ordered(self, indices: Sequence[int], variable: Variable) -> list[int]:
        return sorted(indices, key=lambda index: variable.of(self.specs[index]))

    def drawn(self, index: int, *, best: int | None) -> Interval:
        """A point with its error bar, which ends where a score of this kind ends."""
        found = error_bar(self.layout, index, best=best)
        low, high = (min(max(end, self.score.low), self.score.high) for end in (found.low, found.high))
        return found if math.isnan(found.low) else Interval(found.value, low, high)

    @cached_property
    def learned(self) -> tuple[bool, ...]:
        return rules.reaches(self.rows, rules.LEARNED)


def by_point(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each grid point: runs that differ in their seed alone."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        rest = {key: value for key, value in row["spec"].items() if key not in ("seed", "epochs", "updates")}
        # A length may be given in epochs or in updates: the same point either way.
        key = json.dumps([rest, f"{epochs_of(row):.6g}"], sort_keys=True, default=str)
        found.setdefault(key, []).append(row)
    return list(found.values())


def points_of(rows: Sequence[Row], score: Score) -> Points:
    """The grid points of some rows, in the order of their specs. Points where no run has a number are left out."""
    kept: list[tuple[tuple[Row, ...], Cell]] = []
    for runs in by_point(rows):
        scored = [(row, value) for row in runs if (value := score.of(row)) is not None]
        scored.sort(key=lambda pair: int(pair[0]["spec"]["seed"]))
        if scored:
            seeds = tuple(int(row["spec"]["seed"]) for row, _ in scored)
            kept.append((tuple(runs), Cell(seeds, np.array([value for _, value in scored], dtype=float))))
    grouped = tuple(runs for runs, _ in kept)
    made = Layout(tuple(cell for _, cell in kept), rules.reaches(grouped, rules.TRAINS))
    return Points(tuple(runs[0]["spec"] for runs in grouped), grouped, made, score)


def accuracy(key: str) -> Score:
    """A run that diverged before it was ever evaluated scored nothing: 0."""
    return Score(lambda row: 0.0 if row[key] is None else float(row[key]), 0.0, 1.0)


def log2_of(key: str) -> Score:
    """log₂ of a positive quantity at the end of training, so that means are geometric; diverged runs have none."""

    def of(row: Row) -> float | None:
        if row["status"] != "finished" or row[key] is None or not math.isfinite(row[key]):
            return None
        return math.log2(max(row[key], 2.0**-60))

    return Score(of)


# -- what is drawn ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Point:
    """One point of a curve: as drawn, the mean of all its runs, and each run with whether it is in the drawn mean."""

    x: float
    summary: Interval
    mean: Interval
    runs: tuple[tuple[float, bool], ...]
    diverged: int = 0
    counts: bool = True  # False: drawn pale, not part of the number that decides


@dataclass(frozen=True)
class Curve:
    label: str
    colour: str  # of `draw`: one colour, one meaning
    points: tuple[Point, ...]
    style: Literal["line", "dashed", "level"] = "line"
    traces: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = ()  # runs drawn as thin lines, not as points

    @property
    def x(self) -> list[float]:
        return [point.x for point in self.points]


@dataclass(frozen=True)
class Panel:
    """Curves on one pair of axes. `marks` are places on the x axis with words, such as the paper's own optimum."""

    curves: tuple[Curve, ...]
    x_label: str
    y_label: str
    x_scale: Scale = "log2"
    y_scale: Scale = "percent"
    marks: tuple[tuple[float, str], ...] = ()


def curve(
    points: Points,
    indices: Sequence[int],
    *,
    x: Variable,
    label: str,
    colour: str,
    best: int | None,
    style: Literal["line", "dashed"] = "line",
    counts: Sequence[bool] | None = None,
) -> Curve:
    """Points against a variable; `best` of the runs make the line (all of them if None)."""
    made = []
    for index in points.ordered(indices, x):
        values = points.layout.cells[index].values
        ranks = np.argsort(np.argsort(-values, kind="stable"), kind="stable")
        made.append(
            Point(
                x=float(x.of(points.specs[index])),
                summary=points.drawn(index, best=best),
                mean=points.drawn(index, best=None),
                runs=tuple(
                    (float(value), bool(rank < (best or len(values))))
                    for value, rank in zip(values, ranks, strict=True)
                ),
                diverged=sum(row["status"] != "finished" for row in points.rows[index]),
                counts=counts is None or counts[index],
            )
        )
    return Curve(label, colour, tuple(made), style)


def level(points: Points, index: int, over: Curve, *, label: str, best: int | None) -> Curve:
    """One point as a dotted level across another curve's range: the limit λ → 0."""
    height, mean = points.drawn(index, best=best), points.drawn(index, best=None)
    ends = tuple(Point(x, height, mean, ()) for x in (min(over.x), max(over.x)))
    return Curve(label, "baseline", ends, "level")


def best_mean(values: Array, best: int | None = None) -> float:
    """Mean of the highest `best` values, of all of them when `best` is None.

    The paper draws the mean of the best 5 of 7 runs, so that one failed run does not decide a point.

    >>> best_mean(np.array([1.0, 9.0, 8.0]), 2)
    8.5
    """
    kept = len(values) if best is None else min(best, len(values))
    return float(np.sort(values)[len(values) - kept :].mean())


@cache
def best_mean_variance(best: int, of: int) -> float:
    """The variance of the mean of the best k of n draws of a standard normal; 1/n when all are kept."""
    if best >= of:
        return 1 / of
    draws = np.sort(np.random.default_rng(0).standard_normal((100_000, of)), axis=1)
    return float(draws[:, of - best :].mean(axis=1).var())


def error_bar(points: Layout, index: int, *, best: int | None) -> Interval:
    """The mean of a point's best runs with a 95 % interval for comparison with other points of the figure.

    It has the scatter that is left after each seed's own effect, pooled over points that train: bars for
    comparisons within seeds (Loftus and Masson 1994).
    """
    cell = points.cells[index]
    value, kept = best_mean(cell.values, best), min(best or len(cell), len(cell))
    run_variances, known = points.variances
    if not known[index] >= 1:
        return Interval(value, math.nan, math.nan)
    error = math.sqrt(run_variances[index] * best_mean_variance(kept, len(cell)))
    width = error * student(LEVEL, float(known[index]))
    return Interval(value, value - width, value + width)
