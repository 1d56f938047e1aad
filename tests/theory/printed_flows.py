"""Reads printed flows back: text and LaTeX of a `SymbolicFlow` as numbers, by a small parser of their notation."""

from __future__ import annotations

import re
from fractions import Fraction

VULGAR = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅙": (1, 6), "⅚": (5, 6),
          "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8)}  # fmt: skip
POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


def read_text(printed: str, values: dict[str, Fraction]) -> list[dict[str, Fraction]]:
    """[{tree: coefficient} of f₀, …] from `str(flow)`, with numbers for the symbols."""
    return [_terms(line.split("=", 1)[1], values) for line in printed.splitlines()]


def read_latex(printed: str, values: dict[str, Fraction]) -> list[dict[str, Fraction]]:
    """The same from `flow.latex()`."""
    lines = [line for line in printed.splitlines() if "&=" in line]
    return [_terms(_plain(line.split("&=", 1)[1].removesuffix("\\\\")), values) for line in lines]


def read_loss(printed: str, values: dict[str, Fraction]) -> dict[str, Fraction]:
    """{"ε": coefficient of ε‖∇C‖², "ρ": that of ρ‖∇C‖²} from `flow.modified_loss()`."""
    found = {"ε": Fraction(0), "ρ": Fraction(0)}
    for negative, term in _split(printed):
        if term == "C":
            continue
        size = term.removesuffix("‖∇C‖²").rstrip()
        name = "ρ" if size.endswith("ρ") else "ε"
        found[name] += (-1 if negative else 1) * _number(size.removesuffix(name), values)
    return found


def _terms(text: str, values: dict[str, Fraction]) -> dict[str, Fraction]:
    found: dict[str, Fraction] = {}
    for negative, term in _split(text):
        if term == "0":
            continue
        size, _, tree = term.rpartition(" ")
        assert tree not in found, f"{tree} is printed twice in {text}"
        found[tree] = (-1 if negative else 1) * _number(size, values)
    return found


def _split(text: str) -> list[tuple[bool, str]]:
    """(is negative, term) of a sum, cut at the signs that stand outside all brackets."""
    terms, depth, negative, current = [], 0, False, ""
    for word in re.split(r"( \+ | − | - |^\s*[−-] |[()\[\]])", text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(word, 0)
        if depth == 0 and word.strip() in ("+", "−", "-") and word.strip() != word:
            if current.strip():
                terms.append((negative, current.strip()))
            negative, current = word.strip() != "+", ""
        else:
            current += word
    return [*terms, (negative, current.strip())]


def _number(text: str, values: dict[str, Fraction]) -> Fraction:
    """½ ρ², (β² + 4β + 1)/(3(1−β)⁵) and the like; nothing is one."""
    made = text.strip().replace("−", "-").replace("·", "*")
    for sign, (above, below) in VULGAR.items():
        made = made.replace(sign, f"({above}/{below})")
    made = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda power: f"**{power[0].translate(POWERS)}", made)
    # A product is written without a sign: between two factors there is a blank, or nothing.
    made = re.sub(r"(?<=[\w)])\s+(?=[\w(])|(?<=[\d)α-ω])(?=[(α-ω])|(?<=[)α-ω])(?=\d)", "*", made)
    made = re.sub(r"(?<!\*\*)\b\d+", lambda number: f"Fraction({number[0]})", made)
    return eval(made or "Fraction(1)", {"Fraction": Fraction, **values})


def _plain(latex: str) -> str:
    """LaTeX in the notation of the text."""
    made = latex.replace(r"\left(", "(").replace(r"\right)", ")")
    for name, letter in {"alpha": "α", "beta": "β", "gamma": "γ", "rho": "ρ"}.items():
        made = re.sub(rf"\\{name}(?![a-z])", letter, made)
    made = re.sub(r"\^\{(\d+)\}", lambda power: "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(d)] for d in power[1]), made)
    while r"\frac{" in made:
        made = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", made)
    return made
