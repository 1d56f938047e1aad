"""The losses behind a preconditioned method: its flow has no loss, and yet it is f̃ = −P ∇C̃ with a P of its own.

A method that steps by P(G) G, where G is an average of gradients (Adam, RMSprop, Muon), uses gradients of the past: a
gradient τ steps old is ∇C(ω − ετ f₀) = ∇C + ετ ∇²C P∇C + O(ε²), and that is a gradient again,

    ∇(C + ετ Φ),   ∇Φ = ∇²C P(∇C) ∇C,   Φ = φ(∇C) if P(g) g = ∇φ(g).

A step is half a step old on average while it is taken, an average that keeps β of itself β/(1−β) steps more: the lag is
τ = ½ + β/(1−β) = (1+β)/(2(1−β)). Where the gradient in the numerator and the one inside P have their own averages, with
lags τ and τ',

    f̃ = −P(∇C') ∇C̃ + O(ε²),   C̃ = C + ετ Φ,   C' = C + ετ' Φ.

So a preconditioned method follows a loss, C̃, with its own preconditioner P(∇C'), made from gradients of another one.
Decoupled weight decay adds −μω, half a step old, and Φ = φ(∇C) + μ(⟨ω, ∇C⟩ − C). For gradient descent P = 1, τ = ½ and
φ = ½‖∇C‖²: the paper's quarter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor
from torch.func import jvp, vmap

from tacit._util.errors import InputError
from tacit._util.random_generators import generator
from tacit.theory.coefficients import is_negative, simplified, text_of
from tacit.theory.flows import RateField
from tacit.theory.jets import taylor_coefficients
from tacit.theory.landscape import Landscape
from tacit.theory.logarithm import Update, modified_flow
from tacit.theory.memory import MemoryMethod, Preconditioner, WithMemory
from tacit.theory.polynomials import Polynomial
from tacit.theory.potentials import SYMMETRIC, asymmetry
from tacit.theory.symbolic import average
from tacit.theory.trees import Coefficient, TreeSeries

POINTS = 8
SPREAD = 0.1  # of the points around the start, in each parameter
STUDENT = 2.365  # 97.5 per cent of Student's t with POINTS − 1 = 7 degrees of freedom
EXACT = 1e-8  # automatic derivatives of f₁ leave 1e-12 or so
MOMENT_ROUNDING = 1e-6  # … of f₂, solved against P
Filter = Callable[[TreeSeries, Callable[..., TreeSeries]], TreeSeries]


@dataclass(frozen=True)
class MeanOverPoints:
    """The mean over points drawn around the start, and the 95 % interval of that mean."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.high - self.low <= 1e-6 * abs(self.value):
            return f"{self.value:.6g}"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class PreconditionedLoss:
    """The best C̃ = C + ετΦ and C' = C + ετ'Φ with f̃ = −P(∇C')∇C̃, and what they miss.

    `gradient_lag` is τ and `preconditioner_lag` τ' (None where P does not depend on the gradient). `zeroth_residual` is
    ‖f₀ + P∇C + μω‖/‖f₀‖, `first_residual` the part of f₁ that no two lags explain. `asymmetry` is ‖J − Jᵀ‖/‖J‖ of the
    field ∇²C P∇C, of which Φ is the potential: where it is not zero, the best Φ near a point misses half of it.
    `second_asymmetry` is that of the ε² term of P(∇C')⁻¹f̃.
    """

    problem: str
    weight_decay: float
    zeroth_residual: MeanOverPoints
    gradient_lag: MeanOverPoints
    preconditioner_lag: MeanOverPoints | None
    first_residual: MeanOverPoints
    asymmetry: MeanOverPoints
    second_asymmetry: MeanOverPoints | None = None

    @property
    def order(self) -> int:
        """The highest power of ε to which C̃ exists; −1 when not even f₀ is −P∇C."""
        if self.zeroth_residual.value > EXACT:
            return -1
        if self.first_residual.value > EXACT or self.asymmetry.value > SYMMETRIC:
            return 0
        return 2 if self.second_asymmetry is not None and self.second_asymmetry.value <= MOMENT_ROUNDING else 1

    def __str__(self) -> str:
        if self.order < 0:
            return f"f₀ is not −P∇C: {self.zeroth_residual} of it is something else"
        decay = f" − {self.weight_decay:g} ω(−ε/2)" if self.weight_decay else ""
        with_lag = "P" if self.preconditioner_lag is None else f"P(∇C + {self.preconditioner_lag} ε∇Φ)"
        made = f"f̃ = −{with_lag} ∇C̃{decay}, C̃ = C + {self.gradient_lag} εΦ"
        if self.order > 0:
            made += f": exists to order ε{'²' if self.order > 1 else ''}"
        elif self.first_residual.value > EXACT:
            made += f": misses {self.first_residual} of f₁"
        else:
            made += f": Φ exists up to an asymmetry of {self.asymmetry}"
        if self.order == 1 and self.second_asymmetry is not None:
            made += f"; at ε² an asymmetry of {self.second_asymmetry}"
        return made


