"""Every statement that `verify` checks, in the order of its table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from tacit.theory import corrections as closed
from tacit.theory import experiments as paper
from tacit.theory import experiments_beyond as beyond
from tacit.theory import experiments_methods as methods
from tacit.theory import fixed_time, sampled_penalty, updates
from tacit.theory.comparisons import Experiment
from tacit.theory.flows import flow, gradient_flow_field
from tacit.theory.iterates import walk
from tacit.theory.landscape import Landscape
from tacit.theory.modified_losses import modified_loss_sgd
from tacit.theory.orders import Orders, steps_of

FIXED_REACH = 0.3  # the fixed time times the largest curvature
EPOCHS = (2, 4, 8)  # in the fixed time; 2^8 choices of orders


@dataclass(frozen=True)
class ScalarStatement:
    """One statement whose error is a number of its own, at learning rates of its own."""

    statement: str
    where: str
    order: float
    rates: tuple[float, ...]
    error: Callable[[float], float]
    needs_third_derivatives: bool = False


def all_experiments(scape: Landscape, decayed: Landscape, orders: Orders, largest_curvature: float) -> list[Experiment]:
    size = len(scape.batches[0])
    two = beyond.two_minibatches(scape)
    epoch = partial(beyond.memory, stiffness=8, steps=1, order=1)
    uneven = _uneven_sizes(scape.train_size)
    return [
        paper.gradient_descent(scape),
        paper.mean_sgd(scape, orders),
        paper.fixed_order(scape),
        paper.mirrored(scape),
        paper.nstep(scape, orders, 2),
        paper.nstep(scape, orders, 4),
        paper.with_replacement(scape),
        beyond.random_partitions(scape, (size,) * scape.batches_per_epoch, name="random partitions", where="Eq. 22"),
        beyond.random_partitions(scape, uneven, name="uneven partitions", where="beyond"),
        beyond.memory(scape, "heavy ball", updates.heavy_ball(scape, momentum=0.5), stiffness=4),
        beyond.memory(scape, "Nesterov", updates.nesterov(scape, momentum=0.5), stiffness=4),
        beyond.memory(scape, "Adam", updates.adam(scape, beta1=0.5, beta2=0.6, delta=0.1), stiffness=4),
        epoch(two, "Adam, mean over orders", updates.mean_adam_epoch(two)),
        epoch(two, "AdamW, mean over orders", updates.mean_adam_epoch(two, weight_decay=0.3)),
        beyond.augmented(scape),
        paper.penalized(scape, orders),
        paper.weight_decay(decayed, scape, orders),
        beyond.minibatch_momentum(scape, orders),
        *methods.preconditioned(scape),
        *methods.averages(scape),
        methods.lookahead(scape),
        *methods.sampled_penalty(scape, largest_curvature),
        *methods.sharpness_aware(scape),
    ]


def _uneven_sizes(train_size: int) -> tuple[int, ...]:
    """Minibatches of one size and a smaller last one: (3, 3, 2) for eight examples."""
    batch_size = max(2, -(-train_size // 3))
    full, rest = divmod(train_size, batch_size)
    return (batch_size,) * full + ((rest,) if rest else ())


def fixed_time_measurements(scape: Landscape, largest_curvature: float) -> list[ScalarStatement]:
    """Moments at a fixed time, two minibatches, all orders and all draws enumerated."""
    two = beyond.two_minibatches(scape)
    time = FIXED_REACH / largest_curvature
    rates = tuple(time / (2 * epochs) for epochs in EPOCHS)

    def epochs(rate: float) -> int:
        return round(time / (2 * rate))

    @cache
    def fresh(rate: float) -> fixed_time.Moments:
        return fixed_time.enumerated(two, fixed_time.fresh_orders(2, epochs(rate)), learning_rate=rate)

    @cache
    def predicted(rate: float) -> fixed_time.Moments:
        return fixed_time.moments_with_fresh_orders(two, learning_rate=rate, epochs=epochs(rate))

    @cache
    def repeated(rate: float) -> Tensor:
        return fixed_time.enumerated(two, torch.tensor([[0, 1]]).repeat(1, epochs(rate)), learning_rate=rate).mean

    def along(rate: float, *, commutator: float) -> Tensor:
        modified = gradient_flow_field(lambda p: modified_loss_sgd(two, p, learning_rate=rate))
        field = lambda w: modified(w) + commutator * rate * closed.commutator(two, w)  # noqa: E731
        return flow(field, two.start, time=time, rtol=1e-9)

    def spread(rows: Tensor, rate: float) -> float:
        return fixed_time.enumerated(two, rows, learning_rate=rate).covariance.trace().sqrt().item()

    def closure(rate: float) -> float:
        own, count = 2 * rate, epochs(rate)  # as many updates as there were epochs, in the same time
        seen = fixed_time.enumerated(two, fixed_time.independent_draws(2, count), learning_rate=own)
        closed_moments = fixed_time.moments_with_replacement(two, learning_rate=own, updates=count)
        return (seen.mean - closed_moments.mean).norm().item()

    strength = 1 / largest_curvature
    by_draw = sampled_penalty.sampled_penalty_rule(two, strength=strength)

    def penalty_spread(rows: Tensor, rate: float) -> float:
        """The spread at a fixed time when each step draws one of the two micro-batches."""
        steps = [step.unsqueeze(1) for step in steps_of(two, rows)]
        ends = walk(two, by_draw, two.start.unsqueeze(0), torch.tensor([rate], dtype=torch.float64), steps)[0]
        return (ends - ends.mean(0)).square().sum(1).mean().sqrt().item()

    return [
        ScalarStatement("fresh orders at a fixed time, mean with φ₂", "beyond", 3, rates,
                    lambda rate: (fresh(rate).mean - predicted(rate).mean).norm().item(), True),
        ScalarStatement("fresh orders at a fixed time, covariance", "beyond", 4, rates,
                    lambda rate: (fresh(rate).covariance - predicted(rate).covariance).norm().item(), True),
        ScalarStatement("fresh orders at a fixed time, spread", "beyond", 1.5, rates,
                    lambda rate: fresh(rate).covariance.trace().sqrt().item()),
        ScalarStatement("one order for all epochs, spread over orders", "beyond", 1, rates,
                    lambda rate: spread(fixed_time.one_order(2, epochs(rate)), rate)),
        ScalarStatement("one order for all epochs, against C̃_SGD", "beyond", 1, rates,
                    lambda rate: (repeated(rate) - along(rate, commutator=0)).norm().item()),
        ScalarStatement("one order for all epochs, with its commutator", "beyond", 2, rates,
                    lambda rate: (repeated(rate) - along(rate, commutator=1)).norm().item()),
        ScalarStatement("with replacement at a fixed time, moment closure", "beyond", 2, rates, closure, True),
        ScalarStatement("penalty on 1 micro-batch at a fixed time, independent draws, spread", "beyond", 0.5, rates,
                    lambda rate: penalty_spread(fixed_time.independent_draws(2, epochs(rate)), 2 * rate)),
        ScalarStatement("penalty on 1 micro-batch at a fixed time, once each, spread", "beyond", 1.5, rates,
                    lambda rate: penalty_spread(fixed_time.fresh_orders(2, epochs(rate)), rate)),
    ]  # fmt: skip
