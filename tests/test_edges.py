"""Edges of stability: a quadratic and a network contract just below the predicted edge and not just above it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from tacit import edges
from tacit._util import tree
from tacit.theory import Landscape, problems

MARGIN = 0.01  # one per cent to either side of the edge


@dataclass(frozen=True)
class Case:
    """One method, by the options of `edges` and, for the oracle, by what it does to (ω, buffer) on ½hω²."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def strength(self) -> float:
        return self.options.get("strength", 0.0)

    @property
    def step(self) -> edges.Step:
        return edges.Step(**{name: value for name, value in self.options.items() if name != "strength"})


CASES = [
    Case("plain"),
    Case("heavy ball", {"momentum": 0.9}),
    Case("Nesterov", {"momentum": 0.9, "nesterov": True}),
    Case("penalized", {"strength": 0.3}),
    Case("penalized with momentum", {"strength": 0.3, "momentum": 0.6}),
    Case("penalized Nesterov", {"strength": 0.3, "momentum": 0.6, "nesterov": True}),
    Case("3-step", {"inner_steps": 3}),
    Case("penalized 2-step", {"inner_steps": 2, "strength": 0.3}),
    Case("penalized, decay inside", {"strength": 0.3, "weight_decay": 0.2}),
    Case("penalized, decay outside", {"strength": 0.3, "weight_decay": 0.2, "weight_decay_penalized": False}),
]
IDS = [case.name for case in CASES]


def slope_on_quadratics(w: float, curvatures: list[float], options: dict[str, Any]) -> float:
    """The derivative of Ĉ + (λ/4)‖∇Ĉ‖² at w, averaged over micro-batches ½hᵢω², written out by hand."""
    strength, decay = options.get("strength", 0.0), options.get("weight_decay", 0.0)
    inside = decay if options.get("weight_decay_penalized", True) else 0.0
    own = [h * w + decay * w + strength / 2 * (h + inside) ** 2 * w for h in curvatures]
    return sum(own) / len(own)


def growth_on_quadratic(rate: float, curvatures: list[float], options: dict[str, Any], *, steps: int = 4000) -> float:
    """log of |(ω, buffer)| after many updates: below zero when the method contracts. No formula of `edges` is used."""
    inner, beta = options.get("inner_steps", 1), options.get("momentum", 0.0)
    w, buffer, total = 1.0, 0.3, 0.0
    for _ in range(steps):
        for _ in range(inner):
            slope = slope_on_quadratics(w, curvatures, options)
            buffer = beta * buffer + slope
            w -= rate / inner * (slope + beta * buffer if options.get("nesterov") else buffer)
        size = math.hypot(w, buffer)
        total += math.log(size)
        w, buffer = w / size, buffer / size
    return total


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_quadratic_is_stable_just_below_the_largest_curvature_and_not_just_above(case: Case) -> None:
    edge = edges.largest_stable_curvature(0.2, strength=case.strength, step=case.step)
    assert growth_on_quadratic(0.2, [edge * (1 - MARGIN)], case.options) < 0
    assert growth_on_quadratic(0.2, [edge * (1 + MARGIN)], case.options) > 0


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_quadratic_is_stable_just_below_the_largest_rate_and_not_just_above(case: Case) -> None:
    edge = edges.largest_stable_learning_rate(3.0, strength=case.strength, step=case.step)
    assert growth_on_quadratic(edge * (1 - MARGIN), [3.0], case.options) < 0
    assert growth_on_quadratic(edge * (1 + MARGIN), [3.0], case.options) > 0


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_quadratic_is_stable_just_below_the_largest_strength_and_not_just_above(case: Case) -> None:
    others = {name: value for name, value in case.options.items() if name != "strength"}
    edge = edges.largest_stable_strength(0.3, 3.0, step=case.step)
    assert edge > 0
    # The penalty is only part of the step, so one per cent of it moves the step by less: take five.
    assert growth_on_quadratic(0.3, [3.0], {**others, "strength": edge * 0.95}) < 0
    assert growth_on_quadratic(0.3, [3.0], {**others, "strength": edge * 1.05}) > 0


def test_micro_batches_of_different_curvature_lower_the_edge() -> None:
    # Curvatures 1 and 5: mean 3, standard deviation 2. The penalty sees the mean of the squares, 13 and not 9.
    step = edges.Step(curvature_spread=2 / 3)
    strength = edges.largest_stable_strength(0.3, 3.0, step=step)
    assert strength < edges.largest_stable_strength(0.3, 3.0)
    rate = edges.largest_stable_learning_rate(3.0, strength=0.4, step=step)
    curvature = edges.largest_stable_curvature(rate, strength=0.4, step=step)
    assert curvature == pytest.approx(3.0, rel=1e-12)
    for factor, sign in ((0.98, -1), (1.02, 1)):
        assert sign * growth_on_quadratic(rate * factor, [1.0, 5.0], {"strength": 0.4}) > 0
        assert sign * growth_on_quadratic(0.3, [1.0, 5.0], {"strength": strength * factor}) > 0


