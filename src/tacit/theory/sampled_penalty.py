"""The penalty from a part of the micro-batches, every k-th step, or by chance: what each of them follows.

A step is ω ← ω − ε(∇C + λ·r), C the loss of all m micro-batches, rₖ = ½ ∇²Ĉₖ∇Ĉₖ the gradient of ¼‖∇Ĉₖ‖²:

    whole          r = ⟨rₖ⟩ = ∇C_reg             C̃ = C_λ + (ε/4)‖∇C_λ‖²,   C_λ = C + λ C_reg
    sampled        r = the mean over q of m, drawn anew at every step
    once each      the same, but every micro-batch is drawn once in m/q steps
    every k        r = k∇C_reg at one step of k
    probability p  r = ∇C_reg/p with probability p

One step has the same mean in all of them, and only what follows tells them apart. **Independent** draws (sampled,
probability) leave C̃ as it is. They spread the iterates: a step adds ε²λ²V to their covariance, with

    V = F ⟨δrₖ δrₖᵀ⟩, F = (m−q)/((m−1)q)    or    V = (1−p)/p ∇C_reg ∇C_regᵀ,

which pushes the mean by −½ ∇³C_λ : Cov, at a fixed time at order ε. Draws **once each** in a cycle (once each, every k)
are SGD without replacement on the losses C + λ·(what the step draws): every loss is penalised by its own step, so

    C̃ = C_λ + (ε/4)(‖∇C_λ‖² + λ² tr V),   V = (k−1) ∇C_reg ∇C_regᵀ for `every`

in the mean over groupings and orders, with a spread that is one order of ε smaller. So **once each regularizes more**:
it penalises the variance of the penalty's own gradient. The same F, and it vanishes at q = m.

**The edge.** On a quadratic a step multiplies by M = 1 − ε(H + (λ/2)⟨Hₖ²⟩), the mean over what is drawn. Independent
draws stay bounded in mean square while the spectral radius of E M⊗M is below 1: never farther than the whole penalty,
whose M is the mean. Once each multiplies all factors of a cycle: in one dimension the geometric mean of |M|, where the
whole penalty has |⟨M⟩| and independent draws √⟨M²⟩. A geometric mean is the smallest of the three where every factor
has overshot (M < 0). So independent draws have the narrowest edge, and once each can have a wider one than the whole.
"""

from __future__ import annotations

import itertools
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.func import grad, hessian, vmap

from tacit._util.arguments import whole_number
from tacit._util.errors import InputError
from tacit.edges import sampling_factor
from tacit.problem import Problem
from tacit.theory.fixed_time import Moments, integrated_moments, pushed_by_covariance, small
from tacit.theory.flows import gradient_flow_field
from tacit.theory.iterates import Rule
from tacit.theory.landscape import Field, Landscape, Parameters, product, view
from tacit.theory.logarithm import Update
from tacit.theory.modified_losses import implicit_regularizer, penalized_loss, quarter_of

Draws = Literal["independent", "once each"]
BISECTIONS = 40


# -- updates ----------------------------------------------------------------------------------------------------------
def sampled_penalty_rule(scape: Landscape, *, strength: float) -> Rule:
    """ω ← ω − ε∇(C + (λ/4) mean ‖∇Ĉₖ‖²): the mean over the drawn micro-batches, whose examples are rows (q, B)."""

    def drawn(w: Tensor, batches: Tensor) -> Tensor:
        gradients = vmap(lambda batch: scape.gradient_of(w, batch))(batches)
        return scape.loss(w) + strength * quarter_of(gradients.square().sum(1).mean())

    return lambda w, batches, rate: w - rate * grad(drawn)(w, batches)


def weighted_penalty_rule(scape: Landscape, *, strength: float) -> Rule:
    """ω ← ω − ε∇(C + weight·λ C_reg): a weight of k or 0 for `every`, of 1/p or 0 for `probability`."""

    def weighed(w: Tensor, weight: Tensor) -> Tensor:
        return penalized_loss(scape, w, strength=strength * weight.squeeze())

    return lambda w, weight, rate: w - rate * grad(weighed)(w, weight)


def sampled_penalty_update(
    problem: Problem | Landscape,
    *,
    strength: float = 0.1,
    sampled: int = 1,
    draws: Draws = "independent",
    steps: int = 1,
) -> Update:
    """The mean over all draws of q of m micro-batches: of `steps` steps, or of the m/q steps that draw each once.

    Its duration is the number of steps.
    """
    scape, _ = view(problem)
    _check(scape.batches_per_epoch, sampled, once=draws == "once each")
    batches = range(scape.batches_per_epoch)
    cycles = groupings(scape.batches_per_epoch, sampled)
    if draws == "independent":
        cycles = [list(cycle) for cycle in itertools.product(itertools.combinations(batches, sampled), repeat=steps)]
    rows = torch.stack(scape.batches)[torch.tensor(cycles)]  # (cycles, steps, q, B)
    return _mean_over(sampled_penalty_rule(scape, strength=strength), rows)


