"""Statements on optimizers of today: preconditioned methods, averages, sampled penalties, SAM from a sample."""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor

from tacit.theory import modified_losses as losses
from tacit.theory import sampled_penalty as sampled
from tacit.theory import updates
from tacit.theory.comparisons import Experiment, Rival, descent, ends_of, plus
from tacit.theory.corrections import gd_second_correction
from tacit.theory.experiments_beyond import ends_on_the_slow_manifold, two_minibatches
from tacit.theory.flows import RateField
from tacit.theory.landscape import Landscape
from tacit.theory.memory import MemoryMethod
from tacit.theory.preconditioned import preconditioned_field
from tacit.theory.sharpness_aware import row_samples, sam_field, sam_rule

BETA, RHO = 0.5, 0.6  # short memories: the series of a long one converges later
STEPS = 4


def preconditioned(scape: Landscape) -> list[Experiment]:
    """f̃ = −P(∇C')∇C̃ with the lags that the averages have; with one lag for both an order is lost."""
    gradient, squares = _lag(BETA), _lag(RHO)
    adam = updates.adam(scape, beta1=BETA, beta2=RHO, delta=0.1)
    adamw = updates.adam(scape, beta1=BETA, beta2=RHO, delta=0.1, weight_decay=0.3)
    rmsprop, muon = updates.rmsprop(scape, decay=RHO, delta=0.1), updates.muon(scape, momentum=BETA, delta=1.0)
    plain = _against(scape, adam, gradient, gradient)
    return [
        _slow(scape, "Adam", adam, _against(scape, adam, gradient, squares), _wrong("Adam against −P(∇C̃)∇C̃", plain)),
        _slow(scape, "AdamW", adamw, _against(scape, adamw, gradient, squares)),
        _slow(scape, "RMSprop", rmsprop, _against(scape, rmsprop, _lag(0), squares)),
        _slow(scape, "Muon", muon, _against(scape, muon, gradient, gradient), stiffness=16),
    ]


def _lag(keep: float) -> float:
    return (1 + keep) / (2 * (1 - keep))


def _against(scape: Landscape, method: MemoryMethod, gradient: float, preconditioner: float) -> RateField:
    assert method.preconditioner is not None
    return preconditioned_field(
        scape,
        method.preconditioner,
        gradient_lag=gradient,
        preconditioner_lag=preconditioner,
        weight_decay=method.weight_decay,
    )


def _slow(
    scape: Landscape, name: str, method: MemoryMethod, field: RateField, *more: Rival, stiffness: float = 4
) -> Experiment:
    ends = ends_on_the_slow_manifold(scape, method, steps=STEPS, order=1)
    return Experiment(name, STEPS, ends, (_beyond(f"{name} against −P(∇C')∇C̃", 3, field), *more), stiffness=stiffness)


def _beyond(statement: str, order: float, field: RateField, *, third: bool = False) -> Rival:
    return Rival(statement, "beyond", order, field, needs_third_derivatives=third)


def _wrong(statement: str, field: RateField) -> Rival:
    return _beyond(statement, 2, field)


def averages(scape: Landscape, *, keep: float = 0.5, beta: float = 0.9, weight: float = 0.5) -> list[Experiment]:
    """The point that is returned: an average of gradient descent's iterates, and schedule-free's x."""
    average, free = updates.averaged_gd(scape, keep=keep), updates.schedule_free(scape, beta=beta, weight=weight)

    def with_spread(w: Tensor) -> Tensor:
        # A mean over ages curves with the path: half their variance, κ/(1−κ)², times f''[f,f].
        g = scape.gradient(w)
        return gd_second_correction(scape, w) - keep / (2 * (1 - keep) ** 2) * scape.third(w, g, g)

    modified = descent(losses.modified_loss_gd, scape, learning_rate=1)
    average_ends = ends_on_the_slow_manifold(scape, average, steps=STEPS, order=2)
    free_ends = ends_on_the_slow_manifold(scape, free, steps=STEPS, order=1)
    # The gradient is taken β (1−c)/c steps behind z, and a step is half a step old.
    lag = 0.5 + beta * (1 - weight) / weight
    return [
        Experiment(
            "EMA",
            STEPS,
            average_ends,
            (
                _beyond("GD's average of iterates against C̃_GD", 3, modified),
                _beyond("GD's average of iterates with its f₂", 4, plus(modified, with_spread, power=2), third=True),
            ),
            stiffness=4,
        ),
        Experiment(
            "schedule-free",
            STEPS,
            free_ends,
            (_beyond("schedule-free SGD against C + (½+β(1−c)/c)(ε/2)‖∇C‖²", 3, _penalized(scape, lag / 2)),),
            stiffness=4,
        ),
    ]


def lookahead(scape: Landscape, *, steps: int = 3, pull: float = 0.5) -> Experiment:
    """k steps of gradient descent and a pull of α: C + (ε/4)(1 − k(1−α))‖∇C‖², at kα times the rate."""
    update = torch.func.vmap(updates.lookahead(scape, steps=steps, pull=pull))

    def ends(rates: Tensor) -> Tensor:
        points = scape.start.expand(len(rates), -1)
        for _ in range(STEPS):
            points = update(points, rates)
        return points

    modified, speed = _penalized(scape, (1 - steps * (1 - pull)) / 4), steps * pull
    rival = _beyond("Lookahead against C + (ε/4)(1−k(1−α))‖∇C‖²", 3, lambda w, rate: speed * modified(w, rate))
    return Experiment("Lookahead", STEPS, ends, (rival,), stiffness=steps)


