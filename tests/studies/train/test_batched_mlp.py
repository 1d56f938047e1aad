"""One update of a fleet is one update of each run: against autograd's double backward, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.studies.train import batched_mlp

RUNS, ROWS, CLASSES = 3, 6, 4
# Shapes on both sides of the Gram choice, with and without hidden layers.
SIZES = [[5, 4], [5, 7, 6, 4], [5, 30, 4], [5, 3, 3, 3, 3, 4]]


def per_run(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).view(RUNS, 1, 1)


def problem(sizes: list[int]) -> tuple[batched_mlp.Layers, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    layers = batched_mlp.initialise(sizes, [0, 1, 2], dtype=torch.float64)
    for bias in layers.biases:
        bias.normal_(generator=draws)
    inputs = torch.randn(RUNS, ROWS, sizes[0], generator=draws, dtype=torch.float64)
    return layers, inputs, torch.randint(CLASSES, (RUNS, ROWS), generator=draws)


def autograd_losses(tensors: list[Tensor], inputs: Tensor, labels: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Ĉ + (μ/2)‖ω‖² and the squared norm of its gradient, per run; each run is a separate loop here."""
    layers = len(tensors) // 2
    values, norms = [], []
    for run in range(RUNS):
        hidden = inputs[run]
        for at in range(layers):
            hidden = hidden @ tensors[at][run] + tensors[layers + at][run]
            hidden = hidden.relu() if at < layers - 1 else hidden
        squares = sum(tensor[run].square().sum() for tensor in tensors)
        value = F.cross_entropy(hidden, labels[run]) + decay.flatten()[run] / 2 * squares
        gradient = torch.autograd.grad(value, tensors, create_graph=True)
        values.append(value)
        norms.append(sum(part.square().sum() for part in gradient))
    return torch.stack(values), torch.stack(norms)  # type: ignore[arg-type]


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_penalized_update_is_the_gradient_that_double_backward_gives(sizes: list[int], decay: float) -> None:
    layers, inputs, labels = problem(sizes)
    rates = batched_mlp.Rates(
        learning_rate=per_run(0.1, 0.2, 0.3),
        strength=per_run(0.5, 0.0, 1.5),
        weight_decay=per_run(decay, 0.0, 2 * decay),
        penalized=True,
        decayed=decay > 0,
    )
    tensors = [tensor.clone().requires_grad_() for tensor in layers.tensors()]
    values, norms = autograd_losses(tensors, inputs, labels, rates.weight_decay)
    total = (values + rates.strength.flatten() / 4 * norms).sum()
    expected = [
        tensor.detach() - rates.learning_rate * gradient
        for tensor, gradient in zip(tensors, torch.autograd.grad(total, tensors), strict=True)
    ]
    batched_mlp.update(layers, inputs, F.one_hot(labels, CLASSES).double(), rates=rates)
    for found, wanted in zip(layers.tensors(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-13)  # float64 rounding of a few products


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_squared_gradient_norm_is_autograds(sizes: list[int]) -> None:
    layers, inputs, labels = problem(sizes)
    decay = per_run(0.0, 0.1, 0.2)
    tensors = [tensor.clone().requires_grad_() for tensor in layers.tensors()]
    _, expected = autograd_losses(tensors, inputs, labels, decay)
    one_hot = F.one_hot(labels, CLASSES).double()
    found = batched_mlp.squared_gradient_norm(layers, inputs, one_hot, weight_decay=decay)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=0)


def test_strength_zero_in_a_penalized_fleet_is_the_plain_update() -> None:
    results = []
    for penalized in (False, True):
        layers, inputs, labels = problem([5, 7, 6, 4])
        zero = per_run(0, 0, 0)
        rates = batched_mlp.Rates(per_run(0.1, 0.2, 0.3), zero, zero, penalized=penalized, decayed=False)
        batched_mlp.update(layers, inputs, F.one_hot(labels, CLASSES).double(), rates=rates)
        results.append(layers.tensors())
    for plain, penalized_with_zero in zip(*results, strict=True):
        torch.testing.assert_close(plain, penalized_with_zero, rtol=1e-14, atol=1e-15)
