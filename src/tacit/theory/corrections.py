"""Closed forms beyond the modified loss: fields and moments at the next order, for fixed minibatches.

Notation: gⱼ = ∇Ĉⱼ, Hⱼ = ∇∇Ĉⱼ, Tⱼ = ∇³Ĉⱼ; without index their mean; ⟨·⟩ the mean over minibatches; fⱼ = −gⱼ.
Everything with a T needs third derivatives: see `guards.require_third_derivatives`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit._util.errors import InputError
from tacit.problem import Problem
from tacit.theory.landscape import Field, Landscape, Parameters, product, view


# -- one map, no minibatches ------------------------------------------------------------------------------------------
def gd_first_correction(problem: Problem | Landscape, parameters: Parameters = None) -> Tensor:
    """f₁ = −½ H g                                                                             (Eq. 9)"""
    scape, w = view(problem, parameters)
    return -scape.hessian_product(w, scape.gradient(w)) / 2


def gd_second_correction(problem: Problem | Landscape, parameters: Parameters = None) -> Tensor:
    """f₂ = −⅓ H H g − 1/12 T[g, g]. Not a gradient field: beyond first order only a modified flow exists."""
    scape, w = view(problem, parameters)
    g = scape.gradient(w)
    hessian_twice = scape.hessian_product(w, scape.hessian_product(w, g))
    return -hessian_twice / 3 - scape.third(w, g, g) / 12


# -- the mean over orders ---------------------------------------------------------------------------------------------
def sgd_first_correction(problem: Problem | Landscape, parameters: Parameters = None) -> Tensor:
    """φ₁ = −½ ⟨Hⱼ gⱼ⟩ = −∇C_reg, from E(ξ) in Eq. 16."""
    scape, w = view(problem, parameters)
    return -scape.minibatch_products(w, scape.minibatch_gradients(w)).mean(0) / 2


def sgd_second_correction(
    problem: Problem | Landscape, parameters: Parameters = None, *, inner_steps: int = 1
) -> Tensor:
    """φ₂, the ε² term of the flow that the mean over orders follows; not in the paper.

    φ₂ = ⟨f₂ⱼ⟩/n² + (m/12) ⟨[fⱼ, [fⱼ, f]]⟩,   f₂ⱼ = −⅓ HⱼHⱼgⱼ − 1/12 Tⱼ[gⱼ, gⱼ]

    with n inner steps; see `double_bracket` for the second term. Costs about 8m + 2m² minibatch products: the bracket
    needs m full-batch products. `sgd_second_correction_estimate` is unbiased and costs O(m).
    """
    scape, w = view(problem, parameters)
    return own_second_corrections(scape, w).mean(0) / inner_steps**2 + double_bracket(scape, w)


def own_second_corrections(problem: Problem | Landscape, parameters: Parameters = None) -> Tensor:
    """f₂ⱼ = −⅓ HⱼHⱼgⱼ − 1/12 Tⱼ[gⱼ, gⱼ] as rows: each minibatch's own gradient-descent correction."""
    scape, w = view(problem, parameters)
    g = scape.minibatch_gradients(w)
    hessian_twice = scape.minibatch_products(w, scape.minibatch_products(w, g))
    return -hessian_twice / 3 - scape.minibatch_thirds(w, g, g) / 12


def double_bracket(problem: Problem | Landscape, parameters: Parameters = None) -> Tensor:
    """(m/12) ⟨[fⱼ, [fⱼ, f]]⟩, what averaging over orders leaves of the commutators; zero for identical minibatches.

    = −(m/12) { ⟨HⱼHⱼ⟩g + H⟨Hⱼgⱼ⟩ − 2⟨HⱼHgⱼ⟩ + ⟨T[gⱼ, gⱼ]⟩ − ⟨Tⱼ[gⱼ, g]⟩ },   [X, Y] = Y'X − X'Y
    """
    scape, w = view(problem, parameters)
    return _bracket_but_full_batch_terms(scape, w) + _full_batch_terms(scape, w, scape.minibatch_gradients(w))


