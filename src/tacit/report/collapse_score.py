"""Collapse score: how well one variable makes several curves fall onto each other, with an interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.report.ensemble import Array, Ensemble, Interval

FEWEST_SCORED = 4  # fewer points than this say nothing about a collapse


@dataclass(frozen=True)
class Collapse:
    """How well one variable, and a rival one, make several curves fall onto each other, on the same points.

    `score` is the share of the total variation of the scored points, within and between curves, that the *other* curves
    predict at equal x: 1 is a perfect collapse, 0 is no better than a constant, below 0 is worse. `gap` is the typical
    distance between a point and the other curves at equal x, in units of y.
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

    # Points that are neither scored nor read off touch nothing: their runs must not widen the intervals.
    touched = scored | (weights[scored] + rival_weights[scored] > 0).any(axis=0)
    kept = np.flatnonzero(touched)
    points, scored = points.only(*kept), scored[kept]
    weights, rival_weights = weights[np.ix_(kept, kept)], rival_weights[np.ix_(kept, kept)]

    def missed(y: Array, by: Array) -> Array:
        return ((y - y @ by.T)[..., scored] ** 2).sum(axis=-1)

    def variation(y: Array) -> Array:
        seen = y[..., scored]
        total = ((seen - seen.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
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