def preconditioned_loss(
    update: Update | WithMemory,
    scape: Landscape,
    *,
    preconditioner: Preconditioner | None = None,
    weight_decay: float = 0.0,
    problem: str = "problem",
    order: int = 1,
) -> PreconditionedLoss:
    """Measure τ, τ' and what they miss, at eight points around the start of the landscape.

    `preconditioner(g, v)` is P(g) v, and P(g) g + weight_decay·w must be the direction of a step once the gradient has
    not changed for long; a `MemoryMethod` may carry both. `order=2` asks for the asymmetry at ε² as well, which costs a
    Jacobian of f₂ at every point.

    >>> from tacit.theory import adam, problems
    >>> scape = Landscape(problems.logistic())
    >>> print(preconditioned_loss(adam(scape, beta1=0.5, beta2=0.6, delta=0.1), scape))     # τ = 3/2, τ' = 2
    f̃ = −P(∇C + 2 ε∇Φ) ∇C̃, C̃ = C + 1.5 εΦ: exists to order ε
    """
    if preconditioner is None and isinstance(update, MemoryMethod):
        preconditioner, weight_decay = update.preconditioner, update.weight_decay
    if preconditioner is None:
        raise InputError("the update names no preconditioner; expected preconditioner=lambda g, v: P(g) v.")
    parts = _Parts(scape, preconditioner, weight_decay)
    flow = modified_flow(update, order=order)
    draws = torch.randn(POINTS, scape.size, generator=generator(0, "probe"), dtype=torch.float64)
    points = [scape.start + SPREAD * draw for draw in draws]
    fields = [[term.detach() for term in flow.corrections(w)] for w in points]
    lags, residuals = _fitted(parts, points, [f[1] for f in fields])
    zeroth = [((f[0] + parts.direction(w)).norm() / f[0].norm()).item() for w, f in zip(points, fields, strict=True)]
    second = None
    if order >= 2 and not weight_decay:
        lag = lags[1].mean().item() if lags[1] is not None else 0.0
        second = _interval(_second_asymmetries(parts, flow.corrections, points, lag))
    return PreconditionedLoss(
        problem,
        weight_decay,
        _interval(torch.tensor(zeroth)),
        _interval(lags[0]),
        None if lags[1] is None else _interval(lags[1]),
        _interval(residuals),
        _interval(torch.tensor([asymmetry(parts.slope, w) for w in points])),
        second,
    )


class _Parts:
    """P∇C + μω, ∇Φ = ∇²C (P∇C + μω), and what a lag of either gradient does to the field."""

    def __init__(self, scape: Landscape, preconditioner: Preconditioner, weight_decay: float) -> None:
        self.scape, self.apply, self.weight_decay = scape, preconditioner, weight_decay

    def direction(self, w: Tensor) -> Tensor:
        g = self.scape.gradient(w)
        return self.apply(g, g) + self.weight_decay * w

    def slope(self, w: Tensor) -> Tensor:
        return self.scape.hessian_product(w, self.direction(w))

    def through_gradient(self, w: Tensor) -> Tensor:
        """P ∇Φ."""
        return self.apply(self.scape.gradient(w), self.slope(w))

    def through_preconditioner(self, w: Tensor) -> Tensor:
        """P'[∇Φ] ∇C."""
        g = self.scape.gradient(w)
        return jvp(lambda moved: self.apply(moved, g), (g,), (self.slope(w),))[1]

    def decay(self, w: Tensor) -> Tensor:
        """What half a step of age does to −μω."""
        return -self.weight_decay / 2 * self.direction(w)


