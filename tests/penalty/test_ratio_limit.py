"""`largest_ratio`: the penalty's part of a step beside the plain part, held by the sharpness of the steps before."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tacit
from tacit.edges import largest_stable_strength
from tacit.penalty.strength import FIRST, REMEMBERED

LOST = 1e6  # a weight from where nothing comes back
SHARPNESS = 14.0  # of micro-batches with curvatures 5 and 15 and gradients hω: (5³ + 15³)/(5² + 15²)
INPUTS = torch.tensor([[5.0], [15.0]], dtype=torch.float64).sqrt()


class Weight(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([value], dtype=torch.float64))


def quadratic(strength: Any, **options: Any) -> tuple[nn.Linear, tacit.GradientPenalty]:
    """Two micro-batches of one example, with ½hω² for their losses."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 1.0)
    return model, tacit.GradientPenalty(model, strength, micro_batch_size=1, **{"largest_ratio": 1.0, **options})


def step(model: nn.Module, penalty: tacit.GradientPenalty, times: float = 1.0, **options: Any) -> float:
    """One step without moving; curvatures are multiplied by `times`. Returns the strength that it had."""
    model.zero_grad()
    penalty.backward(lambda x: times * model(x).square().mean() / 2, INPUTS, **options)
    return penalty.last.strength


def train_on_quartic(rate: float, strength: float, ratio: float | None, steps: int = 40) -> float:
    """|ω| at the end of a training on ½ω² + ¼ω⁴ from ω = 3, where the curvature is 28; at the minimum it is 1."""
    model = Weight(3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    penalty = tacit.GradientPenalty(model, strength, method="double_backward", largest_ratio=ratio)

    def loss() -> Tensor:
        return (model.w.square() / 2 + model.w**4 / 4).sum()

    for _ in range(steps):
        if abs(model.w.item()) > LOST:
            break
        optimizer.zero_grad()
        penalty.backward(loss)
        optimizer.step()
    return abs(model.w.item())


def test_a_strength_below_the_edge_of_another_place_diverges_and_the_limit_keeps_it() -> None:
    """λ* is that of the curvature where it was measured: here at the minimum, and the training starts elsewhere."""
    rate, strength = 0.05, 1.0
    assert strength < 0.75 * largest_stable_strength(rate, 1.0)
    assert train_on_quartic(rate, strength, None) > LOST
    assert train_on_quartic(rate, 0.0, None) < 0.5  # the plain training is fine
    assert train_on_quartic(rate, strength, 1.0) < 0.5


@pytest.mark.parametrize("method", ["gram", "double_backward", "finite_difference"])
def test_the_penaltys_part_is_at_most_the_ratio_times_the_plain_part(method: str) -> None:
    plain = 10.0  # E h of the two micro-batches, at ω = 1
    for ratio in (0.5, 1.0):
        model, penalty = quadratic(100.0, method=method, largest_ratio=ratio)
        assert step(model, penalty) == FIRST * 100
        assert step(model, penalty) == pytest.approx(2 * ratio / SHARPNESS, rel=1e-4)  # a finite difference has 1e-5
        found = float(model.weight.grad) / plain - 1
        # (λ/2) E h²/E h, with E h²/E h = 12.5 where the limit takes 14
        assert found == pytest.approx(ratio * 12.5 / SHARPNESS, rel=1e-4)
        assert found <= ratio


def test_a_strength_below_the_limit_is_applied_as_it_is() -> None:
    model, penalty = quadratic(0.1)
    step(model, penalty)
    assert step(model, penalty) == 0.1 < 2 / SHARPNESS


def test_without_the_argument_the_strength_is_never_changed() -> None:
    model, penalty = quadratic(100.0, largest_ratio=None)
    assert [step(model, penalty) for _ in range(3)] == [100.0] * 3


def test_a_rise_of_the_sharpness_counts_at_once_and_a_fall_slowly() -> None:
    model, penalty = quadratic(100.0)
    for times in (1.0, 3.0):
        step(model, penalty, times)
    assert step(model, penalty, 1.0) == pytest.approx(2 / (3 * SHARPNESS))
    fallen = SHARPNESS * (3 * REMEMBERED + (1 - REMEMBERED))
    assert step(model, penalty, 1.0) == pytest.approx(2 / fallen)


def test_a_loss_that_is_not_curved_upwards_has_no_limit() -> None:
    model, penalty = quadratic(0.3)
    step(model, penalty, -1.0)
    assert step(model, penalty, -1.0) == 0.3


def test_the_weight_of_rare_steps_is_held_too() -> None:
    model, penalty = quadratic(100.0, every=2)
    assert [step(model, penalty) for _ in range(4)] == [FIRST * 200, 0.0, pytest.approx(2 / SHARPNESS), 0.0]


def test_a_schedule_is_held() -> None:
    model, penalty = quadratic(lambda number: [50.0, 0.01, 50.0][number])
    found = [step(model, penalty) for _ in range(3)]
    assert found == [FIRST * 50, 0.01, pytest.approx(2 / SHARPNESS)]


def test_a_gradient_of_zero_says_nothing() -> None:
    """0/0 is no sharpness: the next step is still the first one that is known of."""
    model, penalty = quadratic(100.0)
    nn.init.zeros_(model.weight)
    step(model, penalty)
    assert step(model, penalty) == FIRST * 100


def test_a_resumed_run_goes_on_with_the_sharpness() -> None:
    model, penalty = quadratic(100.0)
    step(model, penalty, 3.0)
    step(model, penalty, 1.0)
    again, resumed = quadratic(100.0)
    resumed.load_state_dict(penalty.state_dict())
    assert step(model, penalty) == pytest.approx(2 / (SHARPNESS * (3 * REMEMBERED + 1 - REMEMBERED)))
    assert step(again, resumed) == penalty.last.strength


def test_steps_without_a_batch_sharpness_are_not_held_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(1, 1)
    penalty = tacit.GradientPenalty(model, 3.0, largest_ratio=1.0)

    def loss() -> Tensor:
        return model(torch.ones(1, 1)).square().mean()

    with caplog.at_level(logging.WARNING, logger="tacit"):
        for _ in range(3):
            penalty.backward(loss, second_view=loss)
    (record,) = caplog.records
    assert "largest_ratio=1 is not in force" in record.message
    assert penalty.last.strength == 3.0


@pytest.mark.parametrize("method", list(tacit.penalty.METHODS))
def test_a_step_of_weight_zero_has_no_sharpness_and_changes_no_limit(method: str) -> None:
    """Some methods take the penalty's part off the finished gradient, which is zero here: 0/0."""
    model, penalty = quadratic(1.0, method=method)
    step(model, penalty)
    limit = penalty.state_dict()["sharpness"]
    step(model, penalty, 3.0, weight=0.0)
    assert penalty.last.batch_sharpness is None
    assert "batch_sharpness" not in penalty.last.to_row()
    assert penalty.state_dict()["sharpness"] == limit
