"""Moments of SGD at a fixed time: many epochs, fresh orders in each, one order for all, or independent draws.

After one epoch the spread over orders is of order ε². Over a fixed time there are T/(mε) epochs, and it depends on how
the orders of different epochs are related:

    shuffled anew in every epoch   Cov = O(ε³):   Ṡ = −HS − SH + (ε³/m) V,   V = Cov(ξ) of one epoch
    shuffled once                  Cov = O(ε²):   every order keeps its own commutator
    drawn with replacement         Cov = O(ε):    Ṡ = −HS − SH + ε Σ,        Σ the covariance of minibatch gradients

With replacement the covariance acts back on the mean at first order, μ̇ = −∇C̃_GD − ½ T:S, so that no modified loss
describes the mean alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, jacfwd

from tacit._util.errors import InputError
from tacit.problem import Problem
from tacit.theory import corrections as closed
from tacit.theory.flows import flow, gradient_flow_field
from tacit.theory.iterates import sgd_rule, walk
from tacit.theory.landscape import Field, Landscape, Parameters, view
from tacit.theory.modified_losses import modified_loss_gd, modified_loss_sgd
from tacit.theory.orders import sequences_with_replacement, steps_of

LARGEST = 60  # parameters: the system carries a d×d covariance and differentiates a dense Hessian
RTOL, ATOL = 1e-9, 1e-15


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of the parameters."""

    mean: Tensor
    covariance: Tensor


def moments_with_fresh_orders(
    problem: Problem | Landscape, parameters: Parameters = None, *, learning_rate: float, epochs: int
) -> Moments:
    """Mean and covariance after many epochs, each in a new random order; not in the paper.

    μ̇ = −∇C̃_SGD(μ) + ε² φ₂(μ),   Ṡ = −HS − SH + (ε³/m) V        (`corrections.order_covariance`)

    Errors at a fixed time: O(ε³) of the mean, O(ε⁴) of the covariance.
    """
    scape, w = small(problem, parameters)

    def drift(mean: Tensor, _: Tensor) -> Tensor:
        modified = gradient_flow_field(lambda p: modified_loss_sgd(scape, p, learning_rate=learning_rate))
        return modified(mean) + learning_rate**2 * closed.sgd_second_correction(scape, mean)

    def noise(mean: Tensor) -> Tensor:
        return learning_rate**3 / scape.batches_per_epoch * closed.order_covariance(scape, mean)

    return integrated_moments(scape.gradient, w, drift, noise, time=epochs * scape.batches_per_epoch * learning_rate)


def moments_with_replacement(
    problem: Problem | Landscape, parameters: Parameters = None, *, learning_rate: float, updates: int
) -> Moments:
    """Mean and covariance after many updates with independent minibatches, closed at second moments.

    μ̇ = −∇C̃_GD(μ) − ½ T:S,   Ṡ = −HS − SH + ε Σ,   Σ = ⟨δg δgᵀ⟩

    Errors at a fixed time: O(ε²) of both. The mean alone follows no modified loss: S remembers the path.
    """
    scape, w = small(problem, parameters)

    def drift(mean: Tensor, covariance: Tensor) -> Tensor:
        modified = gradient_flow_field(lambda p: modified_loss_gd(scape, p, learning_rate=learning_rate))
        return modified(mean) - pushed_by_covariance(scape.gradient, mean, covariance)

    def noise(mean: Tensor) -> Tensor:
        gradients = scape.minibatch_gradients(mean)
        away = gradients - gradients.mean(0)
        return learning_rate * away.T @ away / len(away)

    return integrated_moments(scape.gradient, w, drift, noise, time=updates * learning_rate)


def pushed_by_covariance(gradient: Field, mean: Tensor, covariance: Tensor) -> Tensor:
    """½ T:S, what a spread S does to a mean gradient."""
    return grad(lambda p: (jacfwd(gradient)(p) * covariance).sum())(mean) / 2


def integrated_moments(
    gradient: Field, w: Tensor, drift: Callable[[Tensor, Tensor], Tensor], noise: Field, *, time: float
) -> Moments:
    """μ̇ = drift(μ, S), Ṡ = −HS − SH + noise(μ) from S = 0, H the Jacobian of the gradient."""

    def field(state: Tensor) -> Tensor:
        mean, covariance = state[0], state[1:]
        hessian = jacfwd(gradient)(mean)
        spread = -hessian @ covariance - covariance @ hessian + noise(mean)
        return torch.cat([drift(mean, covariance).unsqueeze(0), spread])

    start = torch.cat([w.unsqueeze(0), torch.zeros(w.numel(), w.numel(), dtype=torch.float64)])
    end = flow(field, start, time=time, rtol=RTOL, atol=ATOL)
    return Moments(end[0], end[1:])


def small(problem: Problem | Landscape, parameters: Parameters) -> tuple[Landscape, Tensor]:
    scape, w = view(problem, parameters)
    if scape.size > LARGEST:
        raise InputError(f"{scape.size} parameters; expected at most {LARGEST}: the covariance is a dense matrix.")
    return scape, w


# -- what SGD does, by enumeration ------------------------------------------------------------------------------------
def enumerated(scape: Landscape, rows: Tensor, *, learning_rate: float) -> Moments:
    """Mean and covariance over the given sequences of minibatches, each equally likely."""
    rates = torch.tensor([learning_rate], dtype=torch.float64)
    ends = walk(scape, sgd_rule(scape), scape.start.unsqueeze(0), rates, steps_of(scape, rows))[0]
    away = ends - ends.mean(0)
    return Moments(ends.mean(0), away.T @ away / len(ends))


def fresh_orders(batches: int, epochs: int) -> Tensor:
    """Every way to choose an order for each epoch: (m!)^epochs rows."""
    one = list(itertools.permutations(range(batches)))
    return torch.tensor([sum(choice, ()) for choice in itertools.product(one, repeat=epochs)], dtype=torch.long)


def one_order(batches: int, epochs: int) -> Tensor:
    """Every order, the same in all epochs: m! rows."""
    return torch.tensor(list(itertools.permutations(range(batches))), dtype=torch.long).repeat(1, epochs)


def independent_draws(batches: int, updates: int) -> Tensor:
    """Every sequence of independent minibatches."""
    return sequences_with_replacement(batches, length=updates)