def preconditioned_field(
    scape: Landscape,
    preconditioner: Preconditioner,
    *,
    gradient_lag: float,
    preconditioner_lag: float,
    weight_decay: float = 0.0,
) -> RateField:
    """(ω, ε) ↦ −P(∇C + ετ'∇Φ)(∇C + ετ∇Φ) − μω(−ε/2), ∇Φ = ∇²C (P∇C + μω): the flow of a preconditioned method.

    Its ε term with P = diag 1/√(g² + δ), τ = (1+β)/(2(1−β)) and τ' = (1+ρ)/(2(1−ρ)) is what Cattaneo, Klusowski and
    Shigida (2024) give for Adam.
    """
    parts = _Parts(scape, preconditioner, weight_decay)

    def field(w: Tensor, rate: Tensor) -> Tensor:
        g, slope = scape.gradient(w), parts.slope(w)
        descent = preconditioner(g + rate * preconditioner_lag * slope, g + rate * gradient_lag * slope)
        return -descent - weight_decay * (w + rate / 2 * parts.direction(w))

    return field


def _fitted(parts: _Parts, points: list[Tensor], firsts: list[Tensor]) -> tuple[tuple[Tensor, Tensor | None], Tensor]:
    """((τ at each point, τ' at each point or None), the share of f₁ that their means leave at each point)."""
    columns = [torch.stack([parts.through_gradient(w), parts.through_preconditioner(w)], dim=1) for w in points]
    fixed = all(c[:, 1].norm() <= EXACT * c[:, 0].norm() for c in columns)
    columns = [c[:, :1] for c in columns] if fixed else columns
    targets = [parts.decay(w) - first for w, first in zip(points, firsts, strict=True)]
    found = torch.stack(
        [torch.linalg.lstsq(c, t.unsqueeze(1)).solution[:, 0] for c, t in zip(columns, targets, strict=True)]
    )
    left = [
        ((t - c @ found.mean(0)).norm() / first.norm().clamp(min=1e-300)).item()
        for c, t, first in zip(columns, targets, firsts, strict=True)
    ]
    return (found[:, 0], None if fixed else found[:, 1]), torch.tensor(left, dtype=torch.float64)


def _second_asymmetries(
    parts: _Parts, corrections: Callable[[Tensor], list[Tensor]], points: list[Tensor], lag: float
) -> Tensor:
    """Asymmetries of [ε²] P(∇C + ετ'∇Φ)⁻¹ (f₀ + εf₁ + ε²f₂)."""

    def covector(w: Tensor) -> Tensor:
        g, slope, terms = parts.scape.gradient(w), parts.slope(w), corrections(w)
        unit = torch.eye(w.numel(), dtype=torch.float64)

        def curve(rate: Tensor) -> Tensor:
            matrix = vmap(lambda v: parts.apply(g + rate * lag * slope, v))(unit).T
            return torch.linalg.solve(matrix, terms[0] + rate * terms[1] + rate**2 * terms[2])

        return taylor_coefficients(curve, 2)[2]

    return torch.tensor([asymmetry(covector, w) for w in points])


def _interval(values: Tensor) -> MeanOverPoints:
    mean, half = values.mean().item(), STUDENT * values.std().item() / math.sqrt(len(values))
    return MeanOverPoints(mean, mean - half, mean + half)


# -- in symbols -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SymbolicLag:
    """τ and τ' of C̃ = C + ετΦ and C' = C + ετ'Φ, exact."""

    gradient: Coefficient
    preconditioner: Coefficient

    def __str__(self) -> str:
        return f"C̃ = C {_signed(self.gradient)} εΦ, C' = C {_signed(self.preconditioner)} εΦ"


def _signed(coefficient: Coefficient) -> str:
    return f"{'−' if is_negative(coefficient) else '+'} {text_of(coefficient)}".rstrip()


def preconditioned_loss_symbolic(gradient: Filter, preconditioner: Filter) -> SymbolicLag:
    """The lags of a preconditioned method, exact, from its two averages: functions of (x, average).

    >>> import sympy
    >>> beta, rho = sympy.symbols("β ρ")
    >>> print(preconditioned_loss_symbolic(lambda x, average: average(x, beta), lambda x, average: average(x, rho)))
    C̃ = C + (β + 1)/(2(1−β)) εΦ, C' = C + (ρ + 1)/(2(1−ρ)) εΦ
    """
    return SymbolicLag(_lag(gradient), _lag(preconditioner))


def _lag(kept: Filter) -> Coefficient:
    """Half a step, and the mean age of what the filter returns: the number of the step, filtered, is minus its age."""
    clock = (0, ())
    seen = kept(TreeSeries(1, {clock: Polynomial([0, 1])}, base=1), average)
    seen.require_point()
    age = seen.terms.get(clock, Polynomial([]))
    return simplified(Fraction(1, 2) - age.coefficient(0))
