"""The strength λ of this package, from and to the coefficients of other people's code and papers.

Everyone adds some multiple c of ∇²Ĉ ∇Ĉ to the gradient (SAM and GNP to first order in their radius). Here the update
follows ∇Ĉ + (λ/2) ∇²Ĉ ∇Ĉ, so λ = 2c. A `Convention` states c for one coefficient of theirs equal to 1; the rest is
one multiplication.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tacit._util.arguments import finite_number
from tacit._util.errors import InputError


@dataclass(frozen=True)
class Convention:
    """How one code base writes the penalty: their coefficient times `per_unit(...)` multiplies ∇²Ĉ ∇Ĉ."""

    name: str
    coefficient: str  # their name for the number
    penalty: str  # what they add to the loss (or to the gradient), in their symbols
    needs: tuple[str, ...]  # what else the number depends on
    per_unit: Callable[..., float]  # c for a coefficient of 1
    note: str = ""


CONVENTIONS: dict[str, Convention] = {
    fact.name: fact
    for fact in (
        Convention(
            "fullbatchtraining",
            "grad_reg.block_strength",
            "adds (lr/4) · H(block_strength · g) to g",
            ("learning_rate",),
            lambda learning_rate: learning_rate / 4,
            "implementation = forward-differences, central-differences or autograd; follows the current rate",
        ),
        Convention(
            "fullbatchtraining_pen",
            "grad_reg.block_strength",
            "adds (lr/4) · ∇(block_strength · ‖g‖²) to g",
            ("learning_rate",),
            lambda learning_rate: learning_rate / 2,
            "implementation = autograd-pen, and the value that its log reports: twice the others",
        ),
        Convention(
            "imp_regularizers",
            "--exter-lambda",
            "loss + exter_lambda · ‖g‖²",
            (),
            lambda: 2.0,
            "per micro-batch: use it as micro_batch_size",
        ),
        Convention(
            "sam",
            "rho",
            "g taken at ω + ρ g/‖g‖",
            ("gradient_norm",),
            lambda gradient_norm: 1 / gradient_norm,
            "to first order in ρ; the equivalent λ drifts as ‖g‖ changes",
        ),
        Convention(
            "gnp",
            "alpha · r",
            "(1−α) g + α g(ω + r g/‖g‖), penalty (αr) · ‖g‖",
            ("gradient_norm",),
            lambda gradient_norm: 1 / gradient_norm,
            "norm_perturbations = False; to first order in r; the equivalent λ drifts as ‖g‖ changes",
        ),
        Convention(
            "trl",
            "grad_reg_strength",
            "g + strength · (g(ω + e g) − g)/e",
            (),
            lambda: 1.0,
            "before its clipping of g",
        ),
        Convention(
            "barrett_dherin",
            "lambda",
            "loss + λ_BD · ‖g‖²/p",
            ("parameter_count",),
            lambda parameter_count: 2 / parameter_count,
            "their implicit value is λ_BD = h p/4, which is λ = h here",
        ),
        Convention(
            "discretisation_drift",
            "self_norm multiplier",
            "loss + k · (lr/4) · ‖g‖²",
            ("learning_rate",),
            lambda learning_rate: learning_rate / 2,
            "k = −1 cancels the implicit regularizer of gradient descent",
        ),
    )
}


def to_strength(convention: str, coefficient: float, **context: float) -> float:
    """λ, in units of the learning rate, that acts like `coefficient` of another code base.

    λ = 2c   where they add c ∇²Ĉ ∇Ĉ to the gradient

    The context holds what their number depends on, by name: `learning_rate`, `gradient_norm` (‖∇Ĉ‖ now) or
    `parameter_count`. With a gradient norm or a changing rate the λ holds for this moment only.

    >>> to_strength("imp_regularizers", 0.01)
    0.04
    >>> to_strength("sam", 0.05, gradient_norm=2.0)
    0.05
    """
    return 2 * _finite("coefficient", coefficient) * _per_unit(convention, context)


def from_strength(convention: str, strength: float, **context: float) -> float:
    """Their coefficient that acts like `strength` = λ of this package: the inverse of `to_strength`.

    >>> from_strength("fullbatchtraining", 0.2, learning_rate=0.8)
    0.5
    >>> from_strength("fullbatchtraining_pen", 0.2, learning_rate=0.8)
    0.25
    """
    return _finite("strength", strength) / (2 * _per_unit(convention, context))


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise InputError(f"{name}={value!r}; expected a finite number.")
    return float(value)


def _per_unit(convention: str, context: dict[str, float]) -> float:
    if convention not in CONVENTIONS:
        raise InputError(f"convention {convention!r} is unknown; use one of {', '.join(CONVENTIONS)}.")
    fact = CONVENTIONS[convention]
    if set(context) != set(fact.needs):
        raise InputError(
            f"{convention} got {', '.join(sorted(context)) or 'no context'}; "
            f"expected {', '.join(fact.needs) or 'none'}: {fact.penalty}."
        )
    return fact.per_unit(**{name: finite_number(name, value, positive=True) for name, value in context.items()})
