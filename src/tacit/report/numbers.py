"""Numbers with intervals at any level, and numbers made of them: sums, differences, ratios."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Array = NDArray[np.float64]

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A number and the ends of its interval; the ends are NaN when the runs are too few to have one."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return self.text(3)

    def text(self, digits: int = 1) -> str:
        """`5.2 [4.1, 6.3]`, or the number alone when there is no interval."""
        number, low, high = (_written(each, digits) for each in (self.value, self.low, self.high))
        return number if math.isnan(self.low) else f"{number} [{low}, {high}]"


def _written(value: float, digits: int) -> str:
    """
    >>> _written(-0.04, 1), _written(-1.26, 1), _written(math.inf, 1)
    ('0.0', '−1.3', '∞')
    """
    text = f"{value:.{digits}f}".replace("inf", "∞")
    return text.replace("-", "−") if float(text.replace("∞", "1")) else text.replace("-", "")


@dataclass(frozen=True)
class Number:
    """A number that scatters over `seeds` seeds; `ends(level)` are the ends of its interval at that level.

    `too_high` and `too_low` say by how much the value may be off on average because it was chosen as an extreme.
    """

    value: float
    ends: Callable[[float], tuple[float, float]]
    seeds: int
    too_high: float = 0.0
    too_low: float = 0.0

    def interval(self, level: float = LEVEL) -> Interval:
        return Interval(self.value, *self.ends(level))

    def scaled(self, factor: float) -> Number:
        """The same number in another unit, such as points instead of shares."""
        return combine((factor, self))


def unknown(value: float = math.nan) -> Number:
    """A number without an interval."""
    return Number(value, lambda level: (math.nan, math.nan), 0)


@cache
def student(level: float, freedom: float) -> float:
    """The quantile of Student's t that belongs to a two-sided interval; NaN without degrees of freedom."""
    return float(stdtrit(freedom, (1 + level) / 2)) if freedom > 0 else math.nan


# -- numbers made of numbers ------------------------------------------------------------------------------------------
def combine(*parts: tuple[float, Number]) -> Number:
    """Σ factor · number for numbers with independent errors.

    The distances from the value to each end add up as squares (Zou and Donner 2008, "MOVER"), which keeps intervals
    that are not symmetric, such as those of a maximum; what is too high on average adds up as it is.
    """
    value = sum(factor * number.value for factor, number in parts)
    too_high, too_low = 0.0, 0.0
    for factor, number in parts:
        too_high += factor * number.too_high if factor > 0 else -factor * number.too_low
        too_low += factor * number.too_low if factor > 0 else -factor * number.too_high

    def ends(level: float) -> tuple[float, float]:
        below, above = 0.0, 0.0
        for factor, number in parts:
            low, high = number.ends(level)
            down, up = number.value - number.too_high - low, high - number.value - number.too_low
            if factor < 0:
                down, up = up, down
            below, above = below + (factor * down) ** 2, above + (factor * up) ** 2
        return value - too_high - math.sqrt(below), value + too_low + math.sqrt(above)

    seeds = min((number.seeds for _, number in parts), default=0)
    return Number(value, ends, seeds, too_high, too_low)


def minus(minuend: Number, subtrahend: Number) -> Number:
    return combine((1.0, minuend), (-1.0, subtrahend))


RATIOS = np.linspace(-1.0, 4.0, 501)


def ratio(numerator: Callable[[float], Number], value: float, *, among: Array = RATIOS) -> Number:
    """A ratio r of two numbers by Fieller's argument: all r for which numerator(r) = top − r · bottom may be 0.

    `among` are the ratios tried; an interval that reaches the last of them has no upper end.
    """
    numbers = [numerator(float(r)) for r in among]

    def ends(level: float) -> tuple[float, float]:
        possible = []
        for r, number in zip(among, numbers, strict=True):
            low, high = number.ends(level)
            if math.isnan(low):
                return math.nan, math.nan
            if low <= 0 <= high:
                possible.append(float(r))
        if not possible:
            return value, math.inf if value >= among[-1] else value
        return possible[0], math.inf if possible[-1] == among[-1] else possible[-1]

    return Number(value, ends, numbers[0].seeds)
