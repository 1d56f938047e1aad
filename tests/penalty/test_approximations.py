"""Approximate methods vouch for themselves: they hold kinks, see their own errors, and give way to an exact method."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cases import labels, numbers, spread
from tacit import GradientPenalty, InputError
from tacit.penalty.methods.kinks import Kinks

STRENGTH = 0.3


def penalty_part(model: nn.Module, loss: Callable[[nn.Module], Tensor], **options: Any) -> tuple[Tensor, Any]:
    """The penalty's part of the gradient, (λ/2) H g, as one vector, and the record of the step."""
    model = copy.deepcopy(model)
    plain = torch.autograd.grad(loss(model), list(model.parameters()), allow_unused=True)
    model.zero_grad()
    penalty = GradientPenalty(model, STRENGTH, **options)
    torch.manual_seed(0)
    penalty.backward(lambda: loss(model))
    parts = [p.grad - g for p, g in zip(model.parameters(), plain, strict=True) if p.grad is not None and g is not None]
    return torch.cat([part.reshape(-1) for part in parts]), penalty.last


def error_of(model: nn.Module, loss: Callable[[nn.Module], Tensor], **options: Any) -> tuple[float, Any]:
    truth, _ = penalty_part(copy.deepcopy(model).double(), loss, method="double_backward")
    found, record = penalty_part(model, loss, **options)
    return float((found.double() - truth).norm() / truth.norm()), record


class ZeroInitialised(nn.Module):
    """A residual block as torchvision starts it: the branch ends in zeros, so half of the ReLUs are at exactly 0."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.branch = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 3)
        self.activation = activation
        nn.init.zeros_(self.branch[1].weight)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.stem(images))
        return self.head(self.activation(x + self.branch(x)).mean((2, 3)))


def image_loss(model: nn.Module) -> Tensor:
    dtype = next(model.parameters()).dtype
    return F.cross_entropy(model(numbers(6, 2, 5, 5, seed=1).to(dtype)), labels(6, 3, 2))


@pytest.mark.parametrize("central", [False, True])
def test_differences_are_right_where_units_sit_on_their_kinks(central: bool) -> None:
    torch.manual_seed(1)
    error, record = error_of(
        ZeroInitialised().double(), image_loss, method="finite_difference", central=central, when_uncertain="raise"
    )
    assert record.method == "finite_difference"
    # Forward differences in float64 have about 8 digits, of which conditioning takes some.
    assert error < 1e-5


def test_differences_in_float32_are_not_decided_by_units_that_switch() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))
    inputs, targets = numbers(64, 20, seed=1), labels(64, 3, 2)

    def loss(m: nn.Module) -> Tensor:
        return F.cross_entropy(m(inputs.to(next(m.parameters()).dtype)), targets)

    error, record = error_of(model, loss, method="finite_difference", when_uncertain="raise")
    assert error < max(record.error, 0.01)


KINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "relu in place": lambda x: F.relu(x, inplace=True),
    "leaky relu": F.leaky_relu,
    "prelu": lambda x: F.prelu(x, torch.full((4,), 0.2, dtype=x.dtype)),
    "relu6": F.relu6,
    "hardtanh in place": lambda x: F.hardtanh(x, -1.0, 0.0, inplace=True),
    "hardswish": lambda x: F.hardswish(x - 3),
    "hardswish in place": lambda x: F.hardswish(x - 3, inplace=True),
    "hardsigmoid": lambda x: F.hardsigmoid(x - 3),
    "threshold": lambda x: F.threshold(x, 0.0, 0.3),
    "abs": abs,
    "clamp": lambda x: x.clamp(min=0.0),
    "clamp in place": lambda x: (x + 0).clamp_(0.0, 2.0),
    "maximum": lambda x: torch.maximum(x, 2 * x),
    "where": lambda x: torch.where(x > 0, x, 0.3 * x),
    "mask": lambda x: x * (x > 0),
    "max pooling": lambda x: F.max_pool2d(F.relu(x), 2),
    "adaptive max pooling": lambda x: F.adaptive_max_pool2d(F.relu(x), 2),
    "max pooling with indices": lambda x: F.max_pool2d(F.relu(x), 2, return_indices=True)[0],
}


@pytest.mark.parametrize("name", KINKS)
def test_every_kind_of_kink_is_held(name: str) -> None:
    torch.manual_seed(1)
    model = ZeroInitialised(KINKS[name]).double()
    error, record = error_of(model, image_loss, method="finite_difference", when_uncertain="raise")
    assert record.method == "finite_difference"
    assert error < 1e-5


class Rectify(torch.autograd.Function):
    """A ReLU that no mode of torch functions can see into, with a second derivative unless `once` is put around it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x > 0)
        return x.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0]


class RectifyOnce(Rectify):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0]


HIDDEN = {
    "a custom function": Rectify.apply,
    "a checkpoint": lambda x: checkpoint(F.relu, x, use_reentrant=False),
}


