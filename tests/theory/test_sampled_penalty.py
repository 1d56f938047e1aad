"""The penalty from some of the micro-batches, every k-th step, by chance: flows, spread and edges, by enumeration."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from theory_cases import dense, relative
from torch import Tensor, nn
from torch.func import grad

import tacit
from tacit.theory import (
    Landscape,
    modified_flow,
    modified_loss_of_penalty_every,
    modified_loss_of_sampled_penalty,
    moments_with_sampled_penalty,
    penalty_every_update,
    penalty_with_probability_update,
    problems,
    sampled_penalty_correction,
    sampled_penalty_edge,
    sampled_penalty_growth,
    sampled_penalty_update,
    sampling_factor,
)
from tacit.theory.iterates import walk
from tacit.theory.sampled_penalty import groupings, sampled_penalty_rule
from tacit.theory.study import observed_order

STRENGTH = 0.3
CASES = ("logistic", "tanh_mlp")


def first_by_hand(case: str, *, variance: float, every: int = 1) -> np.ndarray:
    """f₁ of C_λ + (ε/4)(‖∇C_λ‖² + λ²·variance·⟨‖δrₖ‖²⟩ + λ²(every−1)‖⟨rₖ⟩‖²) by differences of dense formulas."""
    problem = problems.PROBLEMS[case]()
    w = Landscape(problem).start.numpy()

    def loss(point: np.ndarray) -> float:
        g, H, _ = dense(problem, torch.from_numpy(point))
        r = np.einsum("kab,kb->ka", H, g) / 2
        whole, away = g.mean(0) + STRENGTH * r.mean(0), r - r.mean(0)
        extra = variance * (away**2).sum(1).mean() + (every - 1) * (r.mean(0) ** 2).sum()
        return float(whole @ whole + STRENGTH**2 * extra) / 4

    h, unit = 1e-3, np.eye(len(w))
    slope = [
        (8 * (loss(w + h * e) - loss(w - h * e)) - (loss(w + 2 * h * e) - loss(w - 2 * h * e))) / (12 * h) for e in unit
    ]
    return -np.array(slope)


@pytest.mark.parametrize(
    "case,sampled",
    [
        ("logistic", 2),
        *[pytest.param(*case, marks=pytest.mark.slow) for case in itertools.product(CASES, (1, 2, 4))],
    ],
)
def test_independent_draws_follow_the_whole_penalty_and_draws_once_each_penalize_its_variance(
    case: str, sampled: int
) -> None:
    scape = Landscape(problems.PROBLEMS[case]())
    once = sampled_penalty_update(scape, strength=STRENGTH, sampled=sampled, draws="once each")
    found = modified_flow(once, order=1, duration=4 // sampled, method="nodes").corrections(scape.start)[1]
    factor = (4 - sampled) / (3 * sampled)
    assert relative(found, first_by_hand(case, variance=factor)) < 1e-6
    steps = 2 if sampled > 1 else 1
    independent = sampled_penalty_update(scape, strength=STRENGTH, sampled=sampled, steps=steps)
    found = modified_flow(independent, order=1, duration=steps, method="nodes").corrections(scape.start)[1]
    assert relative(found, first_by_hand(case, variance=0)) < 1e-6


@pytest.mark.parametrize("every", [2, 3])
def test_every_kth_step_is_a_cycle_and_probability_is_chance(every: int) -> None:
    scape = Landscape(problems.logistic())
    cycle = penalty_every_update(scape, strength=STRENGTH, every=every)
    found = modified_flow(cycle, order=1, duration=every, method="nodes").corrections(scape.start)[1]
    assert relative(found, first_by_hand("logistic", variance=0, every=every)) < 1e-6
    chance = penalty_with_probability_update(scape, strength=STRENGTH, probability=1 / every)
    found = modified_flow(chance, order=1, method="nodes").corrections(scape.start)[1]
    assert relative(found, first_by_hand("logistic", variance=0)) < 1e-6


@pytest.mark.parametrize("sampled,draws", [(1, "independent"), (1, "once each"), (2, "once each"), (4, "independent")])
def test_the_losses_have_these_first_corrections(sampled: int, draws: Any) -> None:
    scape = Landscape(problems.logistic())

    def loss(w: Tensor, rate: float) -> Tensor:
        return modified_loss_of_sampled_penalty(
            scape, w, learning_rate=rate, strength=STRENGTH, sampled=sampled, draws=draws
        )

    own = grad(loss)(scape.start, 0.0) - grad(loss)(scape.start, 1.0)
    variance = sampling_factor(4, sampled) if draws == "once each" else 0
    assert relative(own, first_by_hand("logistic", variance=variance)) < 1e-6
    cyclic = lambda w, rate: modified_loss_of_penalty_every(scape, w, learning_rate=rate, strength=STRENGTH, every=3)  # noqa: E731
    own = grad(cyclic)(scape.start, 0.0) - grad(cyclic)(scape.start, 1.0)
    assert relative(own, first_by_hand("logistic", variance=0, every=3)) < 1e-6


@pytest.mark.parametrize("sampled", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_covariance_enters_the_mean_at_second_order_with_the_factor_of_sampling(sampled: int) -> None:
    scape = Landscape(problems.logistic())
    update = sampled_penalty_update(scape, strength=STRENGTH, sampled=sampled, steps=2)
    found = modified_flow(update, order=2, duration=2, method="nodes").corrections(scape.start)[2]
    two, one = (sampled_penalty_correction(scape, strength=STRENGTH, sampled=sampled, steps=steps) for steps in (2, 1))
    assert (found - two).norm() < 1e-5 * two.norm()
    assert (two - one).norm() > 1e-3 * two.norm()  # the part of the covariance: it is seen, and a wrong factor with it


@pytest.mark.parametrize("sampled", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_moments_at_a_fixed_time_are_wrong_by_the_square_of_the_rate(sampled: int) -> None:
    scape = Landscape(problems.logistic(batches=3, batch_size=2))
    batches = torch.stack(scape.batches)
    groups = torch.tensor(list(itertools.combinations(range(3), sampled)))
    time, rates, errors, spreads = 0.3, [], [], []
    for updates in (2, 4, 6):
        rate = time / updates
        rows = torch.cartesian_prod(*[torch.arange(3)] * updates)
        steps = [batches[groups[column]] for column in rows.T]
        rule = sampled_penalty_rule(scape, strength=2.0)
        ends = walk(scape, rule, scape.start.unsqueeze(0), torch.tensor([rate], dtype=torch.float64), steps)[0]
        seen = moments_with_sampled_penalty(scape, learning_rate=rate, strength=2.0, sampled=sampled, updates=updates)
        rates.append(rate)
        errors.append((ends.mean(0) - seen.mean).norm().item())
        spreads.append((torch.cov(ends.T, correction=0) - seen.covariance).norm().item())
    assert observed_order(tuple(rates), tuple(errors)) == pytest.approx(2, abs=0.15)
    assert observed_order(tuple(rates), tuple(spreads)) == pytest.approx(2, abs=0.2)  # few updates, large rates


def test_with_all_micro_batches_there_is_no_spread() -> None:
    scape = Landscape(problems.logistic())
    seen = moments_with_sampled_penalty(scape, learning_rate=0.1, strength=1.0, sampled=4, updates=3)
    assert seen.covariance.norm() == 0


# -- the edge ---------------------------------------------------------------------------------------------------------
def stretched(curvatures: list[float]) -> tacit.Problem:
    """One parameter and one example for each micro-batch: Ĉₖ = ½ hₖ ω²."""

    class Stretch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, inputs: Tensor) -> Tensor:
            return 0.5 * inputs * self.w.square()

    inputs = torch.tensor(curvatures, dtype=torch.float64).unsqueeze(1)
    mean = lambda outputs, targets: (outputs - targets).mean()  # noqa: E731
    data = (inputs, torch.zeros_like(inputs))
    return tacit.Problem(Stretch(), mean, data, batch_size=1, dtype=torch.float64)


def test_in_one_dimension_the_three_edges_are_three_means() -> None:
    h, rate, strength = np.array([0.5, 1.0, 2.0, 3.0]), 0.2, 1.5
    problem = stretched(h.tolist())
    factors = 1 - rate * h.mean() - rate * strength / 2 * h**2
    options: dict[str, Any] = {"learning_rate": rate, "strength": strength}
    assert sampled_penalty_growth(problem, sampled=4, **options) == pytest.approx(factors.mean() ** 2)
    assert sampled_penalty_growth(problem, sampled=1, **options) == pytest.approx((factors**2).mean())
    once = sampled_penalty_growth(problem, sampled=1, draws="once each", **options)
    assert once == pytest.approx(float(np.exp(np.log(factors**2).mean())))


def test_the_edge_of_independent_draws_is_the_formula_with_the_variance() -> None:
    """(1 − εh − (ελ/2)⟨hₖ²⟩)² + (ελ/2)² F Var(hₖ²) = 1."""
    h, rate = np.array([0.5, 1.0, 2.0, 3.0]), 0.2
    for sampled in (1, 2):
        edge = sampled_penalty_edge(stretched(h.tolist()), learning_rate=rate, sampled=sampled)
        mean, factor = 1 - rate * h.mean() - rate * edge / 2 * (h**2).mean(), (4 - sampled) / (3 * sampled)
        assert mean**2 + (rate * edge / 2) ** 2 * factor * (h**2).var() == pytest.approx(1)


@pytest.mark.parametrize("make", [problems.quadratic, problems.logistic])
@pytest.mark.parametrize(
    "share", [pytest.param(0.1, marks=pytest.mark.slow), 0.5, pytest.param(0.9, marks=pytest.mark.slow)]
)
def test_independent_draws_have_the_narrowest_edge(make: Any, share: float) -> None:
    problem = make()
    scape = Landscape(problem)
    rate = share * 2 / torch.linalg.eigvalsh(torch.func.hessian(scape.loss)(scape.start))[-1].item()
    whole = sampled_penalty_edge(problem, learning_rate=rate, sampled=4)
    for sampled in (1, 2):
        independent, once = (
            sampled_penalty_edge(problem, learning_rate=rate, sampled=sampled, draws=draws)
            for draws in ("independent", "once each")
        )
        assert independent < min(once, whole)


def test_once_each_can_be_stable_where_the_whole_penalty_is_not() -> None:
    """Where every factor has overshot, a geometric mean of their sizes is below the arithmetic one."""
    problem = stretched([1.0, 2.0])
    whole, once = (
        sampled_penalty_edge(problem, learning_rate=1.2, sampled=q, draws=draws)
        for q, draws in ((2, "independent"), (1, "once each"))
    )
    assert once > 1.02 * whole
    # |(1 − εh − (ελ/2)h₁²)(1 − εh − (ελ/2)h₂²)| = 1 at the edge
    factors = [1 - 1.2 * 1.5 - 1.2 * once / 2 * h**2 for h in (1.0, 2.0)]
    assert abs(math.prod(factors)) == pytest.approx(1)
    assert max(factors) < 0


@pytest.mark.parametrize("side", [0.9, 1.1])
def test_real_walks_diverge_beyond_the_edge_in_mean_square(side: float) -> None:
    problem = problems.quadratic(batches=3)
    scape = Landscape(problem)
    hessian = torch.func.hessian(scape.loss)(scape.start)
    rate = 1.0 / torch.linalg.eigvalsh(hessian)[-1].item()
    strength = side * sampled_penalty_edge(problem, learning_rate=rate, sampled=1)
    batches, rule = torch.stack(scape.batches), sampled_penalty_rule(scape, strength=strength)
    one, rates = torch.arange(3).reshape(3, 1), torch.tensor([rate], dtype=torch.float64)
    rows = torch.cartesian_prod(*[torch.arange(3)] * 7)
    starts = [scape.start, scape.start + 1.0]
    ends = [walk(scape, rule, s.unsqueeze(0), rates, [batches[one[c]] for c in rows.T])[0] for s in starts]
    # The difference of two walks with the same draws is the homogeneous motion. Six steps longer, by its growth.
    shorter = [walk(scape, rule, s.unsqueeze(0), rates, [batches[one[c]] for c in rows.T[:5]])[0] for s in starts]
    growth = ((ends[1] - ends[0]).square().sum(1).mean() / (shorter[1] - shorter[0]).square().sum(1).mean()) ** 0.5
    predicted = sampled_penalty_growth(problem, learning_rate=rate, strength=strength, sampled=1)
    assert growth.item() == pytest.approx(predicted, rel=0.05)
    assert (growth.item() < 1) == (side < 1)


# -- bad input --------------------------------------------------------------------------------------------------------
def test_draws_that_cannot_be_made_are_refused() -> None:
    scape = Landscape(problems.logistic())
    with pytest.raises(tacit.InputError, match="expected 1 to 4"):
        sampled_penalty_update(scape, sampled=5)
    with pytest.raises(tacit.InputError, match="expected a divisor of 4"):
        sampled_penalty_update(scape, sampled=3, draws="once each")
    with pytest.raises(tacit.InputError, match="expected one of independent, once each"):
        modified_loss_of_sampled_penalty(scape, learning_rate=0.1, strength=1.0, sampled=1, draws="cyclic")  # type: ignore[arg-type]
    with pytest.raises(tacit.InputError, match="expected above 0"):
        penalty_with_probability_update(scape, probability=0.0)
    assert len(groupings(6, 2)) == 90
