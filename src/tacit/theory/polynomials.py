"""Exact polynomials in the step number s (or in a ratio), and the two sums over steps that methods with memory need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


class Polynomial:
    """Σ c_a s^a with exact coefficients (fractions or sympy expressions)."""

    def __init__(self, coefficients: Sequence[Any]) -> None:
        kept = list(coefficients)
        while kept and kept[-1] == 0:
            kept.pop()
        self.coefficients = kept

    def coefficient(self, power: int) -> Any:
        return self.coefficients[power] if power < len(self.coefficients) else 0

    def __add__(self, other: Any) -> Polynomial:
        other = other if isinstance(other, Polynomial) else Polynomial([other])
        length = max(len(self.coefficients), len(other.coefficients))
        return Polynomial([self.coefficient(a) + other.coefficient(a) for a in range(length)])

    __radd__ = __add__

    def __mul__(self, other: Any) -> Polynomial:
        if not isinstance(other, Polynomial):
            return Polynomial([c * other for c in self.coefficients])
        product = [0] * (len(self.coefficients) + len(other.coefficients))
        for a, left in enumerate(self.coefficients):
            for b, right in enumerate(other.coefficients):
                product[a + b] = product[a + b] + left * right
        return Polynomial(product)

    __rmul__ = __mul__

    def __truediv__(self, number: int) -> Polynomial:
        from fractions import Fraction

        return (
            self * Fraction(1, number)
            if _exact(self.coefficients)
            else Polynomial([c / number for c in self.coefficients])
        )

    def __eq__(self, other: object) -> bool:
        return self.coefficients == (
            other.coefficients if isinstance(other, Polynomial) else Polynomial([other]).coefficients
        )

    def __hash__(self) -> int:
        return hash(tuple(self.coefficients))


def running_sum(increment: Polynomial) -> Polynomial:
    """P with P(s+1) − P(s) = increment(s) and P(0) = 0."""
    degree = len(increment.coefficients)
    found: list[Any] = [0] * (degree + 1)
    for a in reversed(range(degree)):
        above = sum(math.comb(b, a) * found[b] for b in range(a + 2, degree + 1))
        found[a + 1] = _ratio(increment.coefficient(a) - above, a + 1)
    return Polynomial(found)


def discounted_sum(force: Polynomial, keep: Any) -> Polynomial:
    """Q with Q(s) = keep·Q(s−1) + force(s): Σᵢ keepⁱ force(s−i), its start long forgotten."""
    degree = len(force.coefficients) - 1
    found: list[Any] = [0] * (degree + 1)
    for a in reversed(range(degree + 1)):
        above = sum(math.comb(b, a) * (-1) ** (b - a) * found[b] for b in range(a + 1, degree + 1))
        found[a] = _ratio(force.coefficient(a) + keep * above, 1 - keep)
    return Polynomial(found)


def _exact(values: Sequence[Any]) -> bool:
    from fractions import Fraction

    return all(isinstance(value, (int, Fraction)) for value in values)


def _ratio(above: Any, below: Any) -> Any:
    from fractions import Fraction

    return Fraction(above) / below if _exact([above, below]) else above / below