def sgd_second_correction_estimate(
    problem: Problem | Landscape, parameters: Parameters = None, *, signs: Tensor, inner_steps: int = 1
) -> Tensor:
    """An unbiased estimate of φ₂ from random signs, at O(m) minibatch products per row of `signs`.

    With independent zⱼ = ±1 and v = Σ zⱼ gⱼ:  E (1/m) Σ zⱼ Hⱼ H v = ⟨HⱼHgⱼ⟩  and  E (1/m) T[v, v] = ⟨T[gⱼ, gⱼ]⟩.
    The mean over all 2^m signs is φ₂ exactly.
    """
    scape, w = view(problem, parameters)
    batches = scape.batches_per_epoch
    if signs.dim() != 2 or signs.shape[1] != batches:
        raise InputError(f"signs have shape {tuple(signs.shape)}; expected rows of {batches} signs, one per minibatch.")
    g = scape.minibatch_gradients(w)
    total = torch.zeros_like(w)
    for z in signs.to(torch.float64):
        v = z @ g
        crossed = z @ scape.minibatch_products(w, scape.hessian_product(w, v).expand(batches, -1))
        total = total + (2 * crossed - scape.third(w, v, v)) / 12  # (m/12) times means that carry 1/m
    own = own_second_corrections(scape, w).mean(0) / inner_steps**2
    return own + _bracket_but_full_batch_terms(scape, w) + total / len(signs)


def _bracket_but_full_batch_terms(scape: Landscape, w: Tensor) -> Tensor:
    """The terms of the double bracket that cost O(m)."""
    batches = scape.batches_per_epoch
    each = scape.minibatch_gradients(w)
    full = each.mean(0).expand(batches, -1)
    squares = scape.minibatch_products(w, scape.minibatch_products(w, full)).mean(0)
    own = scape.hessian_product(w, scape.minibatch_products(w, each).mean(0))
    return -batches / 12 * (squares + own - scape.minibatch_thirds(w, each, full).mean(0))


def _full_batch_terms(scape: Landscape, w: Tensor, each: Tensor) -> Tensor:
    """−(m/12) { −2⟨HⱼHgⱼ⟩ + ⟨T[gⱼ, gⱼ]⟩ }: m full-batch products."""
    through_full = scape.map(lambda v: scape.hessian_product(w, v), each)
    crossed = scape.minibatch_products(w, through_full).mean(0)
    thirds = scape.map(lambda v: scape.third(w, v, v), each).mean(0)
    return -scape.batches_per_epoch / 12 * (thirds - 2 * crossed)


def expected_second_correction(problem: Problem | Landscape, parameters: Parameters = None) -> Tensor:
    """E φ₂, the mean of φ₂ over random partitions of the examples into minibatches of the problem's own size B.

    E φ₂ = −⅓ E⟨HⱼHⱼgⱼ⟩ − 1/12 E⟨Tⱼ[gⱼ, gⱼ]⟩ + (m/12) E⟨[fⱼ, [fⱼ, f]]⟩, every mean over minibatches written with
    deviations of examples: ⟨δa δb⟩ → c₂ (1/N) Σᵢ δaᵢ δbᵢ and cubic ones → c₃ (1/N) Σᵢ …, where

    c₂ = (N−B)/((N−1)B),   c₃ = (N−B)(N−2B)/((N−1)(N−2)B²).

    Costs about 15 N products with single examples and 6 N with all.
    """
    scape, w = view(problem, parameters)
    if not (scape.separable and scape.train_size >= 3):
        raise InputError(
            "the mean over partitions needs at least three examples, minibatches that cover them, and a model that "
            "does not mix them; use `sgd_second_correction` for fixed minibatches."
        )
    size, batches, batch = scape.train_size, scape.batches_per_epoch, len(scape.batches[0])
    square = (size - batch) / ((size - 1) * batch)
    cube = (size - batch) * (size - 2 * batch) / ((size - 1) * (size - 2) * batch**2)
    moments = _example_moments(scape, w)
    chain = (
        moments["HHg"] + square * (moments["δHδHg"] + moments["HδHδg"] + moments["δHHδg"]) + cube * moments["δHδHδg"]
    )
    bush = moments["Tgg"] + square * (2 * moments["δTδgg"] + moments["Tδgδg"]) + cube * moments["δTδgδg"]
    bracket = moments["δHδHg"] + moments["HδHδg"] - 2 * moments["δHHδg"] + moments["Tδgδg"] - moments["δTδgg"]
    return -chain / 3 - bush / 12 - batches / 12 * square * bracket


