"""The edge of a penalty on every k-th step, against the steps of torch.optim.SGD themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.advice.every_edge import largest_stable_strength_every, second_moments
from tacit.advice.optimizers import Momentum
from tacit.edges import Step, largest_stable_strength, largest_stable_strength_sampled, sampling_factor

RATE, TOP = 1 / 64, 4.0


def grows(strength: float, every: int, momentum: Momentum) -> bool:
    """Whether the real optimizer, on quadratics with curvatures up to λ_max, ends farther away than it was half-way.

    The penalty of a quadratic is (λ/4)h²ω², so its gradient is (λ/2)h²ω.
    """
    h = TOP * torch.arange(1, 49, dtype=torch.float64) / 48
    w = torch.nn.Parameter(torch.ones_like(h))
    optimizer = torch.optim.SGD([w], lr=RATE, momentum=momentum.beta, nesterov=momentum.nesterov)
    far = []
    for step in range(1200):
        weight = every * strength if step % every == 0 else 0.0
        w.grad = (h + weight / 2 * h**2) * w.detach()
        optimizer.step()
        far.append(float(w.detach().abs().max()))
    return max(far[900:]) > max(far[400:600])


@pytest.mark.parametrize("every", [2, 4, 8])
@pytest.mark.parametrize("momentum", [Momentum(0.9), Momentum(0.9, nesterov=True)])
def test_real_steps_shrink_below_it_and_grow_above(every: int, momentum: Momentum) -> None:
    edge = largest_stable_strength_every(RATE, TOP, every=every, momentum=momentum)
    assert not grows(0.93 * edge, every, momentum)  # the grid of strengths has steps of 3 %
    assert grows(1.1 * edge, every, momentum)


@pytest.mark.parametrize("every", [2, 4, 8])
def test_without_momentum_the_penalised_step_alone_must_be_stable(every: int) -> None:
    """All k together would allow more, but a network does not come back from such a step (docs/large-batch.md)."""
    edge = largest_stable_strength_every(RATE, TOP, every=every)
    assert edge == pytest.approx(largest_stable_strength(RATE, TOP) / every, rel=1e-12)
    assert not grows(0.93 * edge, every, Momentum())


@pytest.mark.parametrize("momentum", [Momentum(), Momentum(0.9)])
def test_on_every_step_it_is_the_edge_in_closed_form(momentum: Momentum) -> None:
    expected = largest_stable_strength(RATE, TOP, step=Step(momentum=momentum.beta, curvature_spread=1.5))
    found = largest_stable_strength_every(RATE, TOP, every=1, momentum=momentum, curvature_spread=1.5)
    assert found == expected


def mean_square(rates: tuple[float, float], steps: int, momentum: Momentum) -> list[float]:
    """E ω² after each step of torch.optim.SGD, over all sequences of minibatches of either curvature, from ω = 1."""
    sequences = torch.cartesian_prod(*[torch.tensor(rates, dtype=torch.float64)] * steps)
    w = torch.nn.Parameter(torch.ones(len(sequences), dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=1.0, momentum=momentum.beta, nesterov=momentum.nesterov)
    found = []
    for scaled in sequences.T:
        w.grad = scaled * w.detach()
        optimizer.step()
        found.append(float(w.detach().square().mean()))
    return found


@pytest.mark.parametrize("momentum", [Momentum(), Momentum(0.9), Momentum(0.5, nesterov=True)])
def test_the_map_of_second_moments_is_the_mean_over_all_sequences_of_minibatches(momentum: Momentum) -> None:
    rate, h, spread = 0.3, 2.0, 0.4
    expected = mean_square((rate * h * (1 - spread), rate * h * (1 + spread)), 8, momentum)
    step = second_moments(rate, np.array([h]), np.zeros((1, 1)), momentum, (0.0, spread, 0.0))[0, 0]
    # The first step has no buffer yet: torch starts as if ω had been at 1 before.
    found = [float((np.linalg.matrix_power(step, count) @ np.ones(3))[0]) for count in range(1, 9)]
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_heavy_ball_on_minibatches_that_differ_has_the_edge_in_closed_form() -> None:
    beta, s, batch = 0.9, 1.5, 0.3
    found = largest_stable_strength_every(
        RATE, TOP, every=1, momentum=Momentum(beta), curvature_spread=s, batch_spread=batch
    )
    kappa = TOP + found / 2 * (1 + s**2) * TOP**2
    scatter = (batch * TOP / kappa) ** 2 * ((1 + found * TOP) ** 2 + (found * s * TOP) ** 2 / 2)
    expected = 2 * (1 + beta) / (1 + scatter * (1 + beta) / (1 - beta))
    assert RATE * kappa == pytest.approx(expected, rel=1e-7)  # the spectral radius may be 1e-9 above 1
    assert found < largest_stable_strength(RATE, TOP, step=Step(momentum=beta, curvature_spread=s)) / 2


@pytest.mark.parametrize("strength", [0.0, 0.7])
def test_the_scatter_of_the_penalised_curvature_is_that_of_gaussian_micro_batches(strength: float) -> None:
    """200,000 minibatches of 4 micro-batches, h of each normal around 2: 1 % is four standard errors of a variance."""
    h, s, count = 2.0, 0.5, 4
    draws = torch.Generator().manual_seed(0)
    each = h * (1 + s * torch.randn(200_000, count, generator=draws, dtype=torch.float64))
    kappa = (each + strength / 2 * each**2).mean(1)
    made = [second_moments(1.0, np.array([h]), np.array([[strength]]), Momentum(), (s, spread, 0.0))[0, 0] for spread in
            (0.0, s / count**0.5)]  # fmt: skip
    assert float(1 - kappa.mean()) == pytest.approx(made[0][1, 0], rel=0.01)
    assert float(kappa.var()) == pytest.approx(made[1][0, 0] - made[0][0, 0], rel=0.013)


@pytest.mark.parametrize("momentum", [Momentum(), Momentum(0.9)])
@pytest.mark.parametrize("sampled", [1, 2, 4])
def test_the_edge_of_drawn_micro_batches_is_that_in_closed_form(sampled: int, momentum: Momentum) -> None:
    h = np.array([0.5, 1.0, 2.0, 3.0])
    squares = h**2
    found = largest_stable_strength_every(
        RATE, float(h.mean()), every=1, momentum=momentum, curvature_spread=float(h.std() / h.mean()),
        draw_spread=float(sampling_factor(4, sampled) ** 0.5 * squares.std() / squares.mean()),
    )  # fmt: skip
    expected = largest_stable_strength_sampled(RATE, h.tolist(), sampled=sampled, momentum=momentum.beta)
    assert found == pytest.approx(expected, rel=1e-6)  # the spectral radius may be 1e-9 above 1


def drawn_growth(strength: float, curvatures: torch.Tensor, momentum: Momentum, steps: int) -> list[float]:
    """E ω² after each step of torch.optim.SGD with one drawn micro-batch's penalty, over all sequences of draws."""
    sequences = torch.cartesian_prod(*[curvatures.double()] * steps)
    w = torch.nn.Parameter(torch.ones(len(sequences), dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=RATE, momentum=momentum.beta, nesterov=momentum.nesterov)
    found = []
    for drawn in sequences.T:
        w.grad = (curvatures.mean() + strength / 2 * drawn**2) * w.detach()
        optimizer.step()
        found.append(float(w.detach().square().mean()))
    return found


@pytest.mark.parametrize("momentum", [Momentum(), Momentum(0.9), Momentum(0.5, nesterov=True)])
def test_the_map_of_draws_is_the_mean_over_all_sequences_of_draws(momentum: Momentum) -> None:
    h, strength = torch.tensor([1.0, 4.0, 7.0], dtype=torch.float64), 3.0
    mean, squares = float(h.mean()), h**2
    spreads = (float(h.std(correction=0)) / mean, 0.0, float(squares.std(correction=0) / squares.mean()))
    step = second_moments(RATE, np.array([mean]), np.array([[strength]]), momentum, spreads)[0, 0]
    found = [float((np.linalg.matrix_power(step, count) @ np.ones(3))[0]) for count in range(1, 8)]
    assert found == pytest.approx(drawn_growth(strength, h, momentum, 7), rel=1e-12)


def test_momentum_makes_rare_kicks_worse() -> None:
    heavy = largest_stable_strength(RATE, TOP, step=Step(momentum=0.9))
    assert largest_stable_strength_every(RATE, TOP, every=4, momentum=Momentum(0.9)) < heavy / 8


def test_a_step_that_is_unstable_alone_has_no_edge() -> None:
    assert largest_stable_strength_every(1.0, 4.0, every=4) == 0.0
