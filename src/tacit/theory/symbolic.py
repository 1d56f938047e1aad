"""`modified_flow_symbolic`: modified flows with exact coefficients, printed as elementary differentials."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from tacit._util.errors import InputError
from tacit.batching import all_orders
from tacit.problem import Problem
from tacit.theory.coefficients import (
    MOMENTUM,
    RADIUS,
    exact,
    is_negative,
    joined,
    latex_of,
    simplified,
    superscript,
    text_of,
)
from tacit.theory.landscape import Landscape, Parameters, derivative, view
from tacit.theory.logarithm import logarithm_weights
from tacit.theory.polynomials import Polynomial, discounted_sum, running_sum
from tacit.theory.trees import Coefficient, Tree, TreeSeries, free_sums, indices, nodes, tree_latex, tree_text

METHODS = ("gd", "nstep", "sgd", "heavy_ball", "nesterov")
# f'f = ∇(½‖∇C‖²), and its mean over minibatches.
SQUARES = {"f'f": "‖∇C‖²", "fᵢ'fᵢ": "⟨‖∇Ĉᵢ‖²⟩", "fᵢ'fⱼ": "m‖∇C‖²"}
Algorithm = Callable[..., TreeSeries]  # (point, step), (point, step, probe) or (point, step, average) -> next point


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
        if speed == 0:
            raise InputError("f₀ = 0 f; expected an update that moves along f, to compare ‖∇C‖² with C.")
        parts = []
        for k, name in ((1, "ε"), (0, "")):
            for text, norm in SQUARES.items():
                found = self.coefficient(k, text)
                if found != 0:
                    share = simplified(-found / (2 * speed))
                    size = text_of(share)
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
    readout: Algorithm | None = None,
) -> SymbolicFlow:
    """Exact coefficients of the modified flow of a method, on rooted trees.

    `gd`, `nstep` (with `inner_steps`), `sgd` (the mean over orders; with `inner_steps`, n-step SGD), `heavy_ball` and
    `nesterov` (a `momentum`, or none for the symbol β). Or any algorithm that is made of points and evaluations:
    a function of (point, step) where step(p) is ε f(p), or of (point, step, probe) where probe(p) is ρ f(p) with a ρ
    that does not depend on ε. Then all terms up to `order` in ε and ρ together are kept.

    Or a method that remembers: a function of (point, step, average), the third by this name, where average(x, keep) is
    the exponential moving average of x over all steps so far, whose age is long. `readout` is a function of (point,
    step), (point, average) or all three: the point whose flow is asked for, where that is not the iterate.

    Coefficients are exact: fractions, sympy expressions, or floats, which stay the decimal that was written (0.1 is
    1/10, and a third is Fraction(1, 3)).

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
    >>> ema = modified_flow_symbolic(lambda p, step: p + step(p), readout=lambda p, average: average(p, 0.9))
    >>> print(ema)                                                                # the average differs in f₂ alone
    f₀ = f
    f₁ = − ½ f'f
    f₂ = ⅓ f'f'f + 541/12 f''[f,f]
    """
    if order < 0 or inner_steps < 1:
        raise InputError(f"order={order} and inner_steps={inner_steps}; expected order >= 0 and inner_steps >= 1.")
    if callable(method):
        return SymbolicFlow("own", _own(method, order) if readout is None else _along_path(method, order, readout))
    if method not in METHODS:
        raise InputError(f"method={method!r} is unknown; use one of {', '.join(METHODS)}, or a function.")
    if method in ("heavy_ball", "nesterov"):
        return SymbolicFlow(method, _along_path(_momentum_step(method, _momentum(momentum)), order, readout))
    if method == "sgd":
        if readout is not None:
            raise InputError("readout= of the mean over orders is not known here; expected 'gd' or a function.")
        return SymbolicFlow(method, _mean_sgd(order, inner_steps), averaged=True)
    step = lambda p: _inner(p, 0, inner_steps)  # noqa: E731
    return SymbolicFlow(method, _logarithm(step, order) if readout is None else _along_path(step, order, readout))


def _own(method: Algorithm, order: int) -> tuple[dict[Tree, Coefficient], ...]:
    names = list(inspect.signature(method).parameters)
    if "average" in names:
        return _along_path(method, order, None)
    if len(names) < 3:
        return _logarithm(lambda p: method(p, TreeSeries.evaluate), order)
    # A tree of n nodes stands for εⁿ. A probe has ρ in place of one ε, so its coefficient carries r = ρ/ε, and rʲ moves
    # a tree of n nodes from f_{n−1} to f_{n−1−j}, with ρʲ.
    ratio = Polynomial([0, 1])
    raw = _logarithm(lambda p: method(p, TreeSeries.evaluate, lambda q: q.evaluate() * ratio), order)
    found: list[dict[Tree, Coefficient]] = [{} for _ in range(order + 1)]
    for size, terms in enumerate(raw, start=1):
        for t, c in terms.items():
            powers = c.coefficients if isinstance(c, Polynomial) else [c]
            for power, own in enumerate(map(simplified, powers)):
                if own == 0:
                    continue
                if size - 1 - power < 0:
                    raise InputError("the algorithm moves by a probe alone; expected every move to contain a step.")
                found[size - 1 - power][t] = own if power == 0 else _times_radius(own, power)
    return tuple(found)


def _times_radius(own: Coefficient, power: int) -> Coefficient:
    import sympy

    return simplified((sympy.Rational(own) if isinstance(own, Fraction) else own) * sympy.Symbol(RADIUS) ** power)


def _value(coefficient: Coefficient, radius: float | None) -> float:
    if isinstance(coefficient, Fraction):
        return float(coefficient)
    import sympy

    names = {str(symbol) for symbol in coefficient.free_symbols}
    if RADIUS in names and radius is None:
        raise InputError("the flow contains ρ; expected its value, radius=….")
    unknown = sorted(names - {RADIUS})
    if unknown:
        raise InputError(f"the flow contains {', '.join(unknown)}; expected one made with numbers, to have its values.")
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
        if not isinstance(point, TreeSeries):
            raise InputError(f"the algorithm returned {point!r}; expected a point, as in p + step(p).")
        point.require_point()
        total = total + weight * point
    return tuple(_simplified_terms(total.of_size(size)) for size in range(1, order + 2))


def _simplified_terms(terms: dict[Tree, Coefficient]) -> dict[Tree, Coefficient]:
    return {t: own for t, c in terms.items() if (own := c if isinstance(c, Polynomial) else simplified(c)) != 0}


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


def _momentum_step(method: str, keep: Coefficient) -> Algorithm:
    def heavy_ball(p: TreeSeries, step: Algorithm, average: Algorithm) -> TreeSeries:
        return p + average(step(p), keep) / (1 - keep)

    def nesterov(p: TreeSeries, step: Algorithm, average: Algorithm) -> TreeSeries:
        return p + step(p) + keep * average(step(p), keep) / (1 - keep)

    return heavy_ball if method == "heavy_ball" else nesterov


def _along_path(method: Algorithm, order: int, readout: Algorithm | None) -> tuple[dict[Tree, Coefficient], ...]:
    """W(s) = ω + Σ P_t(s) t: coefficients are polynomials in the step number s, and f̃ is their slope at 0.

    With a readout Y the constants P_t(0) are chosen so that Y(0) = ω, and f̃ is the slope of Y.
    """
    _require_steps(method)
    path, found = TreeSeries.point(order + 1), []
    for size in range(1, order + 2):
        moved = _called(method, path)
        path = path + TreeSeries(order + 1, {t: running_sum(_polynomial(c)) for t, c in moved.of_size(size).items()})
        seen = path if readout is None else _called(readout, path)
        of_size = {t: _polynomial(c) for t, c in seen.of_size(size).items()}
        path = path - TreeSeries(order + 1, {t: p.coefficient(0) for t, p in of_size.items()})
        found.append(_simplified_terms({t: p.coefficient(1) for t, p in of_size.items()}))
    return tuple(found)


def _require_steps(method: Algorithm) -> None:
    """Refuse an average of points that moves a point by itself: it would be a move without a learning rate."""
    trace: Tree = (-1, ())  # of a point that moves by one per step, whatever the steps are
    moving = TreeSeries(1, {trace: Polynomial([0, 1])}, base=1)
    if _polynomial(_called(method, moving).terms.get(trace, 0)) != Polynomial([0, 1]):
        raise InputError("the algorithm moves without a step; expected averages of points only inside step(…).")


def _called(function: Algorithm, path: TreeSeries) -> TreeSeries:
    """The function at the path: its second argument is the step, unless it or a later one is named `average`."""
    names = list(inspect.signature(function).parameters)[1:]
    made = function(path, *[average if name == "average" else TreeSeries.evaluate for name in names])
    if not isinstance(made, TreeSeries):
        raise InputError(f"the algorithm returned {made!r}; expected a point, as in p + step(p).")
    made.require_point()
    return made


def average(series: TreeSeries, keep: Coefficient) -> TreeSeries:
    """The exponential moving average of a path over all steps so far: Σᵢ (1−κ) κⁱ x(s−i)."""
    own = exact(keep)
    if isinstance(own, Fraction) and not 0 <= own < 1:
        raise InputError(f"an average keeps {own} of itself; expected at least 0 and less than 1.")
    terms = {t: discounted_sum(_polynomial(c) * (1 - own), own) for t, c in series.terms.items()}
    return TreeSeries(series.order, terms, base=series.base)


def _polynomial(coefficient: Coefficient) -> Polynomial:
    return coefficient if isinstance(coefficient, Polynomial) else Polynomial([coefficient])


def _momentum(momentum: Fraction | float | None) -> Coefficient:
    if momentum is None:
        import sympy

        return sympy.Symbol(MOMENTUM)
    own = exact(momentum)
    if not (isinstance(own, Fraction) and 0 <= own < 1):
        raise InputError(f"momentum={momentum}; expected 0 <= momentum < 1.")
    return own


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
