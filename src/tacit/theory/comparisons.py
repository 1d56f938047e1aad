"""What `verify` compares: a discrete walk, the flows that are its rivals, and the learning rates of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit._util.errors import InputError
from tacit.theory.flows import RateField, gradient_flow_field
from tacit.theory.iterates import Rule, walk
from tacit.theory.landscape import Landscape

Loss = Callable[..., Tensor]
RATES = 4  # ε, ε/2, ε/4, ε/8


@dataclass(frozen=True)
class Rival:
    """One flow that a walk is compared with, and the order in ε at which their distance should vanish."""

    statement: str
    where: str
    order: float
    field: RateField
    needs_exact_mean: bool = False  # its error is smaller than the noise of sampled orders
    needs_third_derivatives: bool = False
    needs_several_batches: bool = False  # with one minibatch it is the same flow as a better rival


@dataclass(frozen=True)
class Experiment:
    """A walk, at every learning rate at once, and its rivals.

    `ends(rates)` are the points reached, one row per rate, after `updates` learning rates of time from the start.
    `stiffness` divides the learning rates: momentum makes the series converge later.
    """

    name: str
    updates: float
    ends: Callable[[Tensor], Tensor]
    rivals: tuple[Rival, ...]
    stiffness: float = 1.0
    not_measured: str = ""


def descent(loss: Loss, scape: Landscape, **rate_names: float) -> RateField:
    """−∇loss(ω; ε) for a modified loss, which takes the learning rate under the given names, times a factor."""
    return lambda w, rate: gradient_flow_field(
        lambda point: loss(scape, point, **{name: factor * rate for name, factor in rate_names.items()})
    )(w)


def plus(field: RateField, correction: Callable[[Tensor], Tensor], *, power: int) -> RateField:
    """field + ε^power · correction."""
    return lambda w, rate: field(w, rate) + rate**power * correction(w)


def ends_of(scape: Landscape, rule: Rule, steps: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """The mean end of the walks along the steps, for every rate."""
    return lambda rates: walk(scape, rule, scape.start.expand(len(rates), -1), rates, steps).mean(1)


def learning_rates_below(largest: float, given: Sequence[float] | None = None) -> Tensor:
    """The given learning rates, largest first; or else ε, ε/2, ε/4, ε/8 from the largest."""
    if given is None:
        return torch.tensor([largest / 2**k for k in range(RATES)], dtype=torch.float64)
    if len(set(given)) < 3 or not all(math.isfinite(rate) and rate > 0 for rate in given):
        raise InputError(f"learning_rates={list(given)}; expected at least three different positive ones.")
    return torch.tensor(sorted(given, reverse=True), dtype=torch.float64)