def _penalized(scape: Landscape, coefficient: float) -> RateField:
    """The flow of C + coefficient·ε‖∇C‖²."""
    return lambda w, rate: -scape.gradient(w) - 2 * coefficient * rate * scape.hessian_product(w, scape.gradient(w))


# -- the sampled penalty ----------------------------------------------------------------------------------------------
def sampled_penalty(scape: Landscape, largest_curvature: float, *, drawn: int = 1, every: int = 2) -> list[Experiment]:
    """Independent draws, draws once each, every k-th step, with probability 1/k: λ stays as ε shrinks.

    Two micro-batches, so that draws of several steps are few.
    """
    scape = two_minibatches(scape)
    strength = 2 / largest_curvature
    batches, where = scape.batches_per_epoch, "beyond"
    own = partial(sampled.modified_loss_of_sampled_penalty, strength=strength, sampled=drawn)
    whole = descent(own, scape, learning_rate=1)
    once = descent(partial(own, draws="once each"), scape, learning_rate=1)
    cyclic = descent(
        partial(sampled.modified_loss_of_penalty_every, strength=strength, every=every), scape, learning_rate=1
    )
    second = partial(sampled.sampled_penalty_correction, scape, strength=strength, sampled=drawn, steps=every)
    groups = torch.tensor(list(itertools.combinations(range(batches), drawn)))
    sequences = torch.cartesian_prod(*[torch.arange(len(groups))] * every)
    cycles = torch.tensor(sampled.groupings(batches, drawn))  # (cycles, m/q, q)
    stacked = torch.stack(scape.batches)
    by_draw = sampled.sampled_penalty_rule(scape, strength=strength)
    by_weight = sampled.weighted_penalty_rule(scape, strength=strength)
    weights = every * torch.eye(every, dtype=torch.float64)  # the penalised step at every place of its cycle
    chances = torch.cartesian_prod(*[torch.tensor([0.0, float(every)], dtype=torch.float64)] * every)
    with_second = plus(whole, second, power=2)
    one = "with one micro-batch there is nothing to draw" if batches == 1 else ""
    stiffness = 8.0
    return [
        Experiment(
            "independent",
            every,
            ends_of(scape, by_draw, [stacked[groups[column]] for column in sequences.T]),
            (
                Rival("penalty on 1 micro-batch, independent draws, C̃ of the whole", where, 3, whole),
                Rival("penalty on 1 micro-batch, independent draws, C̃ of once each", where, 2, once),
                _beyond("penalty on 1 micro-batch, independent draws, with φ₂", 4, with_second, third=True),
            ),
            stiffness=stiffness,
            not_measured=one,
        ),
        Experiment(
            "once each",
            batches // drawn,
            ends_of(scape, by_draw, [stacked[cycles[:, i]] for i in range(cycles.shape[1])]),
            (
                Rival("penalty on 1 micro-batch, once each, its C̃", where, 3, once),
                Rival("penalty on 1 micro-batch, once each, C̃ of the whole", where, 2, whole),
            ),
            stiffness=stiffness,
            not_measured=one,
        ),
        Experiment(
            "every",
            every,
            ends_of(scape, by_weight, [column.unsqueeze(1) for column in weights.T]),
            (
                Rival("penalty every 2 steps, mean over its place, its C̃", where, 3, cyclic),
                Rival("penalty every 2 steps, mean over its place, C̃ of the whole", where, 2, whole),
            ),
            stiffness=stiffness,
        ),
        Experiment(
            "probability",
            every,
            ends_of(scape, by_weight, [column.unsqueeze(1) for column in chances.T]),
            (
                Rival("penalty with probability ½, C̃ of the whole", where, 3, whole),
                Rival("penalty with probability ½, C̃ of every 2 steps", where, 2, cyclic),
            ),
            stiffness=stiffness,
        ),
    ]


# -- sharpness-aware minimization -------------------------------------------------------------------------------------
def sharpness_aware(scape: Landscape, *, rows: int = 1, steps: int = 2, radius: float = 1.0) -> list[Experiment]:
    """SAM with ρ = ε·radius: the direction from all rows, and from one row drawn anew at every step."""
    size = scape.train_size
    reason = "" if scape.separable else "the minibatches do not cover the examples, or the model mixes them"
    reason = reason or ("there are too few rows to draw from" if size < 2 * rows else "")
    reason = reason or (f"{size} rows are too many to enumerate" if size > 16 else "")
    everything, drawn = torch.arange(size).unsqueeze(0), torch.zeros(1, 1, dtype=torch.long)
    drawn = drawn if reason else row_samples(scape, rows)
    pairs = torch.cartesian_prod(*[torch.arange(len(drawn))] * steps)
    whole, part = (partial(sam_field(scape, radius=radius, rows=n)) for n in (size, rows))
    rule = sam_rule(scape, radius=radius)
    return [
        Experiment(
            "SAM",
            steps,
            ends_of(scape, rule, [everything] * steps),
            (_beyond("SAM against its terms to ρ², ρε and ε²", 4, whole, third=True),),
            stiffness=4,
            not_measured=reason,
        ),
        Experiment(
            "SAM from rows",
            steps,
            ends_of(scape, rule, [drawn[column] for column in pairs.T]),
            (
                _beyond("SAM, direction from 1 row, its terms to ρ², ρε and ε²", 4, part, third=True),
                _wrong("SAM, direction from 1 row, terms of the whole", whole),
            ),
            stiffness=4,
            not_measured=reason,
        ),
    ]