# -- a network ----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def minimum() -> tuple[Landscape, torch.Tensor, float, torch.Tensor]:
    """A tanh network at a minimum that fits its data, the largest curvature there, and its direction."""
    scape = Landscape(problems.tanh_mlp(batches=1, batch_size=4))
    problem, everything, w = scape.problem, torch.arange(4), scape.start

    def residuals(point: torch.Tensor) -> torch.Tensor:
        outputs = problem.outputs(tree.unflatten(point, problem.parameters), everything)
        return (outputs - problem.targets).reshape(-1)

    for _ in range(30):  # Gauss-Newton: four residuals and thirteen parameters, so all residuals vanish
        w = w - 0.7 * torch.linalg.pinv(torch.func.jacfwd(residuals)(w)) @ residuals(w)
    values, vectors = torch.linalg.eigh(torch.func.hessian(scape.loss)(w))
    assert scape.gradient(w).norm() < 1e-10
    return scape, w, float(values[-1]), vectors[:, -1]


def distance_after(
    scape: Landscape, minimum: torch.Tensor, start: torch.Tensor, rate: float, options: dict[str, Any], *, steps: int
) -> float:
    """Train with the options from `start`, and return the distance from the minimum relative to the first one."""
    strength, beta, inner = options.get("strength", 0.0), options.get("momentum", 0.0), options.get("inner_steps", 1)

    def loss(w: torch.Tensor) -> torch.Tensor:
        return scape.loss(w) + strength / 4 * scape.gradient(w).square().sum()

    slope: Callable[[torch.Tensor], torch.Tensor] = torch.func.grad(loss)
    w, buffer = start, torch.zeros_like(start)
    for _ in range(steps):
        for _ in range(inner):
            g = slope(w)
            buffer = beta * buffer + g
            w = w - rate / inner * (g + beta * buffer if options.get("nesterov") else buffer)
    return ((w - minimum).norm() / (start - minimum).norm()).item()


@pytest.mark.parametrize("case", [case for case in CASES if "weight_decay" not in case.options], ids=lambda c: c.name)
def test_training_a_network_returns_to_its_minimum_just_below_the_edge_and_leaves_it_just_above(
    case: Case, minimum: tuple[Landscape, torch.Tensor, float, torch.Tensor]
) -> None:
    scape, w, curvature, direction = minimum
    edge = edges.largest_stable_learning_rate(curvature, strength=case.strength, step=case.step)
    # A displacement of 1e-6 along the sharpest direction: third derivatives change the curvature by about as much.
    start = w + 1e-6 * direction
    below, above = (distance_after(scape, w, start, edge * factor, case.options, steps=120) for factor in (0.97, 1.03))
    assert below < 0.5
    assert above > 2.0


# -- numbers quoted elsewhere -----------------------------------------------------------------------------------------
def test_without_a_penalty_the_penalized_edge_is_the_plain_one() -> None:
    assert edges.largest_stable_curvature(0.1, strength=1e-14) == pytest.approx(2 / 0.1, rel=1e-12)


def test_the_closed_forms_of_the_design_hold() -> None:
    rate, strength, h = 0.1, 0.25, 7.0
    expected = (math.sqrt(1 + 4 * strength / rate) - 1) / strength
    assert edges.largest_stable_curvature(rate, strength=strength) == pytest.approx(expected, rel=1e-14)
    expected = 2 / h * (2 / (rate * h) - 1)
    assert edges.largest_stable_strength(rate, h) == pytest.approx(expected, rel=1e-14)
    assert edges.largest_stable_curvature(0.1, strength=0.1) == pytest.approx(1.2361 / 0.1, rel=1e-4)


def test_the_limits_are_those_of_the_eigenvalues_of_the_step() -> None:
    for beta in (0.0, 0.3, 0.9):
        for nesterov in (False, True):
            x = edges.stability_limit(momentum=beta, nesterov=nesterov)
            # (ω, buffer) ↦ on curvature 1 and rate x: buffer' = β buffer + ω, ω' = ω − x buffer' (− x β …).
            row = [1 - x * (1 + beta), -x * beta**2] if nesterov else [1 - x, -x * beta]
            radius = np.abs(np.linalg.eigvals(np.array([row, [1.0, beta]]))).max()
            assert radius == pytest.approx(1.0, abs=1e-7)  # a double root would be good to the root of 1e-16


def test_a_step_that_is_unstable_without_a_penalty_has_no_stable_strength() -> None:
    assert edges.largest_stable_strength(1.0, 2.5) == 0.0
    assert edges.largest_stable_curvature(1.0, step=edges.Step(weight_decay=2.5)) == 0.0
