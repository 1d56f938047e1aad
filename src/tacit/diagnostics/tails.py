"""How heavy the tail of the per-example gradient norms is: Hill's estimate."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from tacit.diagnostics.estimates import Estimate

FEWEST = 50  # norms; below, the largest √n of them say nothing


def tail_index(norms: np.ndarray, *, confidence: float = 0.95) -> Estimate | None:
    """α in P(‖∇Cⱼ‖ > x) ~ x^−α, from the k = √n largest norms; None for fewer than 50 positive ones.

    α = k / Σᵢ log(x₍ᵢ₎/x₍ₖ₊₁₎). For exact power tails the sum is Gamma(k, 1/α), which gives the interval. Γ is a mean
    of squared norms: α <= 2 would mean that it does not settle as examples are added (the paper warns, section 3),
    α <= 4 that its interval is too optimistic. It describes the population behind the examples, so it has an
    interval even when all examples are seen. Light tails give large, unstable values: read them as "not heavy".

    >>> draws = (1 - np.arange(1, 10_000) / 10_000) ** (-1 / 3)  # the quantiles of a tail with index 3
    >>> found = tail_index(draws)
    >>> found.low < 3 < found.high
    True
    """
    positive = np.sort(norms[norms > 0])[::-1]
    if len(positive) < FEWEST:
        return None
    k = math.isqrt(len(positive))
    total = float(np.log(positive[:k] / positive[k]).sum())
    if total == 0:  # all the largest norms are equal: no tail at all
        return Estimate(math.inf, math.inf, math.inf)
    low, high = stats.chi2.ppf([(1 - confidence) / 2, (1 + confidence) / 2], 2 * k) / 2
    return Estimate(k / total, float(low) / total, float(high) / total)
