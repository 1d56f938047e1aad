"""`FactoredSGD` is `GradientPenalty` with `torch.optim.SGD`: momentum, Nesterov, groups, schedulers, saved states."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from cases import CASES, Case, labels, numbers, spread, wide_net
from tacit import FactoredSGD, GradientPenalty, InputError

STRENGTH = 0.3
MOMENTA: dict[str, dict[str, Any]] = {
    "plain": {},
    "heavy ball": {"momentum": 0.9},
    "dampened": {"momentum": 0.9, "dampening": 0.4},
    "Nesterov": {"momentum": 0.9, "nesterov": True},
    "with decay": {"momentum": 0.9, "weight_decay": 0.1},
    "Nesterov with decay": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
}


def reference_step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> None:
    optimizer.zero_grad()
    GradientPenalty(model, STRENGTH, method="double_backward").backward(loss)
    optimizer.step()


def assert_same_weights(model: nn.Module, twin: nn.Module) -> None:
    for (name, found), expected in zip(model.named_parameters(), twin.parameters(), strict=True):
        # Float64, the same sums in another order, over a few steps.
        torch.testing.assert_close(
            found, expected, rtol=1e-10, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("options", MOMENTA.values(), ids=list(MOMENTA))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_three_steps_equal_torchs_sgd_on_the_penalised_gradient(case: Case, options: dict[str, Any]) -> None:
    model = case.make().double()
    twin = copy.deepcopy(model)
    ours, torchs = (
        FactoredSGD(model, 0.05, strength=STRENGTH, **options),
        torch.optim.SGD(twin.parameters(), 0.05, **options),
    )
    for step in range(3):
        torch.manual_seed(step)
        ours.step(lambda: case.loss(model))
        torch.manual_seed(step)
        reference_step(twin, torchs, lambda: case.loss(twin))
    assert_same_weights(model, twin)


def test_a_large_matrix_is_updated_in_parts() -> None:
    """More rows than one part of the cache holds, and a number that the parts do not divide."""
    model, inputs = nn.Linear(1500, 1501), numbers(2, 1500, seed=1, dtype=torch.float32)
    twin = copy.deepcopy(model)
    ours, torchs = FactoredSGD(model, 0.1, momentum=0.9), torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        ours.step(lambda: model(inputs).square().mean())
        torchs.zero_grad()
        twin(inputs).square().mean().backward()
        torchs.step()
    torch.testing.assert_close(model.weight, twin.weight)


def wide() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    inputs, targets = numbers(8, 12, seed=1), labels(8, 3, 2)
    return spread(wide_net()).double(), lambda m: F.cross_entropy(m(inputs), targets)


def test_groups_have_their_own_rates_momenta_and_decays() -> None:
    model, loss = wide()
    twin = copy.deepcopy(model)

    def groups(m: Any) -> list[dict[str, Any]]:
        return [
            {"params": m[0].parameters(), "lr": 0.2, "momentum": 0.5},
            {"params": [m[2].weight], "weight_decay": 0.3},
            {"params": [m[2].bias, *m[4].parameters()], "nesterov": True},
        ]

    ours = FactoredSGD(model, 0.05, strength=STRENGTH, momentum=0.9, params=groups(model))
    torchs = torch.optim.SGD(groups(twin), 0.05, momentum=0.9)
    for _ in range(3):
        ours.step(lambda: loss(model))
        reference_step(twin, torchs, lambda: loss(twin))
    assert_same_weights(model, twin)


def test_parameters_outside_all_groups_stay_but_count_in_the_norm() -> None:
    model, loss = wide()
    twin = copy.deepcopy(model)
    ours = FactoredSGD(model, 0.05, strength=STRENGTH, params=[{"params": model[0].parameters()}])
    ours.add_param_group({"params": model[2].parameters(), "lr": 0.1})
    torchs = torch.optim.SGD([{"params": twin[0].parameters()}, {"params": twin[2].parameters(), "lr": 0.1}], 0.05)
    ours.step(lambda: loss(model))
    reference_step(twin, torchs, lambda: loss(twin))
    assert_same_weights(model, twin)


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4], 0.5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=8),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_torchs_schedulers_move_rates_and_momenta(name: str) -> None:
    model, loss = wide()
    twin = copy.deepcopy(model)
    ours = FactoredSGD(model, 0.05, strength=STRENGTH, momentum=0.9)
    torchs = torch.optim.SGD(twin.parameters(), 0.05, momentum=0.9)
    our_schedule, torchs_schedule = SCHEDULERS[name](ours), SCHEDULERS[name](torchs)
    for _ in range(5):
        ours.step(lambda: loss(model))
        reference_step(twin, torchs, lambda: loss(twin))
        our_schedule.step()
        torchs_schedule.step()
        assert ours.param_groups[0]["lr"] == torchs.param_groups[0]["lr"]
        assert ours.param_groups[0]["momentum"] == torchs.param_groups[0]["momentum"]
    assert_same_weights(model, twin)


def test_one_cycle_may_bring_momentum_to_an_optimizer_that_began_without() -> None:
    model, loss = wide()
    optimizer = FactoredSGD(model, 0.05, strength=STRENGTH)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=8)
    optimizer.step(lambda: loss(model))
    scheduler.step()
    assert optimizer.param_groups[0]["momentum"] > 0.8
    assert optimizer.state[model[0].weight]["momentum_buffer"].shape == model[0].weight.shape


def test_a_run_goes_on_from_its_saved_state() -> None:
    model, loss = wide()
    whole = copy.deepcopy(model)
    uninterrupted = FactoredSGD(whole, 0.05, strength=STRENGTH, momentum=0.9, weight_decay=0.1)
    first = FactoredSGD(model, 0.05, strength=STRENGTH, momentum=0.9, weight_decay=0.1)
    for _ in range(4):
        uninterrupted.step(lambda: loss(whole))
    for _ in range(2):
        first.step(lambda: loss(model))
    resumed_model = copy.deepcopy(model)
    resumed = FactoredSGD(resumed_model, 1.0)
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    assert resumed.param_groups[0]["strength"] == STRENGTH
    for _ in range(2):
        resumed.step(lambda: loss(resumed_model))
    for found, expected in zip(resumed_model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(found, expected)


def test_no_weight_gradient_is_formed_with_momentum_either() -> None:
    model, loss = wide()
    FactoredSGD(model, 0.05, strength=STRENGTH, momentum=0.9).step(lambda: loss(model))
    assert all(layer.weight.grad is None for layer in model if isinstance(layer, nn.Linear))


def test_a_closure_that_calls_backward_is_refused_for_that() -> None:
    """Lightning's automatic optimization hands over such a closure; torch.no_grad() is nowhere near it."""
    model, loss = wide()
    before = copy.deepcopy(model)

    def closure() -> Tensor:
        found = loss(model)
        found.backward()
        return found.detach()

    with pytest.raises(InputError, match=r"called backward itself.*Lightning's automatic optimization"):
        FactoredSGD(model, 0.05, strength=STRENGTH).step(closure)
    assert_same_weights(model, before)