def penalty_every_update(problem: Problem | Landscape, *, strength: float = 0.1, every: int = 2) -> Update:
    """k steps, one of them with the weight kλ, in the mean over its place; their duration is k."""
    scape, _ = view(problem)
    weights = every * torch.eye(whole_number("every", every, at_least=1), dtype=torch.float64)
    return _mean_over(weighted_penalty_rule(scape, strength=strength), weights.unsqueeze(2))


def penalty_with_probability_update(
    problem: Problem | Landscape, *, strength: float = 0.1, probability: float = 0.5
) -> Update:
    """One step with the weight λ/p with probability p, in the mean: the step of the whole penalty."""
    scape, _ = view(problem)
    if not 0 < probability <= 1:
        raise InputError(f"probability={probability}; expected above 0 and at most 1.")
    rule = weighted_penalty_rule(scape, strength=strength)
    weight = torch.tensor([1 / probability], dtype=torch.float64)

    def update(w: Tensor, rate: Tensor) -> Tensor:
        return probability * rule(w, weight, rate) + (1 - probability) * rule(w, 0 * weight, rate)

    return update


def _mean_over(rule: Rule, cycles: Tensor) -> Update:
    """The mean end of all cycles, whose steps are in the second dimension."""

    def update(w: Tensor, rate: Tensor) -> Tensor:
        points = w.expand(len(cycles), *w.shape)
        for step in cycles.unbind(1):
            points = vmap(rule, (0, 0, None))(points, step, rate)
        return points.mean(0)

    return update


