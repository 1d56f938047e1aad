"""Complex parameters: |∂Ĉ/∂ω|² over real and imaginary parts, as if each were a parameter of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import labels, numbers
from tacit import FactoredSGD, GradientPenalty

X, Y = numbers(8, 6, seed=1), labels(8, 3, 2)
STRENGTH, SIZE = 0.7, 2


class Spectral(nn.Module):
    """A filter in the frequency domain, a complex layer and a complex scale; with `pairs` all as real parameters."""

    def __init__(self, *, pairs: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.pairs, self.leave = pairs, nn.Linear(6, 3).double()
        with torch.no_grad():
            self.leave.weight.copy_(torch.randn(3, 6, generator=generator, dtype=torch.float64))
            self.leave.bias.zero_()
        for name, shape in {"filter": (4,), "weight": (4, 4), "bias": (4,), "scale": ()}.items():
            value = torch.randn(shape, generator=generator, dtype=torch.complex128)
            setattr(self, name, nn.Parameter(torch.view_as_real(value).clone() if pairs else value))

    def complex(self, name: str) -> Tensor:
        parameter = getattr(self, name)
        return torch.view_as_complex(parameter) if self.pairs else parameter

    def forward(self, inputs: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(inputs) * self.complex("filter")
        spectrum = F.linear(spectrum, self.complex("weight"), self.complex("bias")) * self.complex("scale")
        return self.leave(torch.tanh(torch.fft.irfft(spectrum, n=6)))


def pairs(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def naive(model: nn.Module, exclude: tuple[str, ...], size: int) -> tuple[dict[str, Tensor], float]:
    """Double backward with real parameters only, micro-batch by micro-batch: gradients, and the mean ‖∇Ĉ‖²."""
    inside = [parameter for name, parameter in model.named_parameters() if name not in exclude]
    total = 0.0
    for x, y in zip(X.split(size), Y.split(size), strict=True):
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, inside, create_graph=True)
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        ((loss + STRENGTH / 4 * norm) * size / len(X)).backward()
        total += float(norm.detach()) * size / len(X)
    return {name: parameter.grad for name, parameter in model.named_parameters()}, total


@pytest.mark.parametrize("exclude", [(), ("filter",)], ids=["all", "without the filter"])
@pytest.mark.parametrize("size", [None, SIZE])
@pytest.mark.parametrize("method", ["gram", "double_backward", "finite_difference", "loss"])
def test_the_gradient_is_that_of_real_and_imaginary_parts(
    method: str, size: int | None, exclude: tuple[str, ...]
) -> None:
    truth, norm = naive(Spectral(pairs=True), exclude, size or len(X))
    model = Spectral(pairs=False)
    penalty = GradientPenalty(
        model, STRENGTH, method="gram" if method == "loss" else method, micro_batch_size=size, exclude=exclude
    )
    for _ in range(2):  # the second step of micro-batches is not compared with a loop
        model.zero_grad()
        closure: Callable[..., Tensor] = lambda x, y: F.cross_entropy(model(x), y)  # noqa: E731
        if method == "loss":
            penalty.loss(closure, X, Y).backward()
        else:
            penalty.backward(closure, X, Y)
        # A forward difference in float64 has errors of about 1e-8 times the third derivatives.
        close = {"rtol": 1e-5, "atol": 1e-6} if method == "finite_difference" else {"rtol": 1e-10, "atol": 1e-12}
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(pairs(parameter.grad), truth[name], **close)
        assert float(penalty.last.gradient_squared_norm) == pytest.approx(norm, rel=1e-9)


@pytest.mark.parametrize("method", ["gram", "double_backward", "finite_difference"])
def test_the_record_has_the_numbers_of_real_and_imaginary_parts(method: str) -> None:
    records = []
    for real in (True, False):
        model = Spectral(pairs=real)
        penalty = GradientPenalty(model, STRENGTH, method=method)
        penalty.backward(lambda model=model: F.cross_entropy(model(X), Y))
        records.append(penalty.last)
    for name in ("gradient_squared_norm", "curvature", "penalty_gradient_norm", "batch_sharpness"):
        values = [getattr(record, name) for record in records]
        torch.testing.assert_close(*values, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("size", [None, SIZE])
def test_the_factored_step_is_that_of_real_and_imaginary_parts(size: int | None, momentum: float) -> None:
    after = []
    for real in (True, False):
        model = Spectral(pairs=real)
        optimizer = FactoredSGD(
            model, lr=0.01, strength=STRENGTH, momentum=momentum, weight_decay=0.1, micro_batch_size=size
        )
        for _ in range(3):
            optimizer.step(lambda x, y, model=model: F.cross_entropy(model(x), y), X, Y)
        after.append([pairs(parameter.detach()) for parameter in model.parameters()])
    for left, right in zip(*after, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["double_backward", "finite_difference"])
def test_two_views_have_the_inner_product_of_real_and_imaginary_parts(method: str) -> None:
    found = []
    for real in (True, False):
        model = Spectral(pairs=real)
        penalty = GradientPenalty(model, STRENGTH, method=method)
        views = [lambda x=x, model=model: F.cross_entropy(model(x), Y) for x in (X, X.flip(1))]
        penalty.backward(views[0], second_view=views[1])
        found.append([pairs(parameter.grad) for parameter in model.parameters()])
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)
