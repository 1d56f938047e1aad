"""Numbers and facts as words: powers of two, per cent, lists."""

from __future__ import annotations

import math
import re

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


FRACTIONAL_POWER = re.compile("2([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]*·[⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
EXPONENT = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹·", "-0123456789.")
# Words and signs of stored texts, as a reader sees them.
READABLE = {
    "implicit regularizer C_reg": "implicit regularizer",
    "C_reg": "the implicit regularizer",
    "λ_opt": "λₒₚₜ",
    "ε_opt": "εₒₚₜ",
    " (root mean squares, without what noise adds)": "",
}


def readable(text: str) -> str:
    """A text for readers: no underscores in symbols, and numbers for powers of two that are no whole ones.

    >>> readable("C_reg changes by a factor 2⁻¹²·¹")
    'the implicit regularizer changes by a factor 0.00023'
    """
    for found, shown in READABLE.items():
        text = text.replace(found, shown)
    return FRACTIONAL_POWER.sub(lambda power: f"{2 ** float(power[1].translate(EXPONENT)):.2g}", text)
