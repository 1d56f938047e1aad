"""From the gradients of sampled examples to unbiased estimates with intervals.

n of N examples are drawn without replacement. Their gradients gⱼ have mean ḡ and variance V = Σⱼ‖gⱼ − ḡ‖²/(n−1). Then

    Γ          is estimated by (N−1)/N · V                     (population form, 1/N)
    ‖∇C‖²      by  ‖ḡ‖² − (1/n − 1/N) V                        (the variance of ḡ taken off)
    C_reg(B)   by (‖∇C‖² + (1/B − 1/N) V) / 4                  (Eq. 22: (N−B)/(N−1) Γ/B = (1/B − 1/N) V)

all without bias. Intervals are Student intervals around them with the jackknife's standard error, times √(1 − n/N): at
n = N nothing is left to chance. Γ is treated on a logarithmic scale, where the errors of a variance are less skewed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

Array = np.ndarray


@dataclass(frozen=True)
class Estimate:
    """A number and the interval that covers the true one; low = high = value when nothing was sampled."""

    value: float
    low: float
    high: float

    @property
    def exact(self) -> bool:
        return self.low == self.high

    def scaled(self, factor: float) -> Estimate:
        """The estimate of factor times the quantity, for a positive factor."""
        return Estimate(factor * self.value, factor * self.low, factor * self.high)

    def between(self, low: float, high: float) -> Estimate:
        """The estimate of a quantity that has these bounds: number and ends are cut there; NaN stays."""
        return Estimate(*[min(max(number, low), high) for number in (self.value, self.low, self.high)])

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "no number from this sample"
        value, low, high = (f"{each:.4g}".replace("inf", "∞") for each in (self.value, self.low, self.high))
        return value if self.exact else f"{value} [{low}, {high}]"


@dataclass(frozen=True)
class SampleMoments:
    """What the sampled gradients leave behind: ‖m‖² of their mean m, V, and for each example ‖gⱼ−ḡ‖² and ⟨gⱼ−ḡ, m⟩.

    m is ḡ, plus μω with weight decay μ. The last two are None when all examples were seen and no interval is needed.
    """

    sample: int
    train_size: int
    mean_squared_norm: float
    variance: float
    spreads: Array | None = None
    projections: Array | None = None

    @property
    def exact(self) -> bool:
        return self.sample == self.train_size


Statistic = Callable[[Array, Array], Array]
"""A function of (‖∇C‖², V)."""


def gradient_squared_norm(squared_norm: Array, variance: Array) -> Array:
    return squared_norm


def point(moments: SampleMoments) -> tuple[float, float]:
    """(‖∇C‖², V), both unbiased."""
    shrink = 1 / moments.sample - 1 / moments.train_size
    return moments.mean_squared_norm - shrink * moments.variance, moments.variance


def leave_one_out(moments: SampleMoments) -> tuple[Array, Array]:
    """The same from the sample without example j, for every j."""
    assert moments.spreads is not None
    assert moments.projections is not None
    rest = moments.sample - 1
    means = moments.mean_squared_norm - 2 * moments.projections / rest + moments.spreads / rest**2
    sums = rest * moments.variance - moments.spreads * moments.sample / rest
    variances = np.maximum(sums, 0.0) / (rest - 1)
    return means - (1 / rest - 1 / moments.train_size) * variances, variances


def estimate(
    moments: SampleMoments,
    statistic: Statistic,
    *,
    confidence: float = 0.95,
    logarithmic: bool = False,
    floor: float = 0.0,
) -> Estimate:
    """A statistic with its jackknife interval, cut off at `floor`: none of the quantities here is negative.

    Where a sample is too small for the statistic, with all its examples or without one of them, the interval is open.
    """
    value = float(statistic(*[np.asarray(number) for number in point(moments)]))
    if moments.exact:
        return Estimate(value, value, value)
    left_out = statistic(*leave_one_out(moments))
    if logarithmic and value > 0 and bool((left_out > 0).all()):
        half = half_width(np.log(left_out), moments, confidence)
        return Estimate(value, value * math.exp(-half), value * math.exp(half))
    half = half_width(left_out, moments, confidence)
    if math.isnan(value) or math.isnan(half):
        return Estimate(value, floor, math.inf)
    return Estimate(value, max(floor, value - half), max(floor, value + half))


def half_width(left_out: Array, moments: SampleMoments, confidence: float) -> float:
    """Student's quantile times the jackknife's standard error, with the finite-population factor."""
    n = moments.sample
    variance = (n - 1) / n * np.square(left_out - left_out.mean()).sum() * (1 - n / moments.train_size)
    return float(stats.t.ppf(0.5 + confidence / 2, n - 1) * math.sqrt(variance))


def mean_estimate(values: Array, *, train_size: int, confidence: float = 0.95) -> Estimate:
    """The mean over all N examples from n of them, with Student's interval and the finite-population factor."""
    n, mean = len(values), float(values.mean())
    if n == train_size or n < 2:
        return Estimate(mean, mean, mean)
    error = math.sqrt(values.var(ddof=1) / n * (1 - n / train_size))
    half = float(stats.t.ppf(0.5 + confidence / 2, n - 1)) * error
    return Estimate(mean, mean - half, mean + half)


def regularizer_statistic(batch_size: int, train_size: int) -> Statistic:
    """C_reg(B) = (‖∇C‖² + (N−B)/(N−1) Γ/B)/4                                                             (Eq. 22)"""
    factor = 1 / batch_size - 1 / train_size
    return lambda squared_norm, variance: (squared_norm + factor * variance) / 4


def covariance_statistic(train_size: int) -> Statistic:
    """Γ, population form."""
    return lambda squared_norm, variance: (train_size - 1) / train_size * variance


def signal_statistic(train_size: int) -> Statistic:
    """‖∇C‖²/Γ, one over the noise scale: unlike the noise scale it has an interval also where ‖∇C‖² may be zero."""
    gamma = covariance_statistic(train_size)
    return lambda squared_norm, variance: squared_norm / np.maximum(gamma(squared_norm, variance), 1e-300)


def inverse(signal: Estimate) -> Estimate:
    """One over a quantity that may be zero: the upper end is then infinite."""

    def over(number: float) -> float:
        return 1 / number if number > 0 else math.inf

    return Estimate(over(signal.value), over(signal.high), over(signal.low))