@pytest.mark.parametrize("central", [False, True])
@pytest.mark.parametrize("name", HIDDEN)
def test_kinks_that_cannot_be_held_hand_the_step_to_an_exact_method(
    name: str, central: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(1)
    caplog.set_level(logging.WARNING, "tacit")
    model = ZeroInitialised(HIDDEN[name]).double()
    error, record = error_of(model, image_loss, method="finite_difference", central=central)
    assert (record.method, record.error) == ("double_backward", None)
    assert error < 1e-12
    assert "an exact method takes its place until the next check" in caplog.text


@pytest.mark.parametrize("central", [False, True])
def test_the_stated_error_has_the_size_of_the_true_one_at_a_kink(central: bool) -> None:
    torch.manual_seed(1)
    options = {"method": "finite_difference", "when_uncertain": "warn", "central": central}
    with pytest.warns(UserWarning, match="estimated relative error"):
        error, record = error_of(ZeroInitialised(Rectify.apply).double(), image_loss, **options)
    assert error > 10
    assert record.error > error / 2


def test_raise_raises_and_leaves_nothing_behind() -> None:
    torch.manual_seed(1)
    model = ZeroInitialised(Rectify.apply).double()
    penalty = GradientPenalty(model, STRENGTH, method="finite_difference", when_uncertain="raise")
    with pytest.raises(InputError, match=r"estimated relative error of \d+% at step 0; expected at most 10%"):
        penalty.backward(lambda: image_loss(model))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_without_any_exact_method_the_refusal_names_both_reasons() -> None:
    torch.manual_seed(1)
    model = ZeroInitialised(RectifyOnce.apply).double()
    penalty = GradientPenalty(model, STRENGTH, method="finite_difference")
    with pytest.raises(
        InputError, match=r"(?s)no exact method can take its place.*once_differentiable.*'warn'"
    ) as found:
        penalty.backward(lambda: image_loss(model))
    assert "method='finite_difference'." not in str(found.value).split("place:")[1]  # it has just refused
    assert all(parameter.grad is None for parameter in model.parameters())


class Switching(nn.Module):
    """Uncertain until `smooth` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.smooth = ZeroInitialised(self.activate).double(), False

    def activate(self, x: Tensor) -> Tensor:
        return torch.tanh(x) if self.smooth else Rectify.apply(x)

    def forward(self, images: Tensor) -> Tensor:
        return self.block(images)


def test_the_exact_method_stays_until_the_next_check() -> None:
    torch.manual_seed(1)
    model = Switching()
    penalty = GradientPenalty(model, STRENGTH, method="finite_difference", check_every=3)
    methods = []
    for step in range(5):
        model.smooth = step > 0
        penalty.backward(lambda: image_loss(model))
        methods.append(penalty.last.method)
    assert methods == ["double_backward"] * 3 + ["finite_difference"] * 2


def test_the_first_penalised_step_is_checked_whichever_it_is() -> None:
    torch.manual_seed(1)
    model = ZeroInitialised(Rectify.apply).double()
    penalty = GradientPenalty(model, lambda step: STRENGTH if step >= 2 else 0.0, method="finite_difference")
    methods = []
    for _ in range(3):
        penalty.backward(lambda: image_loss(model))
        methods.append(penalty.last.method)
    assert methods[2] == "double_backward"


def test_the_step_of_the_exact_method_sees_the_same_masks_and_counts_once() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(ZeroInitialised(Rectify.apply), nn.Dropout(0.5)).double()
    twin = copy.deepcopy(model)
    torch.manual_seed(3)
    GradientPenalty(model, STRENGTH, method="finite_difference").backward(lambda: image_loss(model))
    after = torch.get_rng_state()
    torch.manual_seed(3)
    GradientPenalty(twin, STRENGTH, method="double_backward").backward(lambda: image_loss(twin))
    assert torch.equal(after, torch.get_rng_state())
    for found, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    for found, expected in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(found, expected)


def test_points_that_round_to_the_same_numbers_are_not_taken_for_certain() -> None:
    """In bfloat16 the parameters of both points may be equal: a difference of zero says nothing then."""
    model = spread(nn.Linear(3, 3))
    inputs, targets = numbers(1, 3, seed=1).float(), labels(1, 3, 2)

    def loss(m: nn.Module) -> Tensor:
        if next(m.parameters()).dtype == torch.float64:
            return F.cross_entropy(m(inputs.double()), targets)
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(m(inputs), targets)

    error, record = error_of(model, loss, method="finite_difference")
    # Either it is certain and right, or bfloat16's own rounding of an exact method remains.
    assert error < 0.1, (record.method, record.error)


def test_a_leaf_made_anew_in_every_pass_is_no_false_alarm() -> None:
    """What transformers' enable_input_require_grads does: the output of a frozen embedding becomes a leaf."""
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    spread(model)
    model[0].weight.requires_grad_(False)
    model[0].register_forward_hook(lambda module, inputs, output: output.requires_grad_(True))
    indices, targets = torch.randint(0, 7, (8,), generator=torch.Generator().manual_seed(1)), labels(8, 3, 2)

    def closure() -> Tensor:
        return F.cross_entropy(model(indices), targets)

    penalty = GradientPenalty(model, STRENGTH, method="finite_difference", when_uncertain="raise")
    penalty.backward(closure)
    assert penalty.last.error < 1e-4
    found = [parameter.grad.clone() for parameter in model[1:].parameters()]
    model.zero_grad()
    GradientPenalty(model, STRENGTH, method="double_backward").backward(closure)
    for mine, parameter in zip(found, model[1:].parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    "function",
    [F.relu, F.leaky_relu, F.hardtanh, F.hardswish, lambda x: F.max_pool2d(x, 2), lambda x: torch.maximum(x, -x)],
    ids=["relu", "leaky relu", "hardtanh", "hardswish", "max pool", "maximum"],
)
def test_held_kinks_leave_images_in_their_memory_format(function: Callable[[Tensor], Tensor]) -> None:
    """Dropout behind them draws its mask in the order of memory: another order would be another mask."""
    images = numbers(2, 3, 4, 4, seed=1).contiguous(memory_format=torch.channels_last).requires_grad_()
    kinks = Kinks()
    with kinks.record():
        first = function(images)
    with kinks.replay():
        second = function(images)
    assert first.stride() == second.stride() == function(images).stride()
    torch.testing.assert_close(first, function(images))
