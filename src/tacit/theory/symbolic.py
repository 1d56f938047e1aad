"""`modified_flow_symbolic`: modified flows with exact coefficients, printed as elementary differentials."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from tacit._errors import InputError
from tacit.batching import all_orders
from tacit.problem import Problem
from tacit.theory.landscape import Landscape, Parameters, derivative, view
from tacit.theory.logarithm import logarithm_weights
from tacit.theory.polynomials import Polynomial, discounted_sum, running_sum
from tacit.theory.trees import Coefficient, Tree, TreeSeries, free_sums, indices, tree_latex, tree_text

METHODS = ("gd", "nstep", "sgd", "heavy_ball", "nesterov")
Algorithm = Callable[[TreeSeries, Callable[..., TreeSeries]], TreeSeries]
VULGAR = {Fraction(1, 2): "½", Fraction(1, 3): "⅓", Fraction(2, 3): "⅔", Fraction(1, 4): "¼", Fraction(3, 4): "¾",
          Fraction(1, 5): "⅕", Fraction(1, 6): "⅙", Fraction(5, 6): "⅚", Fraction(1, 8): "⅛"}  # fmt: skip


@dataclass(frozen=True)
class SymbolicFlow:
    """f₀, …, f_K as sums of elementary differentials of f (the method follows ω̇ = f at zeroth order, f = −∇C).

    For `sgd` they are φ₀, …, φ_K of the mean over orders: a colour is an index i, j, … of minibatches, averaged over
    independently, and each index beyond the first brings a factor m.
    """

    method: str
    terms: tuple[dict[Tree, Coefficient], ...]
    averaged: bool = False

    @property
    def order(self) -> int:
        return len(self.terms) - 1

    def coefficient(self, k: int, text: str) -> Coefficient:
        """The coefficient of one elementary differential of f_k, named as it is printed."""
        for t, c in self.terms[k].items():
            if tree_text(t, indexed=self.averaged) == text:
                return c
        return Fraction(0)

    def __str__(self) -> str:
        symbol = "φ" if self.averaged else "f"
        return "\n".join(
            f"{symbol}{'₀₁₂₃₄₅₆₇₈₉'[k]} = {_joined([self._term(t, c) for t, c in _by_rank(terms)])}"
            for k, terms in enumerate(self.terms)
        )

    def latex(self) -> str:
        """The same as LaTeX lines, one per correction."""
        symbol = r"\phi" if self.averaged else r"\tilde f"
        return "\n".join(
            f"{symbol}_{k} &= {_joined([self._latex_term(t, c) for t, c in _by_rank(terms)])} \\\\"
            for k, terms in enumerate(self.terms)
        )

    def _term(self, t: Tree, coefficient: Coefficient) -> str:
        sign, size = _split_sign(coefficient)
        text = tree_text(t, indexed=self.averaged)
        if self.averaged:
            extra = len(indices(t)) - 1
            text = {0: "", 1: "m"}.get(extra, f"m^{extra}") + f"⟨{text}⟩"
        return f"{sign} {'' if size == '1' else size + ' '}{text}"

    def _latex_term(self, t: Tree, coefficient: Coefficient) -> str:
        sign, _ = _split_sign(coefficient)
        text = tree_latex(t, indexed=self.averaged)
        if self.averaged:
            extra = len(indices(t)) - 1
            text = {0: "", 1: "m "}.get(extra, f"m^{extra} ") + rf"\langle {text} \rangle"
        return f"{sign.replace('−', '-')} {_latex_size(coefficient)}{text}"

    def evaluate(self, problem: Problem | Landscape, parameters: Parameters = None) -> list[Tensor]:
        """[f₀(ω), …, f_K(ω)] for a problem, from the fractions: slow, and independent of the automatic ones."""
        scape, w = view(problem, parameters)
        batches = scape.batches_per_epoch if self.averaged else 1
        found = []
        for terms in self.terms:
            total = torch.zeros_like(w)
            for t, c in terms.items():
                used = indices(t)
                weight = float(c) * (batches ** (len(used) - 1) / batches ** len(used) if self.averaged else 1.0)
                for chosen in itertools.product(range(batches), repeat=len(used)):
                    picked = dict(zip(used, chosen, strict=True)) if self.averaged else {}
                    total = total + weight * _differential(scape, w, t, picked)
            found.append(total)
        return found


def modified_flow_symbolic(
    method: str | Algorithm = "gd",
    order: int = 2,
    *,
    inner_steps: int = 1,
    momentum: Fraction | float | None = None,
) -> SymbolicFlow:
    """Exact coefficients of the modified flow of a method, on rooted trees.

    `gd`, `nstep` (with `inner_steps`), `sgd` (the mean over orders; with `inner_steps`, n-step SGD), `heavy_ball` and
    `nesterov` (a `momentum`, or none for the symbol β). Or any algorithm that is made of points and evaluations:
    a function of (point, step) where step(p) is ε f(p).

    >>> print(modified_flow_symbolic("gd", order=2))
    f₀ = f
    f₁ = − ½ f'f
    f₂ = ⅓ f'f'f + 1/12 f''[f,f]
    >>> print(modified_flow_symbolic(lambda p, step: p + step(p + Fraction(1, 2) * step(p))))   # the midpoint rule
    f₀ = f
    f₁ = 0
    f₂ = − ⅙ f'f'f − 1/24 f''[f,f]
    """
    if order < 0 or inner_steps < 1:
        raise InputError(f"order={order} and inner_steps={inner_steps}; expected order >= 0 and inner_steps >= 1.")
    if callable(method):
        return SymbolicFlow("own", _logarithm(lambda p: method(p, TreeSeries.evaluate), order))
    if method not in METHODS:
        raise InputError(f"method={method!r} is unknown; use one of {', '.join(METHODS)}, or a function.")
    if method in ("heavy_ball", "nesterov"):
        return SymbolicFlow(method, _with_memory(method, order, _momentum(momentum)))
    if method == "sgd":
        return SymbolicFlow(method, _mean_sgd(order, inner_steps), averaged=True)
    return SymbolicFlow(method, _logarithm(lambda p: _inner(p, 0, inner_steps), order))


def _inner(point: TreeSeries, colour: int, inner_steps: int) -> TreeSeries:
    for _ in range(inner_steps):
        point = point + Fraction(1, inner_steps) * point.evaluate(colour)
    return point


def _logarithm(update: Callable[[TreeSeries], TreeSeries], order: int) -> tuple[dict[Tree, Coefficient], ...]:
    """ε f̃ = Σᵢ aᵢ Φⁱ(ω): the update executed K+1 times on the series, and weighed."""
    weights = logarithm_weights(order + 1)
    point = TreeSeries.point(order + 1)
    total = weights[0] * point
    for weight in weights[1:]:
        point = update(point)
        total = total + weight * point
    return tuple(total.of_size(size) for size in range(1, order + 2))


def _mean_sgd(order: int, inner_steps: int) -> tuple[dict[Tree, Coefficient], ...]:
    colours = order + 1  # a tree of K+1 nodes has at most so many different minibatches: enough for every m
    orders = list(all_orders(colours))

    def mean_epoch(point: TreeSeries) -> TreeSeries:
        total = TreeSeries(point.order)
        for sequence in orders:
            walked = point
            for colour in sequence:
                walked = _inner(walked, colour, inner_steps)
            total = total + Fraction(1, len(orders)) * walked
        return total

    # One epoch lasts m ε and a sum over r free indices is m^r times a mean: φ = (1/m) Σ d m^r ⟨·⟩.
    return tuple(free_sums(terms) for terms in _logarithm(mean_epoch, order))


def _with_memory(method: str, order: int, momentum: Coefficient) -> tuple[dict[Tree, Coefficient], ...]:
    """W(s) = ω + Σ P_t(s) t: coefficients are polynomials in the step number s, and f̃ is their slope at 0."""
    path = TreeSeries(order + 1, base=1)
    found = []
    for size in range(1, order + 2):
        forces = path.evaluate().of_size(size)
        grown = {}
        for t, force in forces.items():
            force = force if isinstance(force, Polynomial) else Polynomial([force])
            buffer = discounted_sum(force, momentum)
            move = force + momentum * buffer if method == "nesterov" else buffer
            grown[t] = running_sum(move)
        path = path + TreeSeries(order + 1, grown)
        found.append({t: _simplified(p.coefficient(1)) for t, p in grown.items() if _simplified(p.coefficient(1)) != 0})
    return tuple(found)


def _momentum(momentum: Fraction | float | None) -> Coefficient:
    if momentum is None:
        import sympy

        return sympy.Symbol("β")
    exact = Fraction(momentum).limit_denominator(10**9)
    if not 0 <= exact < 1:
        raise InputError(f"momentum={momentum}; expected 0 <= momentum < 1.")
    return exact


def _simplified(value: Any) -> Any:
    if isinstance(value, (int, Fraction)):
        return Fraction(value)
    import sympy

    return sympy.factor(value)


def _differential(scape: Landscape, w: Tensor, t: Tree, picked: dict[int, int]) -> Tensor:
    """The elementary differential at w: f⁽ᵏ⁾[…] with f = −∇Ĉ of the picked minibatch, or of all."""
    arguments = [_differential(scape, w, child, picked) for child in t[1]]
    if picked:
        batch = scape.batches[picked[t[0]]]
        return -derivative(lambda p: scape.gradient_of(p, batch), w, *arguments)
    return -derivative(scape.gradient, w, *arguments)


def _by_rank(terms: dict[Tree, Coefficient]) -> list[tuple[Tree, Coefficient]]:
    """Fewer indices first, then chains before bushes."""
    return sorted(terms.items(), key=lambda item: (len(indices(item[0])), _bushiness(item[0]), item[0]))


def _bushiness(t: Tree) -> list[int]:
    return [len(t[1]), *itertools.chain.from_iterable(_bushiness(child) for child in t[1])]


def _split_sign(coefficient: Coefficient) -> tuple[str, str]:
    """The sign as a word of the sentence, and the size as text."""
    if isinstance(coefficient, Fraction):
        size = abs(coefficient)
        return ("−" if coefficient < 0 else "+"), VULGAR.get(size, str(size))
    sign, above, below, power = _over_one_minus(coefficient)
    raised = "" if power == 1 else "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(power))
    divisor = "(1−β)" + raised if below == 1 else f"({below}(1−β){raised})"
    top = str(above) if above.is_number else f"({above})"
    return sign, f"{top}/{divisor}".replace("**", "^").replace("*", "").replace(" - ", " − ")


def _latex_size(coefficient: Coefficient) -> str:
    if isinstance(coefficient, Fraction):
        size = abs(coefficient)
        if size == 1:
            return ""
        return f"{size.numerator} " if size.denominator == 1 else rf"\tfrac{{{size.numerator}}}{{{size.denominator}}} "
    import sympy

    _, above, below, power = _over_one_minus(coefficient)
    text = sympy.latex(above).replace("β", r"\beta")
    return rf"\frac{{{text}}}{{{'' if below == 1 else below}(1-\beta)^{power}}} "


def _over_one_minus(coefficient: Coefficient) -> tuple[str, Coefficient, int, int]:
    """Sign, numerator, number and power k of a rational function of β written over number·(1−β)^k."""
    import sympy

    beta = sympy.Symbol("β")
    above, below = sympy.fraction(sympy.factor(coefficient))
    number, factors = sympy.factor_list(below)
    power = sum(k for base, k in factors if base == beta - 1)
    above = sympy.expand(above * (-1) ** power)
    negative = bool(sympy.Poly(above, beta).TC() < 0) if above.has(beta) else bool(above < 0)
    return ("−" if negative else "+"), (-above if negative else above), int(number), power


def _joined(terms: list[str]) -> str:
    if not terms:
        return "0"
    return " ".join(terms).removeprefix("+ ")
