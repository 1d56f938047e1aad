"""Numbers and facts as words: powers of two, per cent, lists."""

from __future__ import annotations

import math

SUPERSCRIPTS = str.maketrans("-0123456789.", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹·")


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
    """
    >>> exponent_text(-3), exponent_text(0.5)
    ('2⁻³', '2⁰·⁵')
    """
    return "2" + f"{exponent:g}".translate(SUPERSCRIPTS)


def percent(value: float) -> str:
    """
    >>> percent(0.7081)
    '70.8 %'
    """
    return f"{100 * value:.1f} %"
