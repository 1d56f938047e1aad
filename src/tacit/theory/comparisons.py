"""What `verify` compares: a discrete walk, and the flows that are its rivals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tacit.theory.flows import RateField, gradient_flow_field
from tacit.theory.iterates import Rule, walk
from tacit.theory.landscape import Landscape

Loss = Callable[..., Tensor]


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
