"""Runs that differ only in their seed → numbers with intervals: best k of n, optimum over a grid, collapse score."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = Mapping[str, Any]
Array = NDArray[np.float64]

DRAWS = 2000  # the 2.5 % quantile then rests on 50 draws: its own error is far below the interval's width
COVERAGE = 0.95
NORMAL = 1.960
# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom, from any table; then the normal one will do.
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
FEWEST_SCORED = 4  # fewer points than this say nothing about a collapse


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % bootstrap interval; low and high are NaN when the runs are too few to have one."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return self.text(3)

    def text(self, digits: int = 1) -> str:
        """`5.2 [4.1, 6.3]`, or the number alone when there is no interval."""
        number = f"{self.value:.{digits}f}"
        return number if math.isnan(self.low) else f"{number} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


# -- one grid point -------------------------------------------------------------------------------------------------
def group(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by the values of some spec keys, sorted by them: one entry per grid point."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row["spec"][key] for key in keys), []).append(row)
    return dict(sorted(found.items()))


def scores(rows: Sequence[Row], score: str) -> Array:
    """One number per run, by seed. A run that diverged before it was ever evaluated scored nothing: 0."""
    return np.array([0.0 if row[score] is None else float(row[score]) for row in by_seed(rows)])


def finite(rows: Sequence[Row], key: str) -> Array:
    """The key of every run that ended with a finite value, by seed; diverged runs have none."""
    kept = [row[key] for row in by_seed(rows) if row["status"] == "finished" and row[key] is not None]
    return np.array([float(value) for value in kept if math.isfinite(value)])


def by_seed(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["spec"]["seed"]))


def best_mean(values: Array, best: int | None = None) -> Array:
    """Mean of the highest `best` values along the last axis, of all of them when `best` is None.

    The paper gives the mean of the best 5 of 7 runs, so that one failed run does not decide a point.

    >>> float(best_mean(np.array([1.0, 9.0, 8.0]), 2))
    8.5
    """
    count = values.shape[-1]
    kept = count if best is None else min(best, count)
    return np.sort(values, axis=-1)[..., count - kept :].mean(axis=-1)


# -- many grid points, resampled together -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Ensemble:
    """One summary per grid point as observed, shape (points,), and as resampled, shape (draws, points).

    Any statistic of the points gets its interval by being applied to the resampled rows as well. `spread` is what the
    scatter of the draws is multiplied by because seeds are few; NaN when there is a single one and nothing to resample.
    """

    observed: Array
    draws: Array
    spread: float

    def interval(self, statistic: Callable[[Array], Array]) -> Interval:
        """The statistic and its interval; `statistic` maps (…, points) to (…) and changes smoothly with them.

        The interval has the spread of the draws and is centred on the observed value: resampling adds scatter to what
        the runs already have, which would push a sum of squares up and a best k of n down.
        """
        value = float(statistic(self.observed))
        drawn = statistic(self.draws)
        return self._quantiles(value, value + self.spread * (drawn - np.nanmean(drawn)))

    def place(self, statistic: Callable[[Array], Array]) -> Interval:
        """The same for a statistic that jumps, such as the place of a maximum: quantiles of its own values."""
        wide = self.observed + self.spread * (self.draws - self.observed)
        return self._quantiles(float(statistic(self.observed)), statistic(wide))

    def _quantiles(self, value: float, drawn: Array) -> Interval:
        if math.isnan(value) or math.isnan(self.spread):
            return Interval(value, math.nan, math.nan)
        tail = (1 - COVERAGE) / 2
        # Some draws may leave a statistic undefined (no variation to explain); they carry no information.
        low, high = np.nanquantile(drawn, [tail, 1 - tail])
        return Interval(value, float(low), float(high))

    def point(self, index: int) -> Interval:
        return self.interval(lambda y: y[..., index])

    def difference(self, minuend: int, subtrahend: int) -> Interval:
        return self.interval(lambda y: y[..., minuend] - y[..., subtrahend])


def ensemble(cells: Sequence[Array], *, best: int | None = None, draws: int = DRAWS, seed: int = 0) -> Ensemble:
    """Each cell holds the values of one grid point's runs in the order of their seeds.

    Seeds are resampled, not runs: every point uses the seeds that one draw picked, because a seed's initialisation
    makes its runs better or worse at all points together, and a difference between two points must not count that.
    """
    observed = np.array([float(best_mean(cell, best)) for cell in cells])
    drawn = np.empty((draws, len(cells)))
    for index, cell in enumerate(cells):
        count = len(cell)
        # The generator depends on the number of seeds alone, so the same seeds are picked for every point.
        picks = np.random.default_rng([seed, count]).integers(count, size=(draws, count))
        summaries = best_mean(cell[picks], best)
        drawn[:, index] = observed[index] + (summaries - summaries.mean())
    return Ensemble(observed, drawn, spread=max([few_seeds(len(cell)) for cell in cells], default=math.nan))


def side_by_side(*parts: Ensemble) -> Ensemble:
    """The points of several curves as one ensemble, for statistics that span them."""
    return Ensemble(
        np.concatenate([part.observed for part in parts]),
        np.concatenate([part.draws for part in parts], axis=1),
        spread=float(np.max([part.spread for part in parts])),
    )


def select(parts: Sequence[tuple[Ensemble, int]]) -> Ensemble:
    """Chosen points of several ensembles as one."""
    return Ensemble(
        np.array([part.observed[index] for part, index in parts]),
        np.stack([part.draws[:, index] for part, index in parts], axis=1),
        spread=float(np.max([part.spread for part, _ in parts])),
    )


def few_seeds(count: int) -> float:
    """Factor on the scatter of resampled summaries of `count` runs: √(n/(n−1)) · t(n−1)/t(∞); NaN for one run.

    The first factor undoes that runs scatter around their own mean; the second is Student's: with n runs the scatter
    itself is known to n−1 degrees of freedom only. Measured on normal scatter with a common seed effect (1500
    experiments, difference of two points): the best 5 of 7 cover the truth in 95 % of cases, the best 2 of 3 in 93 %;
    without Student's factor in 90 % and 78 %.
    """
    if count < 2:
        return math.nan
    student = STUDENT[count - 2] if count - 2 < len(STUDENT) else NORMAL
    return math.sqrt(count / (count - 1)) * student / NORMAL


@dataclass(frozen=True)
class Optimum:
    """Where on a grid the summary is highest (as log₂ of the grid's value), and how high."""

    index: int
    location: Interval
    score: Interval


def optimum(x: Sequence[float], points: Ensemble) -> Optimum:
    """The grid value with the highest summary. Its interval is that of the winner over the resampled grids."""
    exponents = np.log2(np.asarray(x, dtype=float))
    index = int(points.observed.argmax())
    return Optimum(
        index=index,
        location=points.place(lambda y: exponents[y.argmax(axis=-1)]),
        score=points.point(index),
    )


# -- collapse ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Collapse:
    """How well one variable, and a rival one, make several curves fall onto each other, on the same points.

    `score` is the share of the variation of y that a curve's points inherit from the *other* curves at equal x: 1 is
    a perfect collapse, 0 is no better than a constant, below 0 is worse. `gap` is the typical distance between a point
    and the other curves at equal x, in units of y.
    """

    score: Interval
    rival_score: Interval
    advantage: Interval
    gap: Interval
    rival_gap: Interval
    gap_ratio: Interval
    points: int


def collapse(points: Ensemble, curve: Sequence[Any], x: Sequence[float], rival: Sequence[float]) -> Collapse:
    """Compare two variables by how well each predicts a curve from the others.

    score = 1 − Σ(yᵢ − ŷᵢ)² / Σ(yᵢ − ȳ)²,  ŷᵢ = mean over the other curves, each read off at xᵢ (linear in log₂ x)

    Only points that other curves reach under both variables count, so both are judged on the same data. No curve is
    extrapolated.
    """
    weights, reached = other_curves(curve, x)
    rival_weights, rival_reached = other_curves(curve, rival)
    scored = reached & rival_reached
    if scored.sum() < FEWEST_SCORED:
        nothing = Interval(math.nan, math.nan, math.nan)
        return Collapse(nothing, nothing, nothing, nothing, nothing, nothing, points=int(scored.sum()))

    def missed(y: Array, by: Array) -> Array:
        return ((y - y @ by.T)[..., scored] ** 2).sum(axis=-1)

    def variation(y: Array) -> Array:
        kept = y[..., scored]
        total = ((kept - kept.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
        return np.where(total > 0, total, np.nan)

    def at_most_one(statistic: Callable[[Array], Array]) -> Interval:
        found = points.interval(statistic)
        return Interval(found.value, found.low, min(found.high, 1.0))

    def not_negative(statistic: Callable[[Array], Array]) -> Interval:
        found = points.interval(statistic)
        return Interval(found.value, max(found.low, 0.0), found.high)

    count = int(scored.sum())
    return Collapse(
        score=at_most_one(lambda y: 1 - missed(y, weights) / variation(y)),
        rival_score=at_most_one(lambda y: 1 - missed(y, rival_weights) / variation(y)),
        advantage=points.interval(lambda y: (missed(y, rival_weights) - missed(y, weights)) / variation(y)),
        gap=not_negative(lambda y: np.sqrt(missed(y, weights) / count)),
        rival_gap=not_negative(lambda y: np.sqrt(missed(y, rival_weights) / count)),
        gap_ratio=not_negative(lambda y: np.sqrt(missed(y, weights) / np.maximum(missed(y, rival_weights), 1e-30))),
        points=count,
    )


def other_curves(curve: Sequence[Any], x: Sequence[float]) -> tuple[Array, NDArray[np.bool_]]:
    """The matrix W with ŷ = W y, ŷᵢ read off the curves that i does not belong to, and which i any of them reaches.

    A matrix, because reading off is linear in y: the bootstrap is then one product.
    """
    exponents = np.log2(np.asarray(x, dtype=float))
    labels = list(curve)
    weights = np.zeros((len(labels), len(labels)))
    reached = np.zeros(len(labels), dtype=bool)
    members = {label: [i for i, other in enumerate(labels) if other == label] for label in dict.fromkeys(labels)}
    for target, label in enumerate(labels):
        readings = [
            reading
            for other, indices in members.items()
            if other != label and (reading := _read_off(exponents[target], exponents, indices)) is not None
        ]
        if readings:
            reached[target] = True
            for reading in readings:
                for index, weight in reading.items():
                    weights[target, index] += weight / len(readings)
    return weights, reached


def _read_off(at: float, exponents: Array, indices: list[int]) -> dict[int, float] | None:
    """Weights of linear interpolation at one place of one curve; None outside its range."""
    ordered = sorted(indices, key=lambda index: exponents[index])
    tolerance = 1e-9  # exponents of powers of two are exact; this forgives products such as 3 · 2^k
    for left, right in itertools.pairwise(ordered):
        if exponents[left] - tolerance <= at <= exponents[right] + tolerance:
            width = exponents[right] - exponents[left]
            share = min(max((at - exponents[left]) / width, 0.0), 1.0) if width > tolerance else 0.5
            return {left: 1 - share, right: share}
    if len(ordered) == 1 and abs(exponents[ordered[0]] - at) <= tolerance:
        return {ordered[0]: 1.0}
    return None
