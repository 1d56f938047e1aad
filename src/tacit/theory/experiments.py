"""Statements on GD, SGD and n-step SGD: discrete walks, and the flows each is compared with."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tacit.theory import corrections as closed
from tacit.theory import modified_losses as losses
from tacit.theory.comparisons import Experiment, Rival, descent, ends_of, plus
from tacit.theory.flows import gradient_flow_field
from tacit.theory.iterates import penalized_rule, sgd_rule
from tacit.theory.landscape import Landscape
from tacit.theory.orders import ENUMERATED_SEQUENCES, Orders, sequences_with_replacement, steps_of


def gradient_descent(scape: Landscape) -> Experiment:
    steps = 4

    def ends(rates: Tensor) -> Tensor:
        points = scape.start.expand(len(rates), -1)
        for _ in range(steps):
            points = points - rates.unsqueeze(1) * scape.map(scape.gradient, points)
        return points

    modified = descent(losses.modified_loss_gd, scape, learning_rate=1)
    return Experiment(
        "GD",
        steps,
        ends,
        (
            Rival("GD against gradient flow", "Eq. 8", 2, descent(losses.modified_loss_gd, scape, learning_rate=0)),
            Rival("GD against C̃_GD", "Eq. 11", 3, modified),
            Rival(
                "GD against C̃_GD with f₂",
                "beyond",
                4,
                plus(modified, partial(closed.gd_second_correction, scape), power=2),
                needs_third_derivatives=True,
            ),
        ),
    )


def mean_sgd(scape: Landscape, orders: Orders) -> Experiment:
    modified = descent(losses.modified_loss_sgd, scape, learning_rate=1)
    return Experiment(
        "mean SGD",
        scape.batches_per_epoch,
        ends_of(scape, sgd_rule(scape), steps_of(scape, orders.rows)),
        (
            Rival("mean SGD against C", "Eq. 14", 2, descent(losses.modified_loss_gd, scape, learning_rate=0)),
            Rival(
                "mean SGD against C̃_GD",
                "section 2.2",
                2,
                descent(losses.modified_loss_gd, scape, learning_rate=1),
                needs_several_batches=True,
            ),
            Rival("mean SGD against C̃_SGD", "Eq. 1, 20", 3, modified),
            Rival(
                "mean SGD against C̃_SGD by variance",
                "Eq. 2",
                3,
                descent(losses.modified_loss_sgd_by_variance, scape, learning_rate=1),
            ),
            Rival(
                "mean SGD against C̃_SGD with φ₂",
                "beyond",
                4,
                plus(modified, partial(closed.sgd_second_correction, scape), power=2),
                needs_exact_mean=True,
                needs_third_derivatives=True,
            ),
        ),
    )


def fixed_order(scape: Landscape) -> Experiment:
    rows = torch.arange(scape.batches_per_epoch).unsqueeze(0)
    modified = descent(losses.modified_loss_sgd, scape, learning_rate=1)
    return Experiment(
        "one order",
        scape.batches_per_epoch,
        ends_of(scape, sgd_rule(scape), steps_of(scape, rows)),
        (
            Rival("one fixed order against C̃_SGD", "below Eq. 14", 2, modified, needs_several_batches=True),
            Rival(
                "one fixed order with its commutator",
                "beyond",
                3,
                plus(modified, partial(closed.commutator, scape), power=1),
            ),
        ),
    )


def mirrored(scape: Landscape) -> Experiment:
    there = torch.arange(scape.batches_per_epoch).unsqueeze(0)
    rows = torch.cat([there, there.flip(1)], dim=1)
    modified = descent(losses.modified_loss_sgd, scape, learning_rate=1)
    return Experiment(
        "mirrored",
        2 * scape.batches_per_epoch,
        ends_of(scape, sgd_rule(scape), steps_of(scape, rows)),
        (
            Rival(
                "one order there and back against C̃_SGD",
                "end of section 2.2",
                3,
                modified,
            ),
            Rival(
                "one order there and back with its ε² term",
                "beyond",
                4,
                plus(modified, partial(closed.mirrored_second_correction, scape), power=2),
                needs_third_derivatives=True,
            ),
        ),
    )


def nstep(scape: Landscape, orders: Orders, inner_steps: int) -> Experiment:
    own = partial(losses.modified_loss_nstep, inner_steps=inner_steps)
    return Experiment(
        f"{inner_steps}-step",
        scape.batches_per_epoch,
        ends_of(scape, sgd_rule(scape, inner_steps=inner_steps), steps_of(scape, orders.rows)),
        (
            Rival(
                f"mean {inner_steps}-step SGD against C̃_nSGD",
                "Eq. 39",
                3,
                descent(own, scape, effective_learning_rate=1),
            ),
            Rival(
                f"mean {inner_steps}-step SGD against C̃_SGD",
                "section 4",
                2,
                descent(losses.modified_loss_sgd, scape, learning_rate=1),
            ),
        ),
    )


def with_replacement(scape: Landscape) -> Experiment:
    batches = scape.batches_per_epoch
    too_many = batches**batches > ENUMERATED_SEQUENCES
    rows = (
        torch.zeros(1, batches, dtype=torch.long) if too_many else sequences_with_replacement(batches, length=batches)
    )
    modified = descent(losses.modified_loss_gd, scape, learning_rate=1)
    return Experiment(
        "with replacement",
        batches,
        ends_of(scape, sgd_rule(scape), steps_of(scape, rows)),
        (
            Rival("with replacement, mean against C̃_GD", "section 4", 3, modified),
            Rival(
                "with replacement, mean against C̃_SGD",
                "section 4",
                2,
                descent(losses.modified_loss_sgd, scape, learning_rate=1),
                needs_several_batches=True,
            ),
        ),
        not_measured=f"{batches}^{batches} sequences are too many to enumerate" if too_many else "",
    )


def penalized(scape: Landscape, orders: Orders, *, ratio: float = 4.0) -> Experiment:
    """λ = ratio·ε, so that λ is small with ε and every order is read in ε alone."""
    return Experiment(
        "penalized",
        scape.batches_per_epoch,
        ends_of(scape, penalized_rule(scape, strength=ratio, relative=True), steps_of(scape, orders.rows)),
        (
            Rival(
                "SGD on C_mod(λ) against C + (λ+ε) C_reg",
                "section 2.3",
                3,
                descent(losses.modified_loss_of_penalized_sgd, scape, learning_rate=1, strength=ratio),
            ),
            Rival(
                "SGD on C_mod(λ) against C + λ C_reg",
                "section 2.3",
                2,
                descent(losses.penalized_loss, scape, strength=ratio),
            ),
        ),
        stiffness=2.0,
    )


def weight_decay(decayed: Landscape, plain: Landscape, orders: Orders) -> Experiment:
    decay = decayed.problem.weight_decay

    def outside(point: Tensor, rate: Tensor) -> Tensor:
        return losses.modified_loss_sgd(plain, point, learning_rate=rate) + 0.5 * decay * point.square().sum()

    return Experiment(
        "weight decay",
        decayed.batches_per_epoch,
        ends_of(decayed, sgd_rule(decayed), steps_of(decayed, orders.rows)),
        (
            Rival(
                "weight decay inside the norm",
                "Eq. 1",
                3,
                descent(losses.modified_loss_sgd, decayed, learning_rate=1),
            ),
            Rival(
                "weight decay outside the norm",
                "Eq. 1",
                2,
                lambda w, rate: gradient_flow_field(lambda point: outside(point, rate))(w),
            ),
        ),
    )
