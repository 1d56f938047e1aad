"""`modified_flow_symbolic`: modified flows with exact coefficients, printed as elementary differentials."""

from __future__ import annotations

import inspect
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
from tacit.theory.coefficients import MOMENTUM, RADIUS, is_negative, joined, latex_of, superscript, text_of
from tacit.theory.landscape import Landscape, Parameters, derivative, view
from tacit.theory.logarithm import logarithm_weights
from tacit.theory.polynomials import Polynomial, discounted_sum, running_sum
from tacit.theory.trees import Coefficient, Tree, TreeSeries, free_sums, indices, nodes, tree_latex, tree_text

METHODS = ("gd", "nstep", "sgd", "heavy_ball", "nesterov")
# f'f = ∇(½‖∇C‖²), and its mean over minibatches.
SQUARES = {"f'f": "‖∇C‖²", "fᵢ'fᵢ": "⟨‖∇Ĉᵢ‖²⟩", "fᵢ'fⱼ": "m‖∇C‖²"}
Algorithm = Callable[..., TreeSeries]  # (point, step) or (point, step, probe) -> next point


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
            f"{symbol}{'₀₁₂₃₄₅₆₇₈₉'[k]} = {joined([self._term(t, c) for t, c in _by_rank(terms)], minus='−')}"
            for k, terms in enumerate(self.terms)
        )

    def latex(self) -> str:
        """The same as LaTeX, one `aligned` block that compiles inside a formula (amsmath)."""
        symbol = r"\phi" if self.averaged else r"\tilde{f}"
        lines = [
            f"{symbol}_{{{k}}} &= {joined([self._latex_term(t, c) for t, c in _by_rank(terms)], minus='-')}"
            for k, terms in enumerate(self.terms)
        ]
        return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}"

    def _repr_latex_(self) -> str:
        """What a notebook shows."""
        return f"$\\displaystyle {self.latex()}$"

    def modified_loss(self) -> str:
        """The loss that f₀ + εf₁ descends, to first order in ε and ρ: C − (c/2a) ‖∇C‖² for f₀ = a f and f₁ = c f'f.

        Every method of this module has one, because f = −∇C and f'f = ∇(½‖∇C‖²). It is descended at a times the rate.

        >>> modified_flow_symbolic("gd", order=1).modified_loss()
        'C + ¼ ε‖∇C‖²'
        >>> modified_flow_symbolic("sgd", order=1).modified_loss()
        'C + ¼ ε⟨‖∇Ĉᵢ‖²⟩'
        """
        if self.order < 1:
            raise InputError("the flow has order 0; expected at least 1, where a modified loss begins.")
        speed = self.coefficient(0, "fᵢ" if self.averaged else "f")
        parts = []
        for k, name in ((1, "ε"), (0, "")):
            for text, norm in SQUARES.items():
                found = self.coefficient(k, text)
                if found != 0:
                    share = -found / (2 * speed)
                    size = text_of(share if isinstance(share, Fraction) else _simplified(share))
                    parts.append((is_negative(share), f"{size} {name}{norm}".strip() if name else f"{size}{norm}"))
        return joined([(False, "C"), *parts], minus="−")

    def _term(self, t: Tree, coefficient: Coefficient) -> tuple[bool, str]:
        text, size = tree_text(t, indexed=self.averaged), text_of(coefficient)
        if self.averaged:
            extra = len(indices(t)) - 1
            text = (f"m{superscript(extra)}" if extra else "") + f"⟨{text}⟩"
        return is_negative(coefficient), f"{size} {text}".strip()

    def _latex_term(self, t: Tree, coefficient: Coefficient) -> tuple[bool, str]:
        text, size = tree_latex(t, indexed=self.averaged), latex_of(coefficient)
        if self.averaged:
            extra = len(indices(t)) - 1
            factor = {0: "", 1: "m "}.get(extra, f"m^{{{extra}}} ")
            text = rf"{factor}\langle {text} \rangle"
        return is_negative(coefficient), f"{size} {text}".strip()

    def evaluate(
        self, problem: Problem | Landscape, parameters: Parameters = None, *, radius: float | None = None
    ) -> list[Tensor]:
        """[f₀(ω), …, f_K(ω)] for a problem, from the fractions: slow, and independent of the automatic ones.

        A step with a `probe` needs the value of its ρ, `radius`.
        """
        scape, w = view(problem, parameters)
        batches = scape.batches_per_epoch if self.averaged else 1
        found = []
        for terms in self.terms:
            total = torch.zeros_like(w)
            for t, c in terms.items():
                used = indices(t)
                weight = _value(c, radius) * (
                    batches ** (len(used) - 1) / batches ** len(used) if self.averaged else 1.0
                )
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
    a function of (point, step) where step(p) is ε f(p), or of (point, step, probe) where probe(p) is ρ f(p) with a ρ
    that does not depend on ε. Then all terms up to `order` in ε and ρ together are kept.

    >>> print(modified_flow_symbolic("gd", order=2))
    f₀ = f
    f₁ = − ½ f'f
    f₂ = ⅓ f'f'f + 1/12 f''[f,f]
    >>> print(modified_flow_symbolic(lambda p, step: p + step(p + Fraction(1, 2) * step(p))))   # the midpoint rule
    f₀ = f
    f₁ = 0
    f₂ = − ⅙ f'f'f − 1/24 f''[f,f]
    >>> print(modified_flow_symbolic(lambda p, step, probe: p + step(p - probe(p)), order=1))   # SAM, unnormalized
    f₀ = f − ρ f'f
    f₁ = − ½ f'f
    """
    if order < 0 or inner_steps < 1:
        raise InputError(f"order={order} and inner_steps={inner_steps}; expected order >= 0 and inner_steps >= 1.")
    if callable(method):
        return SymbolicFlow("own", _own(method, order))
    if method not in METHODS:
        raise InputError(f"method={method!r} is unknown; use one of {', '.join(METHODS)}, or a function.")
    if method in ("heavy_ball", "nesterov"):
        return SymbolicFlow(method, _with_memory(method, order, _momentum(momentum)))
    if method == "sgd":
        return SymbolicFlow(method, _mean_sgd(order, inner_steps), averaged=True)
    return SymbolicFlow(method, _logarithm(lambda p: _inner(p, 0, inner_steps), order))


def _own(method: Algorithm, order: int) -> tuple[dict[Tree, Coefficient], ...]:
    if len(inspect.signature(method).parameters) < 3:
        return _logarithm(lambda p: method(p, TreeSeries.evaluate), order)
    import sympy

    # A tree of n nodes stands for εⁿ. A probe has ρ in place of one ε, so its coefficient carries r = ρ/ε, and rʲ moves
    # a tree of n nodes from f_{n−1} to f_{n−1−j}, with ρʲ.
    ratio, rho = sympy.Symbol("r"), sympy.Symbol(RADIUS)
    raw = _logarithm(lambda p: method(p, TreeSeries.evaluate, lambda q: ratio * q.evaluate()), order)
    found: list[dict[Tree, Coefficient]] = [{} for _ in range(order + 1)]
    for size, terms in enumerate(raw, start=1):
        for t, c in terms.items():
            for (power,), factor in sympy.Poly(sympy.expand(c), ratio).terms():
                if size - 1 - power < 0:
                    raise InputError("the algorithm moves by a probe alone; expected every move to contain a step.")
                if factor != 0:
                    exact = Fraction(int(factor.p), int(factor.q))
                    found[size - 1 - power][t] = exact if power == 0 else sympy.Rational(exact) * rho**power
    return tuple(found)


def _value(coefficient: Coefficient, radius: float | None) -> float:
    if isinstance(coefficient, Fraction):
        return float(coefficient)
    import sympy

    names = {str(symbol) for symbol in coefficient.free_symbols}
    if RADIUS in names and radius is None:
        raise InputError("the flow contains ρ; expected its value, radius=….")
    if MOMENTUM in names:
        raise InputError("the flow contains the symbol β; expected a flow made with a number, momentum=….")
    return float(coefficient.subs(sympy.Symbol(RADIUS), radius or 0.0))


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

        return sympy.Symbol(MOMENTUM)
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
    """Fewer indices first, then fewer nodes, then chains before bushes."""
    return sorted(terms.items(), key=lambda item: (len(indices(item[0])), nodes(item[0]), _bushiness(item[0]), item[0]))


def _bushiness(t: Tree) -> list[int]:
    return [len(t[1]), *itertools.chain.from_iterable(_bushiness(child) for child in t[1])]
