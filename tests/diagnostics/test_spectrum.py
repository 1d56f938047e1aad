"""The spectrum that minibatch noise meets, against dense Hessians."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian
from torch.nn import functional as F

import tacit
from cases import labels, numbers, spread
from tacit._util.random_generators import generator


def dense_hessians(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
    """One Hessian per example, in the order of the parameters."""
    shapes = {name: value.shape for name, value in model.named_parameters()}
    start = torch.cat([value.detach().reshape(-1) for value in model.parameters()])

    def loss(flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parts = flat.split([shape.numel() for shape in shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return F.cross_entropy(functional_call(model, named, (x[None],)), y[None])

    return np.stack([hessian(loss)(start, x, y).numpy() for x, y in zip(inputs, targets, strict=True)])


@pytest.fixture(scope="module")
def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = spread(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))).double()
    return model, numbers(64, 3, seed=1), labels(64, 3, 2)


def test_weights_are_shares_and_curvatures_lie_in_the_spectrum(problem) -> None:
    model, inputs, targets = problem
    seen = tacit.measure(model, F.cross_entropy, (inputs, targets), batch_size=4, curvature=True)
    eigenvalues = np.linalg.eigvalsh(dense_hessians(model, inputs, targets).mean(0))
    assert sum(seen.spectrum.weights) == pytest.approx(1.0)
    assert seen.spectrum.largest == pytest.approx(eigenvalues[-1], rel=1e-3)
    assert min(seen.spectrum.values) > eigenvalues[0] - 1e-8
    assert max(seen.spectrum.values) < eigenvalues[-1] + 1e-8


def test_the_variance_over_examples_is_that_of_dense_hessians(problem) -> None:
    """16 groups of 4: the estimate scatters by √(2/15) of its value at most, times what 31 numbers average out."""
    model, inputs, targets = problem
    each = dense_hessians(model, inputs, targets)
    values, vectors = np.linalg.eigh(each.mean(0))
    products = each @ vectors[:, -1]
    variance = np.square(products - products.mean(0)).sum() / (len(each) - 1)
    found = [
        tacit.measure(model, F.cross_entropy, (inputs, targets), batch_size=4, curvature=True, seed=seed).spectrum
        for seed in range(8)
    ]
    mean = np.mean([spectrum.example_variance for spectrum in found])
    # Groups partition all examples, so their variance has the finite-population factor of none: unbiased.
    assert mean == pytest.approx(variance, rel=0.25)
    expected = np.sqrt((1 / 4 - 1 / 64) * found[0].example_variance) / values[-1]
    assert found[0].curvature_spread(4) == pytest.approx(expected, rel=1e-3)
    assert found[0].curvature_spread(64) == 0.0


def test_the_squares_of_micro_batches_scatter_as_those_of_dense_hessians() -> None:
    model = spread(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))).double()
    inputs, targets = numbers(64, 3, seed=1), labels(64, 3, 2)
    found = tacit.measure(model, F.cross_entropy, (inputs, targets), batch_size=[8, 4, 16], curvature=True).spectrum
    assert set(found.square_spreads) == {8, 4}  # of 16 examples there are only four
    each = dense_hessians(model, inputs, targets)
    v = np.linalg.eigh(each.mean(0))[1][:, -1]
    order = torch.randperm(64, generator=generator(0, "probe"))
    for size in (4, 8):
        squares = np.array([np.square(each[rows].mean(0) @ v).sum() for rows in order.split(size)])
        assert found.square_spreads[size] == pytest.approx(squares.std() / squares.mean(), rel=0.01)  # v by Lanczos
