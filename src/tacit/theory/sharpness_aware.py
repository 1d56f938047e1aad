"""Sharpness-aware minimization, whole and from a sample of rows, and where it is a gradient penalty.

A step is ω ← ω − ε ∇C(ω + ρ d): the gradient of the whole batch at a moved point. d is a direction made from n of the B
rows, d = g_S (SAM without normalization) or g_S/‖g_S‖, with S drawn anew at every step. In the mean over the draws, to
second order in ρ and ε together,

    f̃ = −g − ρ H ē − ½ρ² T:⟨d dᵀ⟩ − ½ε [Hg + ρ(H H ē + (H ē)'g)] + ε² f₂,   ē = ⟨d⟩,

H and T the derivatives of the *whole* batch and f₂ that of gradient descent. What the sample adds:

- **Not normalized**, ē = g: nothing at order ρ. The rows of the direction are a part of the batch, so that E[H g_S] is
  H g for every n: the loss is C + (ρ/2)‖∇C‖², that of a penalty of strength λ = 2ρ on the whole batch, without the
  variance between rows that a penalty on micro-batches, ⟨Hₖgₖ⟩, has. The sample enters at ρ², as −½ρ² T:Cov(g_S), with
  Cov(g_S) = (B−n)/((B−1)n) times the covariance of single rows: a push away from curvature along the noise.
- **Normalized**, ē is shorter than g/‖g‖ and points where the rows agree; the rest of the length 1 = ⟨‖d‖²⟩ is noise,
  and is in T:⟨d dᵀ⟩. As n falls the first-order term shrinks and the term of the finite radius stays.

A penalty has no ρ² term of its own. So SAM (not normalized) and the penalty of the whole batch are one regularizer to
the orders ρ and ρε, and part at ρ², by ½ρ² T:⟨d dᵀ⟩, which has no loss; on a quadratic they never part.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit._util.arguments import whole_number
from tacit._util.errors import InputError
from tacit.problem import Problem
from tacit.theory.corrections import gd_second_correction
from tacit.theory.flows import RateField
from tacit.theory.iterates import Rule
from tacit.theory.landscape import Landscape, Parameters, derivative, view
from tacit.theory.logarithm import Update
from tacit.theory.orders import ENUMERATED_SEQUENCES


@dataclass(frozen=True)
class SamTerms:
    """The terms of f̃ of SAM: of ρ, ρ² and ρε, each a vector, without their powers."""

    first: Tensor
    second: Tensor
    mixed: Tensor


def sam_rule(scape: Landscape, *, radius: float, normalized: bool = True) -> Rule:
    """ω ← ω − ε∇C(ω + rε d), the direction from the given rows: a radius r times the rate, so that orders are in ε."""

    def rule(w: Tensor, rows: Tensor, rate: Tensor) -> Tensor:
        g = scape.gradient_of(w, rows)
        direction = g / g.norm() if normalized else g
        return w - rate * scape.gradient(w + radius * rate * direction)

    return rule


def sam_from_rows(
    problem: Problem | Landscape, *, radius: float = 0.05, rows: int = 2, normalized: bool = True
) -> Update:
    """ω ← ω − ε∇C(ω + ρ d) in the mean over all choices of the rows that d is made from; its ρ does not shrink."""
    scape, _ = view(problem)
    samples = row_samples(scape, rows)

    def update(w: Tensor, rate: Tensor) -> Tensor:
        def moved_gradient(drawn: Tensor) -> Tensor:
            g = scape.gradient_of(w, drawn)
            return scape.gradient(w + radius * (g / g.norm() if normalized else g))

        return w - rate * scape.map(moved_gradient, samples).mean(0)

    return update


def row_samples(problem: Problem | Landscape, rows: int) -> Tensor:
    """Every choice of n of the B rows of the whole batch, one per row."""
    scape, _ = view(problem)
    size = scape.train_size
    if not scape.separable:
        raise InputError("the model mixes its examples, or minibatches leave some out; expected rows of their own.")
    if not 1 <= whole_number("rows", rows) <= size:
        raise InputError(f"rows={rows} of a batch of {size}; expected 1 to {size}.")
    if math.comb(size, rows) > ENUMERATED_SEQUENCES:
        raise InputError(
            f"{rows} of {size} rows can be drawn in {math.comb(size, rows)} ways; expected at most "
            f"{ENUMERATED_SEQUENCES}. Use fewer rows or fewer examples."
        )
    return torch.tensor(list(itertools.combinations(range(size), rows)), dtype=torch.long)


def sam_terms(
    problem: Problem | Landscape, parameters: Parameters = None, *, rows: int | None = None, normalized: bool = True
) -> SamTerms:
    """−H ē, −½ T:⟨d dᵀ⟩ and −½(H H ē + (H ē)'g), exact means over all samples of `rows` rows (all B unless given)."""
    scape, w = view(problem, parameters)
    samples = row_samples(scape, scape.train_size if rows is None else rows)

    def directions(p: Tensor) -> Tensor:
        g = scape.map(lambda rows: scape.gradient_of(p, rows), samples)
        return g / g.norm(dim=1, keepdim=True) if normalized else g

    def along_mean(p: Tensor) -> Tensor:
        return scape.hessian_product(p, directions(p).mean(0))

    turned = derivative(along_mean, w, scape.gradient(w))
    spread = scape.map(lambda d: scape.third(w, d, d), directions(w)).mean(0)
    own = along_mean(w)
    return SamTerms(-own, -spread / 2, -(scape.hessian_product(w, own) + turned) / 2)


def sam_field(
    problem: Problem | Landscape, *, radius: float, rows: int | None = None, normalized: bool = True
) -> RateField:
    """(ω, ε) ↦ f̃ of SAM with ρ = radius·ε, to second order in ρ and ε; for `rows` see `sam_terms`."""
    scape, _ = view(problem)

    def field(w: Tensor, rate: Tensor) -> Tensor:
        g, terms = scape.gradient(w), sam_terms(scape, w, rows=rows, normalized=normalized)
        first = radius * terms.first - scape.hessian_product(w, g) / 2
        second = radius**2 * terms.second + radius * terms.mixed + gd_second_correction(scape, w)
        return -g + rate * first + rate**2 * second

    return field
