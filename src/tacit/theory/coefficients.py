"""Exact coefficients as text and as LaTeX: fractions, rational functions of β, and powers of ρ."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

VULGAR = {Fraction(1, 2): "½", Fraction(1, 3): "⅓", Fraction(2, 3): "⅔", Fraction(1, 4): "¼", Fraction(3, 4): "¾",
          Fraction(1, 5): "⅕", Fraction(1, 6): "⅙", Fraction(5, 6): "⅚", Fraction(1, 8): "⅛"}  # fmt: skip
MOMENTUM, RADIUS = "β", "ρ"
LATEX_NAMES = {MOMENTUM: r"\beta", RADIUS: r"\rho"}


def superscript(power: int) -> str:
    """² for 2, and nothing for 1.

    >>> superscript(1), superscript(12)
    ('', '¹²')
    """
    return "" if power == 1 else "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(power))


def is_negative(coefficient: Any) -> bool:
    if isinstance(coefficient, Fraction):
        return coefficient < 0
    import sympy

    numerator = sympy.expand(_parts(coefficient)[0])
    # The sign for a small β or ρ: that of the lowest power.
    symbols = sorted(numerator.free_symbols, key=str)
    lowest = sympy.Poly(numerator, *symbols).terms()[-1][1] if symbols else numerator
    return bool(lowest < 0)


def text_of(coefficient: Any) -> str:
    """The size of a coefficient as text, nothing for 1.

    >>> text_of(Fraction(-1, 2)), text_of(Fraction(1)), text_of(Fraction(7, 12))
    ('½', '', '7/12')
    """
    if isinstance(coefficient, Fraction):
        size = abs(coefficient)
        return "" if size == 1 else VULGAR.get(size, str(size))
    above, number, power, radius = _parts(-coefficient if is_negative(coefficient) else coefficient)
    tail = RADIUS + superscript(radius) if radius else ""
    if power == 0 and above.is_number:
        return f"{text_of(Fraction(int(above), number))} {tail}".strip()
    top = str(above) if above.is_number else f"({_polynomial(above)})"
    below = (f"{number}" if number != 1 else "") + (f"(1−{MOMENTUM}){superscript(power)}" if power else "")
    bracketed = f"({below})" if number != 1 and power else below
    return f"{top}/{bracketed} {tail}".strip() if below else f"{top} {tail}".strip()


def latex_of(coefficient: Any) -> str:
    """The same as LaTeX."""
    if isinstance(coefficient, Fraction):
        size = abs(coefficient)
        if size.denominator == 1:
            return "" if size == 1 else str(size)
        return rf"\frac{{{size.numerator}}}{{{size.denominator}}}"
    import sympy

    above, number, power, radius = _parts(-coefficient if is_negative(coefficient) else coefficient)
    tail = rf"\rho{_latex_power(radius)}" if radius else ""
    below = (str(number) if number != 1 else "") + (rf"(1-\beta){_latex_power(power)}" if power else "")
    below = r"1-\beta" if (number, power) == (1, 1) else below
    if not below:
        return ("" if above == 1 else _renamed(sympy.latex(above))) + tail
    return rf"\frac{{{_renamed(sympy.latex(above))}}}{{{below}}}{tail}"


def joined(terms: list[tuple[bool, str]], *, minus: str) -> str:
    """Signed terms as a sum: 0 when there are none."""
    if not terms:
        return "0"
    words = [f"{minus if negative else '+'} {text}" for negative, text in terms]
    return " ".join(words).removeprefix("+ ")


def _parts(coefficient: Any) -> tuple[Any, int, int, int]:
    """(numerator in β, number, k, j) of numerator · ρʲ / (number · (1−β)ᵏ)."""
    import sympy

    beta, rho = sympy.Symbol(MOMENTUM), sympy.Symbol(RADIUS)
    above, below = sympy.fraction(sympy.factor(coefficient))
    number, factors = sympy.factor_list(below)
    power = sum(k for base, k in factors if base == beta - 1)
    above = sympy.expand(above * (-1) ** power)
    radius = sympy.degree(above, rho) if above.has(rho) else 0
    return sympy.expand(above / rho**radius), int(number), int(power), int(radius)


def _polynomial(expression: Any) -> str:
    """A polynomial in β with superscripts: β² + 4β + 1."""
    import sympy

    beta = sympy.Symbol(MOMENTUM)
    terms = []
    for (power,), factor in sympy.Poly(expression, beta).terms():
        size = str(abs(factor)) if abs(factor) != 1 or power == 0 else ""
        terms.append((bool(factor < 0), size + (MOMENTUM + superscript(power) if power else "")))
    return joined(terms, minus="−").replace("− ", "−", 1) if terms[0][0] else joined(terms, minus="−")


def _latex_power(power: int) -> str:
    return "" if power == 1 else f"^{{{power}}}"


def _renamed(text: str) -> str:
    for name, latex in LATEX_NAMES.items():
        text = text.replace(name, latex)
    return text
