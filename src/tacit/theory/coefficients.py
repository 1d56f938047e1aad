"""Exact coefficients: fractions and expressions in symbols, as text and as LaTeX.

A coefficient is a `Fraction` or, where it has symbols or roots, a sympy expression; `exact` makes it of what a user
wrote. Text and LaTeX say the same number: nothing is rounded or cut off.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from numbers import Rational
from typing import Any

from tacit._util.errors import InputError

VULGAR = {Fraction(1, 2): "½", Fraction(1, 3): "⅓", Fraction(2, 3): "⅔", Fraction(1, 4): "¼", Fraction(3, 4): "¾",
          Fraction(1, 5): "⅕", Fraction(1, 6): "⅙", Fraction(5, 6): "⅚", Fraction(1, 8): "⅛",
          Fraction(3, 8): "⅜", Fraction(5, 8): "⅝", Fraction(7, 8): "⅞"}  # fmt: skip
MOMENTUM, RADIUS = "β", "ρ"


def exact(value: Any) -> Any:
    """The coefficient that a user wrote, as a Fraction or a sympy expression without floats.

    A float is the decimal number that Python prints for it: 0.1 is 1/10. For a third, write Fraction(1, 3).

    >>> exact(0.1), exact(2), exact(Fraction(1, 3))
    (Fraction(1, 10), Fraction(2, 1), Fraction(1, 3))
    """
    if isinstance(value, Fraction):
        return value
    if isinstance(value, (int, Rational)):
        return Fraction(value)
    if hasattr(value, "item") and not hasattr(value, "free_symbols"):
        value = value.item()  # a number of numpy or torch
    if isinstance(value, (float, Decimal)):
        if not math.isfinite(value):
            raise InputError(f"a coefficient is {value}; expected a finite number.")
        return Fraction(value) if isinstance(value, Decimal) else Fraction(float.__repr__(value))
    if isinstance(value, int):
        return Fraction(value)
    if hasattr(value, "free_symbols"):
        return _exact_expression(value)
    raise InputError(f"a coefficient is {value!r}; expected a number that is real, or a sympy expression.")


def _exact_expression(value: Any) -> Any:
    import sympy

    floats = {f: sympy.Rational(float.__repr__(float(f))) for f in value.atoms(sympy.Float)}
    value = value.xreplace(floats) if floats else value
    if value.has(sympy.I, sympy.nan, sympy.zoo, sympy.oo):
        raise InputError(f"a coefficient is {value}; expected a finite number that is real.")
    return Fraction(int(value.p), int(value.q)) if value.is_Rational else value


def simplified(value: Any) -> Any:
    """The same coefficient in one form, so that equal ones look equal and one that is zero is zero."""
    value = exact(value)
    if isinstance(value, Fraction):
        return value
    import sympy

    return exact(sympy.factor(sympy.radsimp(sympy.expand(value)) if value.is_number else value))


def superscript(power: int) -> str:
    """² for 2, and nothing for 1.

    >>> superscript(1), superscript(12)
    ('', '¹²')
    """
    return "" if power == 1 else "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(power))


def is_negative(coefficient: Any) -> bool:
    """Whether a minus is written before it. For symbols: the sign for small ones, that of the lowest power."""
    coefficient = exact(coefficient)
    return bool(coefficient < 0) if isinstance(coefficient, Fraction) else _parts(coefficient).negative


def text_of(coefficient: Any) -> str:
    """The size of a coefficient as text, nothing for 1.

    >>> text_of(Fraction(-1, 2)), text_of(Fraction(1)), text_of(Fraction(7, 12)), text_of(1.5)
    ('½', '', '7/12', '3/2')
    """
    coefficient = exact(coefficient)
    if isinstance(coefficient, Fraction):
        size = abs(coefficient)
        return "" if size == 1 else VULGAR.get(size, str(size))
    parts = _parts(coefficient)
    if parts.unread is not None:
        return f"({parts.unread})"
    tail = RADIUS + superscript(parts.radius) if parts.radius else ""
    if not parts.below and parts.above.is_number:
        return f"{text_of(Fraction(int(parts.above), parts.number))} {tail}".strip()
    top = _polynomial(parts.above)
    top = f"({top})" if " " in top else top
    below = (f"{parts.number}" if parts.number != 1 else "") + "".join(
        f"{_bracketed(base)}{superscript(power)}" for base, power in parts.below
    )
    # 1/(1−β) needs no second pair of brackets, 1/(2(1−β)) does.
    below = f"({below})" if len(parts.below) + (parts.number != 1) > 1 else below
    return f"{top}/{below} {tail}".strip() if below else f"{top} {tail}".strip()


def latex_of(coefficient: Any) -> str:
    """The same as LaTeX."""
    coefficient = exact(coefficient)
    if isinstance(coefficient, Fraction):
        size = abs(coefficient)
        if size.denominator == 1:
            return "" if size == 1 else str(size)
        return rf"\frac{{{size.numerator}}}{{{size.denominator}}}"
    parts = _parts(coefficient)
    if parts.unread is not None:
        import sympy

        return rf"\left({_renamed(sympy.latex(parts.unread))}\right)"
    tail = rf"\rho{_latex_power(parts.radius)}" if parts.radius else ""
    top = _polynomial(parts.above, latex=True)
    if (parts.number, len(parts.below)) == (1, 1) and parts.below[0][1] == 1:
        below = _polynomial(parts.below[0][0], latex=True, compact=True)
    else:
        below = (str(parts.number) if parts.number != 1 else "") + " ".join(
            f"{_bracketed(base, latex=True)}{_latex_power(power)}" for base, power in parts.below
        )
    if below:
        return rf"\frac{{{top}}}{{{below}}}{tail}"
    top = rf"\left({top}\right)" if " " in top.replace(r"\ ", "") and not parts.above.is_Mul else top
    return ("" if parts.above == 1 and tail else top) + tail


def joined(terms: list[tuple[bool, str]], *, minus: str) -> str:
    """Signed terms as a sum: 0 when there are none."""
    if not terms:
        return "0"
    words = [f"{minus if negative else '+'} {text}" for negative, text in terms]
    return " ".join(words).removeprefix("+ ")


@dataclass(frozen=True)
class _Parts:
    """|coefficient| = above · ρʲ / (number · Π baseᵏ) with polynomials; `unread` where it is no such quotient."""

    negative: bool
    above: Any
    number: int
    below: tuple[tuple[Any, int], ...]
    radius: int
    unread: Any = None


@lru_cache(maxsize=256)  # the sign, the text and the LaTeX of a coefficient are asked for one after the other
def _parts(coefficient: Any) -> _Parts:
    import sympy

    above, below = sympy.fraction(sympy.factor(coefficient))
    if not (_is_polynomial(above) and _is_polynomial(below)):
        negative = bool(coefficient < 0) if coefficient.is_number else bool(coefficient.could_extract_minus_sign())
        return _Parts(negative, None, 1, (), 0, -coefficient if negative else coefficient)
    number, factors = sympy.factor_list(below)
    bases = []
    for base, power in factors:
        if _lowest(base) < 0:
            base, above = -base, above * (-1) ** power
        bases.append((sympy.expand(base), int(power)))
    above, number = sympy.expand(above * sympy.sign(number)), abs(number)
    negative = bool(_lowest(above) < 0)
    above, radius = -above if negative else above, 0
    rho = sympy.Symbol(RADIUS)
    if above.has(rho):
        radius = min(power for (power,) in sympy.Poly(above, rho).monoms())
    return _Parts(negative, sympy.expand(above / rho**radius), int(number), tuple(bases), int(radius))


def _is_polynomial(expression: Any) -> bool:
    """Whether it is one in its symbols with whole coefficients."""
    if expression.is_Integer:
        return True
    symbols = _symbols(expression)
    return bool(symbols) and expression.is_polynomial(*symbols) and expression.as_poly(*symbols).domain.is_ZZ


def _symbols(expression: Any) -> list[Any]:
    return sorted(expression.free_symbols, key=str)


def _lowest(expression: Any) -> Any:
    """The coefficient of the lowest power."""
    symbols = _symbols(expression)
    return expression.as_poly(*symbols).terms()[-1][1] if symbols else expression


def _polynomial(expression: Any, *, latex: bool = False, compact: bool = False) -> str:
    """A polynomial as text: β² + 4β + 1, and 1−β where it begins with a minus; or as LaTeX."""
    symbols = _symbols(expression)
    if not symbols:
        return str(expression)
    terms = []
    for powers, factor in expression.as_poly(*symbols).terms():
        product = _monomial(symbols, powers, latex=latex)
        size = str(abs(factor)) if abs(factor) != 1 or not product else ""
        between = (
            " " if latex and size and product else "·" if size and product and len(product.split("·")[0]) > 4 else ""
        )
        terms.append((bool(factor < 0), size + between + product))
    if terms[0][0]:
        terms.reverse()
    made = joined(terms, minus="-" if latex else "−")
    made = made.replace("− ", "−", 1) if terms[0][0] else made
    return made.replace(" + ", "+").replace(" − ", "−").replace(" - ", "-") if compact else made


def _monomial(symbols: Sequence[Any], powers: Sequence[int], *, latex: bool) -> str:
    import sympy

    used = [(symbol, int(power)) for symbol, power in zip(symbols, powers, strict=True) if power]
    if latex:
        return " ".join(_renamed(sympy.latex(symbol)) + _latex_power(power) for symbol, power in used)
    long = any(len(str(symbol)) > 1 for symbol, _ in used)
    return ("·" if long else "").join(str(symbol) + superscript(power) for symbol, power in used)


def _bracketed(base: Any, *, latex: bool = False) -> str:
    text = _polynomial(base, latex=latex, compact=True)
    return text if base.is_Symbol else f"({text})"


def _latex_power(power: int) -> str:
    return "" if power == 1 else f"^{{{power}}}"


def _renamed(text: str) -> str:
    """Greek letters by their LaTeX names: no font is needed."""
    for letter in set(text):
        name = unicodedata.name(letter, "")
        if name.startswith("GREEK SMALL LETTER "):
            latex = "\\" + name.split()[3].lower().replace("lamda", "lambda")
            text = text.replace(letter, latex)
    return text
