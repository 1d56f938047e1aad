"""How far several curves lie apart at equal values of a variable, beside how far at equal values of a rival."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.report.layout import Layout
from tacit.report.numbers import Array, Number, ratio, student, unknown

FEWEST_SCORED = 4  # fewer points than this say nothing about a collapse
RATIOS = np.linspace(0.0, 3.0, 301)  # a variable that leaves three times the rival's distance is decided enough


@dataclass(frozen=True)
class Collapse:
    """`gap` is the typical distance between a point and the other curves at equal x, in units of y, `rival_gap` that at
    equal values of the rival, `ratio` the first over the second: 0 is a perfect collapse.
    """

    ratio: Number
    gap: float
    rival_gap: float
    points: int


def collapse(
    layout: Layout, chosen: Sequence[int], *, curve: Sequence[Any], x: Sequence[float], rival: Sequence[float]
) -> Collapse:
    """Compare two variables by how far each leaves a curve from the others.

    gap² = (1/P) Σ(μᵢ − μ̂ᵢ)²,  μ̂ᵢ = mean over the other curves, each read off at xᵢ (linear in log₂ x)

    μ are true heights: what the scatter of the runs adds to a sum of squares is taken away. Only points that other
    curves reach under both variables count, so both are judged on the same points. No curve is extrapolated.
    """
    weights, reached = other_curves(curve, x)
    rival_weights, rival_reached = other_curves(curve, rival)
    scored = reached & rival_reached
    count = int(scored.sum())
    if count < FEWEST_SCORED:
        return Collapse(unknown(), math.nan, math.nan, 0)
    means, variances = layout.means[list(chosen)], np.array([layout.error(index) ** 2 for index in chosen])
    here, there = (((np.eye(len(means)) - by)[scored]) for by in (weights, rival_weights))
    form, rival_form = here.T @ here, there.T @ there

    def squares(matrix: Array) -> Number:
        return quadratic_form(matrix, means, variances, freedom=layout.freedom, seeds=layout.seeds)

    near, far = (max(squares(matrix).value, 0.0) for matrix in (form, rival_form))
    most = float(RATIOS[-1])
    value = min(math.sqrt(near / far), most) if far > 0 else most if near > 0 else math.nan
    # All ratios r for which Σ(distance at equal x)² − r² Σ(distance at equal rival)² may be 0.
    found = ratio(lambda r: squares(form - r * r * rival_form), value, among=RATIOS)
    return Collapse(found, math.sqrt(near / count), math.sqrt(far / count), count)


def quadratic_form(matrix: Array, means: Array, variances: Array, *, freedom: int, seeds: int) -> Number:
    """μᵀMμ for heights known with independent errors: the unbiased value, and an interval from its variance.

    E[yᵀMy] = μᵀMμ + tr(MΣ),   var[yᵀMy] = 4 μᵀMΣMμ + 2 tr(MΣMΣ)

    Σ is known to `freedom` degrees of freedom, so taking tr(MΣ) away adds a variance of 2 tr(MΣ)²/freedom. `matrix`
    must give 0 for equal heights, so that the seeds' own effects cancel.
    """
    noise = matrix * variances  # MΣ
    value = float(means @ matrix @ means - np.trace(noise))
    both = float(np.trace(noise @ noise))
    pushed = matrix @ means
    # Too large by tr(MΣMΣ) on average, which is kept: without it, intervals cover 92 % instead of 94.
    signal = float(pushed @ (variances * pushed))
    error = math.sqrt(4 * signal + 2 * both + 2 * float(np.trace(noise)) ** 2 / max(freedom, 1))

    def ends(level: float) -> tuple[float, float]:
        width = error * student(level, freedom)
        return value - width, value + width

    return Number(value, ends, seeds)


def other_curves(curve: Sequence[Any], x: Sequence[float]) -> tuple[Array, NDArray[np.bool_]]:
    """The matrix W with ŷ = W y, ŷᵢ read off the curves that i does not belong to, and which i any of them reaches."""
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
