"""Activation checkpointing runs blocks again in each backward pass; a penalised step leaves what a plain one leaves."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cases import labels, numbers
from tacit import FactoredSGD, GradientPenalty

X, Y = numbers(6, 8, seed=1), labels(6, 3, 2)


class Block(nn.Module):
    """A norm with running statistics, a buffer that is replaced, and one that is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.register_buffer("replaced", torch.zeros(()))
        self.register_buffer("changed", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.replaced = self.replaced * 0.5 + 1
        self.changed += 1
        return torch.tanh(self.norm(self.layer(inputs)))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.blocks, self.head = nn.Linear(8, 8), nn.ModuleList([Block(), Block()]), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = self.stem(inputs)
        for block in self.blocks:
            inputs = checkpoint(block, inputs, use_reentrant=False)
        return self.head(inputs)


def loss(model: nn.Module, inputs: Tensor = X) -> Tensor:
    return F.cross_entropy(model(inputs), Y)


def assert_same_buffers(model: nn.Module, twin: nn.Module) -> None:
    for (name, ours), plain in zip(model.named_buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, plain), f"{name}: {ours} after the penalised step, {plain} after a plain one"


@pytest.mark.parametrize("method", ["gram", "double_backward", "finite_difference"])
def test_buffers_are_those_of_a_plain_step(method: str) -> None:
    model = Checkpointed().double()
    twin = copy.deepcopy(model)
    penalty = GradientPenalty(model, 1e-3, method=method)
    for _ in range(2):
        penalty.backward(lambda: loss(model))
        loss(twin).backward()
        assert_same_buffers(model, twin)
    assert int(model.blocks[0].norm.num_batches_tracked) == 4  # forward and recomputation, two steps


def test_buffers_are_those_of_a_plain_step_with_two_views() -> None:
    model, other = Checkpointed().double(), numbers(6, 8, seed=4)
    twin = copy.deepcopy(model)
    penalty = GradientPenalty(model, 1e-3, method="double_backward")
    penalty.backward(lambda: loss(model), second_view=lambda: loss(model, other))
    (0.5 * (loss(twin) + loss(twin, other))).backward()
    assert_same_buffers(model, twin)


def test_buffers_are_those_of_a_plain_step_after_a_factored_one() -> None:
    model = Checkpointed().double()
    twin = copy.deepcopy(model)
    FactoredSGD(model, lr=0.1, strength=0.5).step(lambda: loss(model))
    loss(twin).backward()
    assert_same_buffers(model, twin)


@pytest.mark.parametrize("method", ["gram", "double_backward"])
def test_the_gradient_is_exact(method: str) -> None:
    model = Checkpointed().double()
    twin = copy.deepcopy(model)
    GradientPenalty(model, 0.7, method=method).backward(lambda: loss(model))
    plain = loss(twin)
    gradients = torch.autograd.grad(plain, list(twin.parameters()), create_graph=True)
    (plain + 0.7 / 4 * sum(gradient.square().sum() for gradient in gradients)).backward()
    for ours, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-10, atol=1e-13)
