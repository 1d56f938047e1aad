"""The penalty with a GradScaler: what float16 cannot hold is the scaler's business, and no reason to refuse a model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import labels, numbers, spread, wide_net
from tacit import FactoredSGD, GradientPenalty, InputError
from tacit.penalty import METHODS


@pytest.mark.parametrize("method", list(METHODS))
def test_a_grad_scaler_that_only_the_penalty_has_met_can_step(method: str) -> None:
    model, inputs, targets = spread(wide_net()).double(), numbers(8, 12, seed=1), labels(8, 3, 2)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = model[0].weight.detach().clone()
    GradientPenalty(model, 0.01, method=method).backward(lambda: F.cross_entropy(model(inputs), targets), scaler=scaler)
    gradient = model[0].weight.grad / 1024
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(model[0].weight.detach(), before - 0.1 * gradient)


def half_precision_loss(model: nn.Module, inputs: Tensor, factor: float) -> Tensor:
    with torch.autocast("cpu", torch.float16):
        outputs = model(inputs)
    return factor * outputs.float().mean()


@pytest.mark.parametrize("method", list(METHODS))
def test_overflow_in_the_first_steps_of_a_grad_scaler_is_left_to_the_scaler(method: str) -> None:
    model, inputs = nn.Linear(12, 3), torch.ones(8, 12)
    before = model.weight.detach().clone()
    penalty = GradientPenalty(model, 1e-6, method=method)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=2**-10), torch.amp.GradScaler("cpu")
    moved = []
    for _ in range(12):
        optimizer.zero_grad()
        # ∂Ĉ/∂z = 100/24 an entry: times the first scale, 65536, it is beyond float16's 65504.
        penalty.backward(lambda: half_precision_loss(model, inputs, 100.0), scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
        moved.append(not torch.equal(model.weight.detach(), before))
    assert not moved[0]
    assert moved[-1]
    # Every weight has the gradient 100/3, every bias too.
    assert float(penalty.last.gradient_squared_norm) == pytest.approx(39 * (100 / 3) ** 2, rel=0.01)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_gradient_that_half_precision_holds_only_when_scaled_is_no_missed_use(method: str) -> None:
    model, inputs = nn.Linear(12, 3), torch.full((8, 12), 2e4)
    with torch.no_grad():
        model.weight.fill_(0.1)
    penalty = GradientPenalty(model, 1e-6, method=method)
    # ∂Ĉ/∂z = 2e-7/24 an entry, a ninth of float16's smallest number; times 65536 it is held to a few per mille.
    penalty.backward(lambda: half_precision_loss(model, inputs, 2e-7), scaler=torch.amp.GradScaler("cpu"))
    norm = 36 * (2e-7 / 3 * 2e4) ** 2  # the biases' part is 1e-9 of it
    assert float(penalty.last.gradient_squared_norm) == pytest.approx(norm, rel=0.02)


def roots(model: nn.Module, inputs: Tensor) -> Tensor:
    """The square root of 0, whose slope is not finite, on inputs of zeros; otherwise smooth."""
    return (model(inputs) - model.bias).square().sum().sqrt()


@pytest.mark.parametrize("optimizer", [False, True], ids=["penalty", "factored_sgd"])
def test_a_gradient_that_is_not_finite_is_no_missed_use(optimizer: bool) -> None:
    model = nn.Linear(12, 3)
    if optimizer:
        made = FactoredSGD(model, lr=0.1, strength=0.1)
        loss = made.step(lambda: roots(model, torch.zeros(8, 12)))
    else:
        loss = GradientPenalty(model, 0.1, method="gram").backward(lambda: roots(model, torch.zeros(8, 12)))
    assert float(loss) == 0


@pytest.mark.parametrize("first", ["not finite", "without a penalty"])
def test_the_check_for_missed_uses_waits_for_a_step_that_it_can_judge(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(12, 3)
    penalty = GradientPenalty(model, lambda step: float(step > 0 or first == "not finite"), method="gram")
    penalty.backward(lambda: roots(model, torch.zeros(8, 12) if first == "not finite" else torch.ones(8, 12)))
    monkeypatch.setattr("tacit.penalty.methods.gram.squared_norm", lambda view, parameters: view.loss * 0 + 123.0)
    for _ in range(2):  # a step that fails is checked again
        with pytest.raises(InputError, match="some use of a parameter was not seen"):
            penalty.backward(lambda: roots(model, torch.ones(8, 12)))


class Products(nn.Module):
    """Attention written out: products of activations, whose gradients autocast would round once more."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        return torch.softmax(query @ key.transpose(1, 2), dim=-1) @ value


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("method", ["gram", "double_backward"])
def test_autocast_around_the_call_is_autocast_around_the_closure(method: str, as_tensor: bool) -> None:
    """Lightning calls the whole training step under autocast; the penalty's own passes must not see it."""
    model, inputs = spread(Products()), numbers(4, 6, 8, seed=1).float()
    found = []
    for where in ("inside", "outside"):
        model.zero_grad()
        penalty = GradientPenalty(model, 0.3, method=method)

        def closure(where: str = where) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=where == "inside" or torch.is_autocast_enabled("cpu")):
                return model(inputs).square().mean()

        with torch.autocast("cpu", torch.bfloat16, enabled=where == "outside"):
            if as_tensor:
                penalty.loss(closure).backward()
            else:
                penalty.backward(closure)
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(inside, outside) for inside, outside in zip(*found, strict=True))