def groupings(batches: int, sampled: int) -> list[list[tuple[int, ...]]]:
    """Every way to visit each micro-batch once, q at a time: ordered partitions, each equally likely.

    >>> len(groupings(4, 2)), groupings(2, 1)
    (6, [[(0,), (1,)], [(1,), (0,)]])
    """
    _check(batches, sampled, once=True)
    found: list[list[tuple[int, ...]]] = [[]]
    for _ in range(batches // sampled):
        found = [
            [*cycle, group]
            for cycle in found
            for group in itertools.combinations(sorted(set(range(batches)) - set(sum(cycle, ()))), sampled)
        ]
    return found


# -- losses and moments -----------------------------------------------------------------------------------------------
def modified_loss_of_sampled_penalty(
    problem: Problem | Landscape,
    parameters: Parameters = None,
    *,
    learning_rate: float | Tensor,
    strength: float,
    sampled: int,
    draws: Draws = "independent",
) -> Tensor:
    """C̃ = C_λ + (ε/4)‖∇C_λ‖², and with draws once each (ε/4) λ² F ⟨‖rₖ − ⟨rₖ⟩‖²⟩ more; rₖ = ½ ∇²Ĉₖ∇Ĉₖ.

    With q = m both are the whole penalty. A penalty with probability p has the C̃ of independent draws.
    """
    scape, w = view(problem, parameters)
    if draws not in get_args(Draws):
        raise InputError(f"draws={draws!r}; expected one of {', '.join(get_args(Draws))}.")
    _check(scape.batches_per_epoch, sampled, once=draws == "once each")
    variance = _penalty_variance(scape, w, sampled) if draws == "once each" else torch.zeros(())
    return _penalized_twice(scape, w, learning_rate, strength, variance)


def modified_loss_of_penalty_every(
    problem: Problem | Landscape,
    parameters: Parameters = None,
    *,
    learning_rate: float | Tensor,
    strength: float,
    every: int,
) -> Tensor:
    """C̃ = C_λ + (ε/4)(‖∇C_λ‖² + (k−1) λ²‖∇C_reg‖²), in the mean over the place of the penalised step in its cycle."""
    scape, w = view(problem, parameters)
    variance = (whole_number("every", every, at_least=1) - 1) * _penalty_gradients(scape, w).mean(0).square().sum()
    return _penalized_twice(scape, w, learning_rate, strength, variance)


def sampled_penalty_correction(
    problem: Problem | Landscape, parameters: Parameters = None, *, strength: float, sampled: int, steps: int
) -> Tensor:
    """φ₂ of the mean over independent draws after n steps: −⅓ H²g − 1/12 T[g,g] − ((n−1)/4) λ² T:V, all of C_λ."""
    scape, w = view(problem, parameters)
    loss = lambda p: penalized_loss(scape, p, strength=strength)  # noqa: E731
    own, away = grad(loss)(w), _deviations(scape, w)
    chain = product(loss, w, product(loss, w, own))
    spread = scape.map(lambda row: product(loss, w, row, row), away).mean(0)
    factor = sampling_factor(scape.batches_per_epoch, sampled) * strength**2
    return -chain / 3 - product(loss, w, own, own) / 12 - (steps - 1) / 4 * factor * spread


def moments_with_sampled_penalty(
    problem: Problem | Landscape,
    parameters: Parameters = None,
    *,
    learning_rate: float,
    strength: float,
    sampled: int,
    updates: int,
) -> Moments:
    """Mean and covariance after many updates with independent draws: μ̇ = −∇C̃ − ½ T:S, Ṡ = −HS − SH + ελ²V, of C_λ.

    Errors at a fixed time: O(ε²). With q = m the covariance is zero.
    """
    scape, w = small(problem, parameters)
    gradient: Field = grad(lambda p: penalized_loss(scape, p, strength=strength))
    factor = learning_rate * sampling_factor(scape.batches_per_epoch, sampled) * strength**2

    def drift(mean: Tensor, covariance: Tensor) -> Tensor:
        modified = gradient_flow_field(
            lambda p: modified_loss_of_sampled_penalty(
                scape, p, learning_rate=learning_rate, strength=strength, sampled=sampled
            )
        )
        return modified(mean) - pushed_by_covariance(gradient, mean, covariance)

    def noise(mean: Tensor) -> Tensor:
        away = _deviations(scape, mean)
        return factor * away.T @ away / len(away)

    return integrated_moments(gradient, w, drift, noise, time=updates * learning_rate)


def _penalized_twice(
    scape: Landscape, w: Tensor, learning_rate: float | Tensor, strength: float, variance: Tensor
) -> Tensor:
    whole = scape.gradient(w) + strength * _penalty_gradients(scape, w).mean(0)
    own = quarter_of(whole.square().sum() + strength**2 * variance)
    return scape.loss(w) + strength * implicit_regularizer(scape, w) + learning_rate * own


def _penalty_gradients(scape: Landscape, w: Tensor) -> Tensor:
    """rₖ = ½ ∇²Ĉₖ∇Ĉₖ as rows."""
    return scape.minibatch_products(w, scape.minibatch_gradients(w)) / 2


def _deviations(scape: Landscape, w: Tensor) -> Tensor:
    rows = _penalty_gradients(scape, w)
    return rows - rows.mean(0)


def _penalty_variance(scape: Landscape, w: Tensor, sampled: int) -> Tensor:
    """tr V = F ⟨‖δrₖ‖²⟩."""
    return sampling_factor(scape.batches_per_epoch, sampled) * _deviations(scape, w).square().sum(1).mean()


# -- the edge ---------------------------------------------------------------------------------------------------------
def sampled_penalty_growth(
    problem: Problem | Landscape,
    parameters: Parameters = None,
    *,
    learning_rate: float,
    strength: float,
    sampled: int,
    draws: Draws = "independent",
) -> float:
    """By which factor a step multiplies the mean square distance from a minimum, in the long run: stable below 1.

    On the quadratic with the Hessians at the parameters. With independent draws the spectral radius of E M⊗M; once each
    that of a whole cycle, to the power of one step.
    """
    scape, w = small(problem, parameters)
    each = vmap(lambda batch: hessian(scape.loss_of)(w, batch))(torch.stack(scape.batches))
    return _growth(each, learning_rate, strength, sampled, draws)


def sampled_penalty_edge(
    problem: Problem | Landscape,
    parameters: Parameters = None,
    *,
    learning_rate: float,
    sampled: int,
    draws: Draws = "independent",
) -> float:
    """λ* of the sampled penalty: up to it the mean square stays bounded, on the quadratic with the Hessians here.

    0 where already the plain step is unstable. `sampled` = m is the whole penalty.
    """
    scape, w = small(problem, parameters)
    each = vmap(lambda batch: hessian(scape.loss_of)(w, batch))(torch.stack(scape.batches))
    low, high = 0.0, 1e-2 / each.mean(0).norm().item()
    if _growth(each, learning_rate, low, sampled, draws) >= 1:
        return 0.0
    while _growth(each, learning_rate, high, sampled, draws) < 1:
        low, high = high, 1.1 * high  # small steps: beyond the edge there may be another stable stretch
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        stable = _growth(each, learning_rate, middle, sampled, draws) < 1
        low, high = (middle, high) if stable else (low, middle)
    return low


def _growth(each: Tensor, learning_rate: float, strength: float, sampled: int, draws: Draws) -> float:
    batches, size = len(each), each.shape[-1]
    _check(batches, sampled, once=draws == "once each")
    plain, squares = torch.eye(size, dtype=torch.float64) - learning_rate * each.mean(0), each @ each

    def step(group: tuple[int, ...]) -> Tensor:
        return plain - learning_rate * strength / 2 * squares[list(group)].mean(0)

    once = draws == "once each"
    cycles = groupings(batches, sampled) if once else [[g] for g in itertools.combinations(range(batches), sampled)]
    total = torch.zeros(size**2, size**2, dtype=torch.float64)
    for cycle in cycles:
        product = torch.eye(size, dtype=torch.float64)
        for group in cycle:
            product = step(group) @ product
        total = total + torch.kron(product, product)
    radius = torch.linalg.eigvals(total / len(cycles)).abs().max().item()
    return float(radius ** (1 / len(cycles[0])))


def _check(batches: int, sampled: int, *, once: bool = False) -> None:
    if not 1 <= whole_number("sampled", sampled) <= batches:
        raise InputError(f"sampled={sampled} of {batches} micro-batches; expected 1 to {batches}.")
    if once and batches % sampled:
        raise InputError(f"sampled={sampled} does not divide {batches} micro-batches; expected a divisor of {batches}.")
