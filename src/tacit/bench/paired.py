"""The median of what was seen in pairs, such as ratios of two times, and an interval that assumes no distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

ONE_IN = 40  # either end of the interval misses with at most this chance: 95 % together


def median_with_interval(values: Sequence[float]) -> tuple[float, list[float] | None]:
    """The sample's median, and the two order statistics that enclose the distribution's with at least 95 %.

    P(x₍ₖ₎ ≤ m ≤ x₍ₙ₊₁₋ₖ₎) ≥ 1 − 2 P(Bin(n, ½) < k)

    for the largest k that leaves 95 %. It asks for independent rounds, which a machine that slows down for a minute
    does not give. Below six values there is none: even the smallest and the largest enclose m less often.
    """
    ranked, count = sorted(values), len(values)
    middle = (ranked[(count - 1) // 2] + ranked[count // 2]) / 2
    k = missed = 0  # `missed` of the 2ⁿ ways to fall below or above m put fewer than k values below it
    while ONE_IN * (missed + math.comb(count, k)) <= 2**count:
        missed += math.comb(count, k)
        k += 1
    return middle, [ranked[k - 1], ranked[count - k]] if k else None