def _example_moments(scape: Landscape, w: Tensor) -> dict[str, Tensor]:
    """(1/N) Σᵢ of the products that E φ₂ is made of, δ the deviation of example i from the mean."""
    singles = torch.arange(scape.train_size).unsqueeze(1)
    full_product = lambda rows: scape.map(lambda v: scape.hessian_product(w, v), rows)  # noqa: E731
    full_third = lambda left, right: scape.map(lambda u, v: scape.third(w, u, v), left, right)  # noqa: E731

    def deviating_product(rows: Tensor) -> Tensor:
        own = scape.map(lambda one, v: product(lambda p: scape.loss_of(p, one), w, v), singles, rows)
        return own - full_product(rows)

    def deviating_third(left: Tensor, right: Tensor) -> Tensor:
        own = scape.map(lambda one, u, v: product(lambda p: scape.loss_of(p, one), w, u, v), singles, left, right)
        return own - full_third(left, right)

    gradients = scape.example_gradients(w)
    g = gradients.mean(0)
    away, mean = gradients - g, g.expand_as(gradients)
    return {
        "HHg": scape.hessian_product(w, scape.hessian_product(w, g)),
        "Tgg": scape.third(w, g, g),
        "δHδHg": deviating_product(deviating_product(mean)).mean(0),
        "HδHδg": scape.hessian_product(w, deviating_product(away).mean(0)),
        "δHHδg": deviating_product(full_product(away)).mean(0),
        "Tδgδg": full_third(away, away).mean(0),
        "δTδgg": deviating_third(away, mean).mean(0),
        "δHδHδg": deviating_product(deviating_product(away)).mean(0),
        "δTδgδg": deviating_third(away, away).mean(0),
    }


# -- one order --------------------------------------------------------------------------------------------------------
def order_correction(
    problem: Problem | Landscape, parameters: Parameters = None, *, order: Sequence[int] | None = None
) -> Tensor:
    """ξ = Σⱼ Σ_{k<j} Hⱼ gₖ for minibatches in the given order (Eq. 14), the ε² term of one epoch of SGD."""
    scape, w = view(problem, parameters)
    picked = _in_order(scape, order)
    g = scape.minibatch_gradients(w)[picked]
    before = torch.cumsum(g, dim=0) - g
    return scape.minibatch_products(w, before[_inverse(picked)]).sum(0)


def expected_order_correction(problem: Problem | Landscape, parameters: Parameters = None) -> Tensor:
    """E(ξ) = (m²/2) H g − ½ Σⱼ Hⱼ gⱼ over all orders                                           (Eq. 16)"""
    scape, w = view(problem, parameters)
    batches, g = scape.batches_per_epoch, scape.minibatch_gradients(w)
    own = scape.minibatch_products(w, g).sum(0)
    return batches**2 / 2 * scape.hessian_product(w, g.mean(0)) - own / 2


def commutator(
    problem: Problem | Landscape, parameters: Parameters = None, *, order: Sequence[int] | None = None
) -> Tensor:
    """(1/2m) Σ_{j<k} [fⱼ, fₖ], the ε term that one fixed order adds to −∇C̃_SGD: its own bias, with mean zero.

    [fⱼ, fₖ] = fₖ' fⱼ − fⱼ' fₖ = Hₖ gⱼ − Hⱼ gₖ, so the sum is 2(ξ − E ξ): what ξ deviates from its mean.
    """
    scape, w = view(problem, parameters)
    deviation = order_correction(scape, w, order=order) - expected_order_correction(scape, w)
    return deviation / scape.batches_per_epoch


