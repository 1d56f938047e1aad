"""Statements beyond the paper's theorem: memory, momentum, partitions, augmentation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.func import vmap

from tacit.problem import Problem
from tacit.theory import corrections as closed
from tacit.theory import modified_losses as losses
from tacit.theory.comparisons import Experiment, Rival, descent, ends_of, plus
from tacit.theory.iterates import heavy_ball_rule, sgd_rule, walk
from tacit.theory.landscape import Landscape
from tacit.theory.logarithm import modified_flow
from tacit.theory.memory import WithMemory, slow_state
from tacit.theory.orders import (
    ENUMERATED_SEQUENCES,
    Orders,
    orders_of,
    partition_count,
    sequences_with_replacement,
    steps_of,
    steps_of_all_partitions,
)


def memory(
    scape: Landscape, name: str, method: WithMemory, *, stiffness: float, steps: int = 4, order: int = 2
) -> Experiment:
    return Experiment(
        name,
        steps,
        ends_on_the_slow_manifold(scape, method, steps=steps, order=order),
        tuple(
            Rival(
                f"{name} against {('f₀', 'f₀ + εf₁', 'f₀ + εf₁ + ε²f₂')[k]}",
                "beyond",
                k + 2,
                modified_flow(method, order=k),
                needs_third_derivatives=k >= 2,
            )
            for k in range(order + 1)
        ),
        stiffness=stiffness,
    )


def ends_on_the_slow_manifold(
    scape: Landscape, method: WithMemory, *, steps: int, order: int
) -> Callable[[Tensor], Tensor]:
    """Where real steps lead, what is read of them, from the slow manifold: no transient blurs the order."""

    def walk(rate: Tensor) -> Tensor:
        w, memory = slow_state(method, scape.start, rate, order=order + 1)
        for _ in range(steps):
            w, memory = method.step(w, memory, rate)
        return w if method.readout is None else method.readout(w, memory)

    return vmap(walk)


def minibatch_momentum(scape: Landscape, orders: Orders, *, momentum: float = 0.5) -> Experiment:
    """One epoch from a memory that holds its mean, in all orders; the mean of z = ω − ε β/(1−β) buffer."""
    effective, lag = 1 / (1 - momentum), momentum / (1 - momentum)
    rule, steps = heavy_ball_rule(scape, momentum=momentum), steps_of(scape, orders.rows)

    def ends(rates: Tensor) -> Tensor:
        buffer = effective * scape.gradient(scape.start)
        starts = torch.stack([torch.stack([scape.start + rate * lag * buffer, buffer]) for rate in rates])
        states = walk(scape, rule, starts, rates, steps)
        return (states[:, :, 0] - rates[:, None, None] * lag * states[:, :, 1]).mean(1)

    loss = partial(losses.modified_loss_momentum, momentum=momentum)
    own = descent(loss, scape, effective_learning_rate=effective)
    return Experiment(
        "momentum",
        scape.batches_per_epoch,
        ends,
        (
            # The loss is in units of the effective rate, the clock in units of the bare one.
            Rival("momentum with minibatches", "beyond", 3, lambda w, rate: effective * own(w, rate)),
        ),
        stiffness=effective,
    )


def random_partitions(scape: Landscape, sizes: tuple[int, ...], *, name: str, where: str) -> Experiment:
    count = partition_count(scape.train_size, sizes)
    too_many = count > ENUMERATED_SEQUENCES
    steps = [torch.zeros(1, 1, dtype=torch.long)] if too_many else steps_of_all_partitions(scape.train_size, sizes)
    loss = partial(losses.expected_modified_loss_sgd, updates_per_epoch=len(sizes))
    modified = descent(loss, scape, learning_rate=1)
    even = len(set(sizes)) == 1 and scape.separable and scape.train_size >= 3
    field = plus(modified, partial(closed.expected_second_correction, scape), power=2)
    second = (Rival(f"{name} with E φ₂", "beyond", 4, field, needs_third_derivatives=True),) if even else ()
    reason = f"{count} partitions are too many to enumerate" if too_many else ""
    return Experiment(
        name,
        len(sizes),
        ends_of(scape, sgd_rule(scape), steps),
        (
            Rival(f"{name} against E C̃_SGD", where, 3, modified),
            *second,
        ),
        not_measured=reason
        if scape.separable
        else "the minibatches do not cover the examples, or the model mixes them",
    )


def augmented(scape: Landscape, *, change: float = 0.3) -> Experiment:
    """Inputs multiplied by 1 + change or by 1 − change, drawn afresh at every visit of a minibatch.

    Two minibatches, so that all orders and all draws are few. What is drawn at every visit is drawn with replacement,
    so the norm is that of the mean gradient, ‖E_a ∇Ĉᵃ‖², and not the mean of the norms, which a penalty with one
    augmentation per step would add.
    """
    own = two_minibatches(scape).problem
    if not own.inputs.is_floating_point() or len(own.batches) != 2:
        reason = "the inputs cannot be multiplied by a number, or cannot be dealt into two minibatches"
        return Experiment("augmentation", 1, lambda rates: rates, _augmented_rivals(scape, scape), not_measured=reason)
    size = own.train_size
    inputs = torch.cat([(1 + change) * own.inputs, (1 - change) * own.inputs])
    halves = [batch + draw * size for batch in own.batches for draw in (0, 1)]

    def landscape(batches: list[Tensor]) -> Landscape:
        return Landscape(_twin(own, inputs, torch.cat([own.targets, own.targets]), batches))

    both, apart = landscape([torch.cat([batch, batch + size]) for batch in own.batches]), landscape(halves)
    orders, draws = orders_of(2).rows, sequences_with_replacement(2, length=2)
    rows = torch.stack([2 * order + draw for order in orders for draw in draws])
    return Experiment(
        "augmentation",
        2,
        ends_of(apart, sgd_rule(apart), steps_of(apart, rows)),
        _augmented_rivals(both, apart),
        # Larger inputs are sharper losses: up to (1 + change)² times for a linear model, and twice that for safety.
        stiffness=2 * (1 + change) ** 2,
    )


def _augmented_rivals(both: Landscape, apart: Landscape) -> tuple[Rival, ...]:
    """Against the norm of the mean gradient over augmentations, and against the mean of the norms."""
    mean, norms = (descent(losses.modified_loss_sgd, scape, learning_rate=1) for scape in (both, apart))
    return (
        Rival("augmentation, mean against ‖E_a ∇Ĉᵃ‖²", "beyond", 3, mean),
        Rival("augmentation, mean against E_a ‖∇Ĉᵃ‖²", "beyond", 2, norms),
    )


def two_minibatches(scape: Landscape) -> Landscape:
    """The same data in two minibatches, so that orders and draws of many updates can be enumerated."""
    own, half = scape.problem, scape.train_size // 2
    if scape.batches_per_epoch == 2 or half == 0:
        return scape
    return Landscape(_twin(own, own.inputs, own.targets, [torch.arange(half), torch.arange(half, 2 * half)]))


def _twin(problem: Problem, inputs: Tensor, targets: Tensor, batches: list[Tensor]) -> Problem:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # batches that leave examples out were warned about when the problem was made
        twin = Problem(
            problem.model,
            problem.loss_fn,
            (inputs, targets),
            batches=batches,
            weight_decay=problem.weight_decay,
            dtype=torch.float64,
        )
    twin.parameters = problem.parameters
    return twin
