"""The edge of a penalty on every k-th step, against the steps of torch.optim.SGD themselves."""

from __future__ import annotations

import pytest
import torch

from tacit.advice.every_edge import largest_stable_strength_every
from tacit.advice.optimizers import Momentum
from tacit.edges import largest_stable_strength

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
@pytest.mark.parametrize("momentum", [Momentum(), Momentum(0.9), Momentum(0.9, nesterov=True)])
def test_real_steps_shrink_below_it_and_grow_above(every: int, momentum: Momentum) -> None:
    edge = largest_stable_strength_every(RATE, TOP, every=every, momentum=momentum)
    assert not grows(0.93 * edge, every, momentum)  # the grid of strengths has steps of 3 %
    assert grows(1.1 * edge, every, momentum)


@pytest.mark.parametrize("momentum", [Momentum(), Momentum(0.9)])
def test_on_every_step_it_is_the_edge_in_closed_form(momentum: Momentum) -> None:
    expected = largest_stable_strength(RATE, TOP, momentum=momentum.beta, curvature_spread=1.5)
    found = largest_stable_strength_every(RATE, TOP, every=1, momentum=momentum, curvature_spread=1.5)
    assert found == expected


def test_momentum_makes_rare_kicks_worse_and_plain_steps_forgive_them() -> None:
    alone = largest_stable_strength(RATE, TOP)
    assert largest_stable_strength_every(RATE, TOP, every=4) > alone / 4
    heavy = largest_stable_strength(RATE, TOP, momentum=0.9)
    assert largest_stable_strength_every(RATE, TOP, every=4, momentum=Momentum(0.9)) < heavy / 8


def test_a_step_that_is_unstable_alone_has_no_edge() -> None:
    assert largest_stable_strength_every(1.0, 4.0, every=4) == 0.0
