"""Small smooth problems in closed form: the same numbers on every machine, because nothing is drawn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tacit._util.errors import InputError
from tacit.problem import Problem

DOUBLE = torch.float64


def quadratic(*, batches: int = 4, batch_size: int = 2, weight_decay: float = 0.0) -> Problem:
    """Quadratic losses in three dimensions whose minibatch Hessians do not commute.

    Cⱼ(ω) = ½ (ω − cⱼ)ᵀ Aⱼ (ω − cⱼ),   Aⱼ symmetric and positive definite.
    """
    train_size, dimension = _train_size(batches, batch_size), 3
    j = torch.arange(train_size, dtype=DOUBLE)
    row = torch.arange(dimension, dtype=DOUBLE)
    roots = torch.sin(0.83 * (j[:, None, None] + 1) * (row[:, None] + 1.3) + 2.3 * row * (j[:, None, None] + 0.7) + 0.4)
    matrices = roots @ roots.transpose(1, 2) / 2 + 0.3 * torch.eye(dimension, dtype=DOUBLE)
    centres = 1.5 * torch.cos(1.1 * j[:, None] * (row + 1) + 1.9 * row + 0.2)
    inputs = torch.cat([matrices.reshape(train_size, -1), centres], dim=1)
    return _problem(
        _Quadratic(dimension), _mean_output, (inputs, torch.zeros(train_size, dtype=DOUBLE)), batch_size, weight_decay
    )


def logistic(*, batches: int = 4, batch_size: int = 2, weight_decay: float = 0.0) -> Problem:
    """Logistic regression on two features and a bias, labels ±1 that no line separates.

    Cⱼ(ω) = log(1 + exp(−yⱼ (ω·xⱼ)))
    """
    train_size = _train_size(batches, batch_size)
    j = torch.arange(train_size, dtype=DOUBLE)
    inputs = 1.5 * torch.stack([torch.sin(2.1 * j + 0.3), torch.cos(1.3 * j)], dim=1)
    targets = torch.where(torch.sin(2.9 * j + 0.5) > 0, 1.0, -1.0).to(DOUBLE)
    model = nn.Linear(2, 1).to(DOUBLE)
    _fill(model, 0.8)
    return _problem(model, _logistic_loss, (inputs, targets.unsqueeze(1)), batch_size, weight_decay)


def tanh_mlp(*, batches: int = 4, batch_size: int = 2, hidden: int = 3, weight_decay: float = 0.0) -> Problem:
    """Regression with one hidden layer of tanh: 13 parameters by default.

    Cⱼ(ω) = ½ (aᵀ tanh(W xⱼ + b) + c − yⱼ)²
    """
    train_size = _train_size(batches, batch_size)
    j = torch.arange(train_size, dtype=DOUBLE)
    inputs = 1.2 * torch.stack([torch.sin(1.9 * j + 0.2), torch.cos(2.7 * j + 0.1)], dim=1)
    targets = torch.sin(2.3 * j + 1.0).unsqueeze(1)
    model = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 1)).to(DOUBLE)
    _fill(model, 0.9)
    return _problem(model, _half_squared_error, (inputs, targets), batch_size, weight_decay)


def valley(*, noise: float = 1.0) -> Problem:
    """Two parameters whose product fits noisy labels: a curved valley of minima, for the eye.

    Cⱼ(a, b) = ½ (a b − yⱼ)²,   y = 1 ± noise, one example per minibatch.
    Gradient flow stops where it meets the valley a b = 1; SGD goes on along it, to where a = b.
    """
    targets = torch.tensor([[1.0 + noise], [1.0 - noise]], dtype=DOUBLE)
    model = _Product()
    return _problem(model, _half_squared_error, (torch.ones(2, 1, dtype=DOUBLE), targets), 1, 0.0)


PROBLEMS: dict[str, Callable[[], Problem]] = {"quadratic": quadratic, "logistic": logistic, "tanh_mlp": tanh_mlp}


class _Quadratic(nn.Module):
    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension = dimension
        self.w = nn.Parameter(torch.linspace(0.7, -0.6, dimension, dtype=DOUBLE))

    def forward(self, inputs: Tensor) -> Tensor:
        cut = self.dimension**2
        matrices = inputs[:, :cut].reshape(-1, self.dimension, self.dimension)
        away = self.w - inputs[:, cut:]
        return 0.5 * torch.einsum("na,nab,nb->n", away, matrices, away)


class _Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.tensor([2.2, 0.1], dtype=DOUBLE))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factors[0] * self.factors[1]


def _mean_output(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).mean()


def _logistic_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.log1p(torch.exp(-targets * outputs)).mean()


def _half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square().mean()


def _fill(model: nn.Module, scale: float) -> None:
    """Parameters from a sine: generic (no symmetry between units), and the same everywhere."""
    position = 0
    with torch.no_grad():
        for parameter in model.parameters():
            angles = torch.arange(position, position + parameter.numel(), dtype=DOUBLE)
            parameter.copy_(scale * torch.sin(1.618 * angles + 0.6).reshape(parameter.shape))
            position += parameter.numel()


def _train_size(batches: int, batch_size: int) -> int:
    if batches < 1 or batch_size < 1:
        raise InputError(f"batches={batches} and batch_size={batch_size}; expected both to be at least 1.")
    return batches * batch_size


def _problem(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    dataset: tuple[Tensor, Tensor],
    batch_size: int,
    weight_decay: float,
) -> Problem:
    return Problem(model, loss_fn, dataset, batch_size=batch_size, weight_decay=weight_decay, dtype=DOUBLE)
