"""What a user's own modes and subclasses of Tensor do to a torch function, they do in a penalised step, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import tacit

STRENGTH = 0.1


class ScaledLayers(TorchFunctionMode):
    """A mode that changes what linear layers compute, as one for fake quantization would."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return 1.5 * result if func is F.linear else result


class Shifting(Tensor):
    """A subclass that changes what linear layers compute of it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result + 1 if func is F.linear else result


class Plain(Tensor):
    pass


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 3)).double()


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(32, 20, dtype=torch.float64), torch.randint(3, (32,))


def by_hand(model: nn.Module, losses: list[Tensor]) -> tuple[float, list[Tensor]]:
    parameters = list(model.parameters())
    objective = torch.zeros((), dtype=torch.float64)
    for loss in losses:
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        norm = sum(gradient.square().sum() for gradient in gradients)
        objective = objective + (loss + STRENGTH / 4 * norm) / len(losses)
    found = torch.autograd.grad(objective, parameters)
    return sum(float(loss.detach()) for loss in losses) / len(losses), [
        gradient.as_subclass(Tensor) for gradient in found
    ]


def assert_same(model: nn.Module, expected: list[Tensor]) -> None:
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.as_subclass(Tensor), gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("micro", [None, 8])
@pytest.mark.parametrize("method", ["auto", "gram", "double_backward"])
def test_a_users_mode_sees_every_layer_of_the_closure(method: str, micro: int | None) -> None:
    model, (inputs, targets) = network(), batch()
    with ScaledLayers():
        pieces = zip(inputs.split(micro or 32), targets.split(micro or 32), strict=True)
        loss, expected = by_hand(model, [F.cross_entropy(model(x), y) for x, y in pieces])
        penalty = tacit.GradientPenalty(model, STRENGTH, method=method, micro_batch_size=micro)
        for _ in range(2):  # the first step may be a comparison
            model.zero_grad()
            found = penalty.backward(lambda x, y: F.cross_entropy(model(x), y), inputs, targets)
    assert float(found) == pytest.approx(loss, rel=1e-12)
    assert_same(model, expected)


def test_a_users_mode_sees_every_layer_in_factored_sgd() -> None:
    model, (inputs, targets) = network(), batch()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with ScaledLayers():
        loss, expected = by_hand(model, [F.cross_entropy(model(inputs), targets)])
        optimizer = tacit.FactoredSGD(model, lr=0.5, strength=STRENGTH)
        found = optimizer.step(lambda: F.cross_entropy(model(inputs), targets))
    assert float(found) == pytest.approx(loss, rel=1e-12)
    for parameter, start, gradient in zip(model.parameters(), before, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), start - 0.5 * gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["auto", "gram", "double_backward"])
def test_inputs_of_a_subclass_compute_what_the_subclass_says(method: str) -> None:
    model, (inputs, targets) = network(), batch()
    own = inputs.as_subclass(Shifting)
    loss, expected = by_hand(model, [F.cross_entropy(model(own), targets)])
    assert loss != pytest.approx(float(F.cross_entropy(model(inputs), targets)), rel=1e-3)
    found = tacit.GradientPenalty(model, STRENGTH, method=method).backward(lambda: F.cross_entropy(model(own), targets))
    assert float(found) == pytest.approx(loss, rel=1e-12)
    assert_same(model, expected)


def test_a_parameter_of_a_subclass_stays_in_the_norm() -> None:
    model, (inputs, targets) = nn.Linear(20, 3).double(), batch()
    weight = torch.randn(3, 20, dtype=torch.float64).as_subclass(Plain).requires_grad_()
    del model.weight
    model.register_parameter("weight", None)
    model._parameters["weight"] = weight  # type: ignore[assignment]
    _, expected = by_hand(model, [F.cross_entropy(model(inputs), targets)])
    penalty = tacit.GradientPenalty(model, STRENGTH, method="double_backward")
    penalty.backward(lambda: F.cross_entropy(model(inputs), targets))
    assert_same(model, expected)


def test_subclasses_that_the_user_switched_off_stay_off() -> None:
    model, (inputs, targets) = network(), batch()
    own = inputs.as_subclass(Shifting)
    for strength in (0.0, STRENGTH):
        with torch._C.DisableTorchFunctionSubclass():
            plain = float(F.cross_entropy(model(own), targets))
            found = tacit.GradientPenalty(model, strength).backward(lambda: F.cross_entropy(model(own), targets))
        assert float(found) == pytest.approx(plain, rel=1e-12)
