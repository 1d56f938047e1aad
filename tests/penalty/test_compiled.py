"""Models, modules and closures that went through `torch.compile`: exact methods run them as they were written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import labels, numbers
from oracles import penalised_gradient
from tacit import FactoredSGD, GradientPenalty, InputError
from tacit.penalty import METHODS

EXACT = [name for name, method in METHODS.items() if method.exact]
X, Y = numbers(6, 8, seed=1), labels(6, 3, 2)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def plain_loss(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(X), Y)


def compiled_model(model: nn.Module) -> Callable[[], Tensor]:
    compiled = torch.compile(model, backend="aot_eager")
    return lambda: plain_loss(compiled)


def compiled_layer(model: nn.Module) -> Callable[[], Tensor]:
    model[0].compile(backend="aot_eager")
    return lambda: plain_loss(model)


def compiled_closure(model: nn.Module) -> Callable[[], Tensor]:
    return torch.compile(lambda: plain_loss(model), backend="aot_eager")


def compiled_and_used_before(model: nn.Module) -> Callable[[], Tensor]:
    closure = compiled_model(model)
    closure().backward()
    model.zero_grad()
    return closure


WAYS = [compiled_model, compiled_layer, compiled_closure, compiled_and_used_before]


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("compiled", WAYS, ids=lambda way: way.__name__)
def test_exact_methods_are_exact(compiled: Callable[[nn.Module], Callable[[], Tensor]], method: str) -> None:
    model = net()
    truth = penalised_gradient(net(), plain_loss, 0.7)
    GradientPenalty(model, 0.7, method=method).backward(compiled(model))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, truth[name], rtol=1e-11, atol=1e-13)


def test_a_penalty_of_the_compiled_model_itself() -> None:
    model = net()
    truth = penalised_gradient(net(), plain_loss, 0.7)
    compiled = torch.compile(model, backend="aot_eager")
    GradientPenalty(compiled, 0.7, method="gram").backward(lambda: plain_loss(compiled))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, truth[name], rtol=1e-11, atol=1e-13)


def test_the_factored_step_is_exact() -> None:
    model = net()
    truth = penalised_gradient(net(), plain_loss, 0.7)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    FactoredSGD(model, lr=1.0, strength=0.7).step(compiled_model(model))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(before[name] - parameter.detach(), truth[name], rtol=1e-11, atol=1e-13)


def test_steps_without_a_penalty_stay_compiled() -> None:
    model, seen = net(), []
    compiled = torch.compile(model, backend="aot_eager")

    def closure() -> Tensor:
        outputs = compiled(X)
        seen.append(type(outputs.grad_fn).__name__)
        return F.cross_entropy(outputs, Y)

    penalty = GradientPenalty(model, 0.7, method="double_backward", every=2)
    for _ in range(2):
        penalty.backward(closure)
    assert seen == ["AddmmBackward0", "CompiledFunctionBackward"]


@pytest.mark.parametrize("method", ["gram", "double_backward"])
def test_a_compiled_pass_before_the_closure_is_refused_by_name(method: str) -> None:
    model = net()
    loss = compiled_model(model)()
    with pytest.raises(InputError, match=r"torch\.compile"):
        GradientPenalty(model, 0.7, method=method).backward(lambda: loss)


def said(caplog: pytest.LogCaptureFixture) -> int:
    return sum("uncompiled in penalised steps" in record.message for record in caplog.records)


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("method", ["gram", "double_backward", "FactoredSGD"])
@pytest.mark.parametrize("compiled", WAYS, ids=lambda way: way.__name__)
def test_it_is_said_once_that_compiled_code_runs_uncompiled(
    compiled: Callable[[nn.Module], Callable[[], Tensor]],
    method: str,
    size: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = net()
    whole = compiled(model)
    closure = whole if size is None else lambda x, y: whole() + 0 * x.sum()
    batch = () if size is None else (X, Y)
    caplog.set_level(logging.WARNING, logger="tacit")
    if method == "FactoredSGD":
        optimizer = FactoredSGD(model, lr=0.1, strength=0.7, micro_batch_size=size)
        for _ in range(2):
            optimizer.step(closure, *batch)
    else:
        penalty = GradientPenalty(model, 0.7, method=method, micro_batch_size=size)
        for _ in range(2):
            penalty.backward(closure, *batch)
    assert said(caplog) == 1


@pytest.mark.parametrize("case", ["another model is compiled", "finite_difference", "without a penalty"])
def test_it_is_not_said_where_nothing_compiled_runs_uncompiled(case: str, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    closure = compiled_model(net() if case == "another model is compiled" else model)
    caplog.set_level(logging.WARNING, logger="tacit")
    if case == "another model is compiled":
        closure()
        closure = lambda: plain_loss(model)  # noqa: E731
    method = "finite_difference" if case == "finite_difference" else "gram"
    GradientPenalty(model, 0.0 if case == "without a penalty" else 0.7, method=method).backward(closure)
    assert said(caplog) == 0


def test_a_compiled_model_stays_compiled_in_finite_differences_and_is_right() -> None:
    model, seen = net(), []
    truth = penalised_gradient(net(), plain_loss, 0.7)
    compiled = torch.compile(model, backend="aot_eager")

    def closure() -> Tensor:
        outputs = compiled(X)
        seen.append(type(outputs.grad_fn).__name__)
        return F.cross_entropy(outputs, Y)

    GradientPenalty(model, 0.7, method="finite_difference").backward(closure)
    assert set(seen) == {"CompiledFunctionBackward"}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, truth[name], rtol=1e-6, atol=1e-8)
