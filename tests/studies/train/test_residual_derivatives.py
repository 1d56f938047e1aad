"""Derivatives of a Wide-ResNet written out, against autograd in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._util.random_generators import generator
from tacit.studies.data.datasets import FACTS
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train import module_program, residual_derivatives
from tacit.studies.train.models import WideResNet, wide_resnet
from tacit.studies.train.module_program import Single
from tacit.studies.train.residual_derivatives import Derivatives

RUN = RunSpec(
    dataset="cifar10", model="wide_resnet", depth=10, width=1, image_size=8, train_size=16, batch_size=4, updates=4,
    learning_rate=0.02, strength=0.1, evaluations=1,
)  # fmt: skip
MODELS = {"WRN-10-1": (10, 1), "a projection in every group": (10, 2), "blocks without a projection": (16, 1)}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


def model_and_minibatch(depth: int, width: int, layout: torch.memory_format, *, size: int = 9) -> tuple[
    WideResNet, Tensor, Tensor
]:  # fmt: skip
    """An odd number of pixels, so that strides leave a rest; no SkipInit scalar at 0, which would hide its branch."""
    draws = generator(3, "init")
    model = wide_resnet(depth, width, generator=draws).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.normal_(0.0, 0.5, generator=draws)
    model.to(memory_format=layout)  # type: ignore[call-overload]
    images = torch.randn(3, 3, size, size, generator=draws, dtype=torch.float64).contiguous(memory_format=layout)
    return model, images, torch.randint(10, (3,), generator=draws)


def close(found: dict[Tensor, Tensor], wanted: tuple[Tensor, ...], model: nn.Module) -> None:
    for (name, parameter), expected in zip(model.named_parameters(), wanted, strict=True):
        # Rounding of float64 in sums of some thousand products; a wrong term shows at 1e-1.
        torch.testing.assert_close(
            found[parameter], expected, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_that_of_autograd(name: str, layout: str) -> None:
    model, images, labels = model_and_minibatch(*MODELS[name], LAYOUTS[layout])
    logits, found = Derivatives(model).gradient(images, labels)
    torch.testing.assert_close(logits, model(images).detach(), rtol=1e-10, atol=1e-12)
    close(found, torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters())), model)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_the_hessian_times_any_direction_is_that_of_double_backward(name: str, layout: str) -> None:
    model, images, labels = model_and_minibatch(*MODELS[name], LAYOUTS[layout])
    parameters, draws = list(model.parameters()), generator(0, "probe")
    along = [torch.randn(each.shape, generator=draws, dtype=torch.float64) for each in parameters]
    gradients = torch.autograd.grad(F.cross_entropy(model(images), labels), parameters, create_graph=True)
    slope = torch.stack([(gradient * each).sum() for gradient, each in zip(gradients, along, strict=True)]).sum()
    wanted = torch.autograd.grad(slope, parameters)
    derivatives = Derivatives(model)
    derivatives.gradient(images, labels)
    close(derivatives.hessian_product(dict(zip(parameters, along, strict=True))), wanted, model)


def test_a_second_minibatch_leaves_nothing_of_the_first_one() -> None:
    model, images, labels = model_and_minibatch(10, 1, torch.channels_last)
    used, fresh = Derivatives(model), Derivatives(model)
    along = {parameter: torch.ones_like(parameter) for parameter in model.parameters()}
    used.gradient(images.flip(0) * 2, labels)
    used.hessian_product(along)
    for derivatives in (used, fresh):
        derivatives.gradient(images, labels)
    one, other = used.hessian_product(along), fresh.hessian_product(along)
    assert all(torch.equal(one[parameter], other[parameter]) for parameter in model.parameters())


class Halved(WideResNet):
    """A user's own variant: the same layers, another forward pass."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images / 2)


def test_an_own_subclass_with_another_forward_pass_is_left_to_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(module_program, "is_own", lambda name: True)
    monkeypatch.setattr(module_program, "build", lambda run, facts: Halved(10, 1))
    program = Single((RUN,), FACTS["cifar10"], device=torch.device("cpu"), dtype=torch.float64)
    assert program.derivatives is None


def test_a_penalised_study_of_a_wide_resnet_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    product = Derivatives.hessian_product

    def spy(self: Derivatives, direction: residual_derivatives.Direction) -> residual_derivatives.Gradients:
        calls.append("hessian_product")
        return product(self, direction)

    monkeypatch.setattr(Derivatives, "hessian_product", spy)
    program = Single((RUN,), FACTS["cifar10"], device=torch.device("cpu"), dtype=torch.float64)
    program.update(torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 3]), rates=[0.02])
    assert calls == ["hessian_product"]
