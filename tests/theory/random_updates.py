"""Random updates made of points and gradient steps, and what is known of their flows from other algebra.

An update is a small program that runs on whatever has sums and multiples. On the package's points it gives a
`SymbolicFlow`; here it runs on power series in ε of one real unknown, with numbers for the symbols. In one dimension,
with f(x) = f₀ + f₁x + ½f₂x² at x = 0, the flow ω̇ = f̃ leads after the time ε to

    ε a f + ε² (b + ½a²) f'f + ε³ [ (c₁ + ab + a³/6) f'f'f + (c₂ + ½ab + a³/6) f''[f,f] ]

when f̃ = a f + ε b f'f + ε² (c₁ f'f'f + c₂ f''[f,f]); so three runs of one step give a, b, c₁ and c₂.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

ORDER = 3  # powers of ε that a run keeps
VALUES = {"α": Fraction(2, 7), "γ": Fraction(5, 3), "ρ": Fraction(3, 11)}  # ρ stands for ρ/ε in a run
TREES = ("f", "f'f", "f'f'f", "f''[f,f]")


# -- power series in ε ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Power:
    """x₁ε + x₂ε² + x₃ε³, exact."""

    terms: tuple[Fraction, ...]

    def __add__(self, other: Power) -> Power:
        return Power(tuple(a + b for a, b in zip(self.terms, other.terms, strict=True)))

    def times(self, factor: Fraction) -> Power:
        return Power(tuple(factor * a for a in self.terms))

    def squared(self) -> Power:
        one, two, _ = self.terms
        return Power((Fraction(0), one * one, 2 * one * two))

    def force(self, f: tuple[int, int, int]) -> Power:
        """ε f at this point."""
        inside = self.times(Fraction(f[1])) + self.squared().times(Fraction(f[2], 2))
        return Power((Fraction(f[0]), *inside.terms[:-1]))


# -- programs ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Update:
    """Stages, each (what it is made of, coefficient); the last one is the new point.

    `("add", i, [(c, j, by), …])` is pointᵢ + Σ c · by(pointⱼ) with `by` a step or a probe,
    `("blend", i, j, c)` is pointᵢ + c (pointⱼ − pointᵢ), `("weigh", i, j, c)` is (1−c) pointᵢ + c pointⱼ, and
    `("halve", i, j, n)` is pointᵢ + (pointⱼ − pointᵢ)/n.
    """

    kind: str
    stages: tuple[tuple[Any, ...], ...]
    probes: bool

    def algorithm(self) -> Callable[..., Any]:
        if self.probes:
            return lambda p, step, probe: self._run(p, {"step": step, "probe": probe})
        return lambda p, step: self._run(p, {"step": step})

    def _run(self, p: Any, evaluate: dict[str, Callable[[Any], Any]]) -> Any:
        points = [p]
        for stage in self.stages:
            if stage[0] == "add":
                made = points[stage[1]]
                for c, j, by in stage[2]:
                    made = made + c * evaluate[by](points[j])
            elif stage[0] == "blend":
                made = points[stage[1]] + stage[3] * (points[stage[2]] - points[stage[1]])
            elif stage[0] == "weigh":
                made = (1 - stage[3]) * points[stage[1]] + points[stage[2]] * stage[3]
            else:
                made = points[stage[1]] + (points[stage[2]] - points[stage[1]]) / stage[3]
            points.append(made)
        return points[-1]

    def known(self) -> dict[str, Fraction]:
        """The coefficients of the four trees of at most three nodes, ρ/ε and the symbols at their `VALUES`."""
        chain, bush = self._walked((1, 1, 0)), self._walked((1, 0, 1))
        a = chain.terms[0]
        b = chain.terms[1] - a * a / 2
        c1 = chain.terms[2] - a * b - a**3 / 6
        c2 = bush.terms[2] - a * b / 2 - a**3 / 6
        return dict(zip(TREES, (a, b, c1, c2), strict=True))

    def _walked(self, f: tuple[int, int, int]) -> Power:
        points = [Power((Fraction(0),) * ORDER)]
        for stage in self.stages:
            if stage[0] == "add":
                made = points[stage[1]]
                for c, j, by in stage[2]:
                    ratio = VALUES["ρ"] if by == "probe" else Fraction(1)
                    made = made + points[j].force(f).times(ratio * value(c))
            elif stage[0] == "halve":
                n = value(stage[3])
                made = points[stage[1]].times(1 - 1 / n) + points[stage[2]].times(1 / n)
            elif stage[0] == "blend":
                c = value(stage[3])
                made = points[stage[1]].times(1 - c) + points[stage[2]].times(c)
            else:
                made = points[stage[1]].times(value(1 - stage[3])) + points[stage[2]].times(value(stage[3]))
            points.append(made)
        return points[-1]


def value(coefficient: Any) -> Fraction:
    """A coefficient as the fraction that its user wrote: 0.1 is 1/10, and a symbol has its value."""
    if isinstance(coefficient, float):
        return Fraction(repr(coefficient))
    if isinstance(coefficient, (int, Fraction)):
        return Fraction(coefficient)
    import sympy

    exact = coefficient.xreplace({f: sympy.Rational(repr(float(f))) for f in coefficient.atoms(sympy.Float)})
    exact = exact.subs({name: sympy.Rational(number) for name, number in VALUES.items()})
    return Fraction(int(exact.p), int(exact.q))


def random_update(seed: int) -> Update:
    """One of rational, float or symbolic coefficients; one in twenty is symbolic, because sympy is slow."""
    draw = random.Random(seed)
    kind = draw.choices(["rational", "float", "symbolic"], [10, 9, 1])[0]
    coefficient = {"rational": _rational, "float": _float, "symbolic": _symbolic}[kind]
    probes = draw.random() < 0.2
    stages: list[tuple[Any, ...]] = [("add", 0, [(coefficient(draw), 0, "step")])]
    for _ in range(draw.randint(0, 2)):
        points = len(stages) + 1
        shape = draw.choice(["add", "add", "blend", "weigh", "halve"])
        i, j = draw.randrange(points), draw.randrange(points)
        if shape == "add":
            by = "probe" if probes and draw.random() < 0.5 else "step"
            stages.append(("add", i, [(coefficient(draw), j, by)]))
        elif shape == "halve":
            stages.append(("halve", i, j, draw.choice([2, 3, 4, 2.5, 0.1])))
        else:
            c = coefficient(draw)
            if shape == "weigh" and value(c) + value(1 - c) != 1:
                c = 0.5  # 0.7 and 1 − 0.7 do not add up to 1 in floats: refused, and tested by itself
            stages.append((shape, i, j, c))
    # The new point is the old one and steps: a probe alone would be a move at learning rate zero.
    last = [(coefficient(draw), draw.randrange(len(stages) + 1), "step") for _ in range(draw.randint(1, 2))]
    return Update(kind, (*stages, ("add", 0, last)), probes)


def _rational(draw: random.Random) -> Any:
    return draw.choice([draw.randint(-3, 3), Fraction(draw.randint(-9, 9), draw.randint(1, 12))])


def _float(draw: random.Random) -> float:
    """Dyadic, decimal, or with all its digits."""
    return draw.choice([draw.choice([0.5, 1.5, -0.25]), round(draw.uniform(-2, 2), draw.randint(1, 6)), 1 / 3,
                        math.sin(draw.random())])  # fmt: skip


def _symbolic(draw: random.Random) -> Any:
    import sympy

    alpha, gamma = sympy.symbols("α γ")
    return draw.choice([alpha, gamma, 1 - alpha, alpha / 2, -3 * gamma, 0.5 * alpha, alpha * gamma - 1, 1 / (1 + gamma),
                        alpha / (1 - alpha), alpha**2 + gamma, sympy.Rational(2, 3), Fraction(1, 2), 0.1])  # fmt: skip
