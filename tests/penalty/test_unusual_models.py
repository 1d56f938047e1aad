"""Models and closures that a reviewer broke the penalty with: right now, or refused by name; never silently wrong."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cases import labels, numbers
from tacit import FactoredSGD, GradientPenalty, InputError
from tacit.penalty import METHODS

REVERSE = ["gram", "double_backward"]
X, Y = numbers(6, 8, seed=1), labels(6, 3, 2)


def net(width: int = 8) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 3)).double()


def truth(model: nn.Module, closure, strength: float) -> Tensor:
    """Double backward written out once more, on whatever the closure does."""
    parameters = list(model.parameters())
    loss = closure()
    gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    norm = sum(gradient.square().sum() for gradient in gradients if gradient is not None)
    found = torch.autograd.grad(loss + strength / 4 * norm, parameters, allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]
    return torch.cat([gradient.reshape(-1) for gradient in filled])


def flat(model: nn.Module) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in model.parameters()])


class Checkpointed(nn.Module):
    """Square layers, so that a recompute outside the capture would go unnoticed."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.block, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(lambda t: torch.tanh(self.block(t)), self.stem(x), use_reentrant=self.reentrant))


@pytest.mark.parametrize("method", REVERSE)
def test_checkpointed_blocks_are_exact(method: str) -> None:
    model = Checkpointed(reentrant=False).double()
    GradientPenalty(model, 0.3, method=method).backward(lambda: F.cross_entropy(model(X), Y))
    torch.testing.assert_close(flat(model), truth(model, lambda: F.cross_entropy(model(X), Y), 0.3))


def test_the_factored_step_is_exact_with_checkpointed_blocks() -> None:
    model = Checkpointed(reentrant=False).double()
    expected = truth(model, lambda: F.cross_entropy(model(X), Y), 0.3)
    before = torch.cat([parameter.detach().reshape(-1).clone() for parameter in model.parameters()])
    FactoredSGD(model, lr=1.0, strength=0.3).step(lambda: F.cross_entropy(model(X), Y))
    after = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    torch.testing.assert_close(before - after, expected)


@pytest.mark.parametrize("method", list(METHODS))
def test_reentrant_checkpointing_is_refused_by_name(method: str) -> None:
    model = Checkpointed(reentrant=True).double()
    with pytest.raises(InputError, match="re-entrant checkpointing"):
        GradientPenalty(model, 0.3, method=method).backward(lambda: F.cross_entropy(model(X), Y))


@pytest.mark.parametrize("method", REVERSE)
@pytest.mark.parametrize("width", [8, 40])
def test_a_closure_that_differentiates_is_exact(method: str, width: int) -> None:
    """A physics loss: the loss contains the model's derivative with respect to its inputs."""
    model = net(width)

    def closure() -> Tensor:
        points = X.clone().requires_grad_()
        values = model(points)
        slopes = torch.autograd.grad(values.sum(), points, create_graph=True)[0]
        return (slopes.sum(1) - values[:, 0]).square().mean()

    GradientPenalty(model, 0.3, method=method).backward(closure)
    torch.testing.assert_close(flat(model), truth(model, closure, 0.3))


@pytest.mark.parametrize("method", ["finite_difference"])
def test_two_pass_methods_see_moved_parameters_under_an_outer_autocast(method: str) -> None:
    gradients = []
    for strength in (1e-6, 30.0):
        model = net().float()
        with torch.autocast("cpu", torch.bfloat16):
            GradientPenalty(model, strength, method=method, check_every=0).backward(
                lambda model=model: F.cross_entropy(model(X.float()), Y)
            )
        gradients.append(flat(model))
    assert (gradients[0] - gradients[1]).norm() > 0.1 * gradients[0].norm()


class Counting(nn.Module):
    """A buffer that every forward pass changes and that the output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.inner(x) * self.count.clone()


@pytest.mark.parametrize("method", list(METHODS))
def test_a_second_pass_starts_from_the_buffers_of_the_first(method: str) -> None:
    model, twin = Counting(), Counting()
    expected = truth(twin, lambda: F.cross_entropy(twin(X), Y), 1e-4)
    GradientPenalty(model, 1e-4, method=method, central=True, check_every=0).backward(
        lambda: F.cross_entropy(model(X), Y)
    )
    assert float(model.count) == 1
    torch.testing.assert_close(flat(model), expected, rtol=1e-6, atol=1e-7)


def test_pythons_own_random_numbers_repeat_in_the_second_pass() -> None:
    model = net()
    random.seed(5)

    def closure() -> Tensor:
        return (1 + random.random()) * F.cross_entropy(model(X), Y)

    GradientPenalty(model, 0.3, method="finite_difference", central=True, check_every=0).backward(closure)
    after_one = random.getstate()
    random.seed(5)
    expected = truth(model, closure, 0.3)
    assert random.getstate() == after_one
    torch.testing.assert_close(flat(model), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", REVERSE)
def test_a_forward_pass_before_the_closure_and_a_teacher_inside_it(method: str) -> None:
    model = net()
    outputs = model(X)

    def closure() -> Tensor:
        with torch.no_grad():
            model(2 * X)
        return F.cross_entropy(outputs, Y)

    GradientPenalty(model, 0.3, method=method).backward(closure)
    torch.testing.assert_close(flat(model), truth(model, lambda: F.cross_entropy(model(X), Y), 0.3))


@pytest.mark.parametrize("method", list(METHODS))
def test_a_gradient_hook_acts_on_the_final_gradient_only(method: str) -> None:
    plain, hooked = net(), net()
    for parameter in hooked.parameters():
        parameter.register_hook(lambda gradient: 2 * gradient)
    norms = []
    for model in (plain, hooked):
        penalty = GradientPenalty(model, 1e-3, method=method)
        penalty.backward(lambda model=model: F.cross_entropy(model(X), Y))
        norms.append(float(penalty.last.gradient_squared_norm))
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)
    torch.testing.assert_close(flat(hooked), 2 * flat(plain))


def test_a_replaced_head_is_in_the_norm() -> None:
    model = net()
    penalty = GradientPenalty(model, 0.3)
    model[2] = nn.Linear(8, 3).double()
    penalty.backward(lambda: F.cross_entropy(model(X), Y))
    torch.testing.assert_close(flat(model), truth(model, lambda: F.cross_entropy(model(X), Y), 0.3))


@pytest.mark.parametrize("method", list(METHODS))
def test_a_closure_on_another_model_is_refused(method: str) -> None:
    other = net()
    with pytest.raises(InputError, match="none of the penalised parameters"):
        GradientPenalty(net(), 0.3, method=method).backward(lambda: F.cross_entropy(other(X), Y))


@pytest.mark.parametrize("method", ["gram", "double_backward", "finite_difference"])
def test_a_closure_that_calls_backward_itself_is_told_so(method: str) -> None:
    model = net()

    def closure() -> Tensor:
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    with pytest.raises(InputError, match="does not call backward"):
        GradientPenalty(model, 0.3, method=method).backward(closure)


def test_a_plan_leaves_buffers_and_generators_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    state, buffers = torch.get_rng_state(), [buffer.clone() for buffer in model.buffers()]
    GradientPenalty(model, 0.3).plan(lambda: F.cross_entropy(model(X), Y))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(ours, before) for ours, before in zip(model.buffers(), buffers, strict=True))


def test_numpy_numbers_are_numbers() -> None:
    import numpy as np

    assert GradientPenalty(net(), np.float32(0.25)).strength == 0.25