def mirrored_second_correction(
    problem: Problem | Landscape, parameters: Parameters = None, *, order: Sequence[int] | None = None
) -> Tensor:
    """The ε² term of the flow that one order there and back follows; it depends on the order, as C̃_SGD does not.

    ⟨f₂ⱼ⟩ + (1/2m) Σⱼ ( −⅓ [fⱼ, [fⱼ, Sⱼ]] + ⅔ [Sⱼ, [Sⱼ, fⱼ]] ),   Sⱼ = Σ_{k after j} fₖ

    From log(ABBA) = 2 Σ Xⱼ − ⅓ Σ [Xⱼ, [Xⱼ, S]] + ⅔ Σ [S, [S, Xⱼ]]: a palindrome has no single commutators.
    """
    scape, w = view(problem, parameters)
    picked = [scape.batches[k] for k in _in_order(scape, order).tolist()]
    total = torch.zeros_like(w)
    for position in range(len(picked) - 1):
        own, later = picked[position], picked[position + 1 :]

        def one(p: Tensor, own: Tensor = own) -> Tensor:
            return scape.loss_of(p, own)

        def rest(p: Tensor, later: Sequence[Tensor] = later) -> Tensor:
            return torch.stack([scape.loss_of(p, batch) for batch in later]).sum()

        total = total - _twice_bracketed(one, rest, w) / 3 + 2 * _twice_bracketed(rest, one, w) / 3
    return own_second_corrections(scape, w).mean(0) + total / (2 * len(picked))


def _twice_bracketed(a: Field, b: Field, w: Tensor) -> Tensor:
    """[A, [A, B]] of A = −∇a and B = −∇b, [X, Y] = Y'X − X'Y."""
    to_a, to_b = product(a, w), product(b, w)
    inner = product(b, w, to_a) - product(a, w, to_b)
    slope = product(b, w, to_a, to_a) + product(b, w, product(a, w, to_a))
    slope = slope - product(a, w, to_a, to_b) - product(a, w, product(b, w, to_a))
    return product(a, w, inner) - slope


def order_covariance(problem: Problem | Landscape, parameters: Parameters = None) -> Tensor:
    """V = Cov(ξ) over all orders, so that Cov(ω_m) = ε⁴ V + O(ε⁵) after one epoch; the same for n-step SGD.

    V = (m²/12) Σⱼ uⱼuⱼᵀ + (1/24) Σⱼₖ cⱼₖcⱼₖᵀ,   uⱼ = Hⱼg − Hgⱼ,   cⱼₖ = Hⱼgₖ − Hₖgⱼ

    Costs m full-batch and m² minibatch products.
    """
    scape, w = view(problem, parameters)
    batches, g = scape.batches_per_epoch, scape.minibatch_gradients(w)
    products = torch.stack([scape.minibatch_products(w, g[k].expand(batches, -1)) for k in range(batches)], dim=1)
    pairs = products - products.transpose(0, 1)  # cⱼₖ at [j, k]
    means = pairs.mean(1)  # uⱼ = ⟨cⱼₖ⟩ₖ
    both = pairs.reshape(-1, scape.size)
    return batches**2 / 12 * means.T @ means + both.T @ both / 24


# -- with replacement -------------------------------------------------------------------------------------------------
def iid_second_correction(problem: Problem | Landscape, parameters: Parameters = None) -> Tensor:
    """φ₂ of the mean when minibatches are drawn with replacement: f₂ − ((m−1)/4) T:Σ, Σ = ⟨δg δgᵀ⟩.

    Its φ₁ is that of gradient descent: independent draws have no variance penalty in their mean.
    """
    scape, w = view(problem, parameters)
    g = scape.minibatch_gradients(w)
    contraction = scape.map(lambda v: scape.third(w, v, v), g - g.mean(0)).mean(0)
    return gd_second_correction(scape, w) - (scape.batches_per_epoch - 1) / 4 * contraction


def iid_nstep_first_correction(
    problem: Problem | Landscape, parameters: Parameters = None, *, inner_steps: int
) -> Tensor:
    """φ₁ of n-step SGD with replacement: −½ H g + ½ (1 − 1/n) ⟨Hⱼgⱼ⟩.

    It rewards gradient variance: the 1/n law of Eq. 39 belongs to sampling without replacement.
    """
    scape, w = view(problem, parameters)
    own = scape.minibatch_products(w, scape.minibatch_gradients(w)).mean(0)
    return gd_first_correction(scape, w) + (1 - 1 / inner_steps) / 2 * own


def _in_order(scape: Landscape, order: Sequence[int] | None) -> Tensor:
    batches = scape.batches_per_epoch
    picked = list(range(batches)) if order is None else list(order)
    if sorted(picked) != list(range(batches)):
        raise InputError(f"order={tuple(picked)} is not an order of {batches} minibatches; expected each index once.")
    return torch.tensor(picked)


def _inverse(permutation: Tensor) -> Tensor:
    return torch.argsort(permutation)
