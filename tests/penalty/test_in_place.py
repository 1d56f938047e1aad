"""Changes in place after a layer, which torch allows on the output of any of its own layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import labels, numbers
from oracles import penalised_gradient
from tacit import FactoredSGD, GradientPenalty


def add(z: Tensor) -> Tensor:
    z += 0.3
    return z


def multiply(z: Tensor) -> Tensor:
    z *= 0.7
    return z


def clear_a_slice(z: Tensor) -> Tensor:
    z[:, 0] = 0
    return z


def add_to_a_view(z: Tensor) -> Tensor:
    z[..., :2].add_(z.detach()[..., :2])
    return z


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda z: F.relu(z, inplace=True),
    "relu_": torch.relu_,
    "dropout": lambda z: F.dropout(z, 0.5, inplace=True),
    "add": add,
    "multiply": multiply,
    "clear a slice": clear_a_slice,
    "add to a view": add_to_a_view,
    "fill": lambda z: z.masked_fill_(z > 0.5, 0.1),
    "of a transposed view": lambda z: z.transpose(0, 1).tanh_().transpose(0, 1),
}
SHAPES = {"rows": (5, 4), "one row": (4,), "tokens": (3, 2, 4), "four axes": (2, 2, 2, 4)}


class Changed(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor], width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.middle, self.leave = nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 3)
        self.change = change

    def forward(self, inputs: Tensor) -> Tensor:
        return self.leave(self.change(self.middle(torch.tanh(self.enter(inputs)))))


def problem(name: str, shape: tuple[int, ...]) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    if len(shape) == 1 and name in ("clear a slice", "of a transposed view"):
        pytest.skip("needs two axes")
    inputs = numbers(*shape, seed=1)
    targets = labels(inputs.numel() // 4, 3, 2)

    def loss(model: nn.Module) -> Tensor:
        torch.manual_seed(5)
        return F.cross_entropy(model(inputs).reshape(-1, 3), targets)

    return Changed(CHANGES[name], 6).double(), loss


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", CHANGES)
def test_gram_is_exact_when_outputs_are_changed_in_place(name: str, shape: tuple[int, ...]) -> None:
    model, loss = problem(name, shape)
    truth = penalised_gradient(model, loss, 0.7)
    GradientPenalty(model, 0.7, method="gram").backward(lambda: loss(model))
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, truth[key], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", CHANGES)
def test_the_factored_step_is_exact_when_outputs_are_changed_in_place(name: str) -> None:
    model, loss = problem(name, SHAPES["tokens"])
    truth = penalised_gradient(model, loss, 0.7)
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    FactoredSGD(model, lr=1.0, strength=0.7).step(lambda: loss(model))
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(before[key] - parameter.detach(), truth[key], rtol=1e-11, atol=1e-13)


def test_auto_on_a_wide_layer_followed_by_an_in_place_relu() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 512), nn.ReLU(inplace=True))
    inputs = numbers(2, 2, 8, seed=1).float()
    penalty = GradientPenalty(model, 0.7)
    assert penalty.method == "gram"
    penalty.backward(lambda: model(inputs).square().mean())
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    GradientPenalty(model, 0.7, method="double_backward").backward(lambda: model(inputs).square().mean())
    for ours, parameter in zip(found, model.parameters(), strict=True):  # float32, sums of up to 4096 terms
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_convolutions_followed_by_changes_in_place(dimensions: int) -> None:
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    torch.manual_seed(0)
    model = nn.Sequential(kind(2, 3, 2), nn.ReLU(inplace=True), kind(3, 2, 2)).double()
    images = numbers(3, 2, *[4] * dimensions, seed=1)

    def loss(model: nn.Module) -> Tensor:
        outputs = model(images)
        outputs[:, 0] *= 2
        return outputs.square().mean()

    truth = penalised_gradient(model, loss, 0.7)
    GradientPenalty(model, 0.7, method="gram").backward(lambda: loss(model))
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, truth[key], rtol=1e-11, atol=1e-13)
