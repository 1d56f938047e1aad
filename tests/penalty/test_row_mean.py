"""A loss that is no mean over rows, in micro-batches: noticed by its gradients, and right in the plain part."""

from __future__ import annotations

import copy
import logging
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import numbers, spread
from tacit import FactoredSGD, GradientPenalty, InputError
from tacit.penalty.methods.row_mean import RowMean

STRENGTH = 0.7
Loss = Callable[[Tensor, Tensor], Tensor]

WEIGHTS = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    features = F.normalize(outputs, dim=-1)
    return F.cross_entropy(features @ features.T, torch.arange(len(outputs)))


def reads_a_number(outputs: Tensor, targets: Tensor) -> Tensor:
    loss = F.cross_entropy(outputs, targets, reduction="sum")
    return loss * (2.0 if loss.item() > 1e9 else 1.0)


LOSSES: dict[str, tuple[Loss, str]] = {
    "sum": (lambda o, y: F.cross_entropy(o, y, reduction="sum"), "is the sum of its .* micro-batches' gradients"),
    "class weights": (lambda o, y: F.cross_entropy(o, y, weight=WEIGHTS), "differs .*class weights"),
    "ignore_index": (lambda o, y: F.cross_entropy(o, y, ignore_index=1), "differs .*ignore_index"),
    "contrastive": (contrastive, "differs .*contrastive ones, .* differ rightly"),
    "batch norm": (
        lambda o, y: F.cross_entropy(F.batch_norm(o, None, None, training=True), y),
        "batch norm .* rightly",
    ),
    "a sum, one after another": (reads_a_number, "is the sum"),
}
METHODS = ["gram", "double_backward", "finite_difference", "FactoredSGD"]


def net(*, head: bool = True) -> nn.Module:
    model = spread(nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3))).double()
    if not head:
        nn.init.zeros_(model[2].weight)
        nn.init.zeros_(model[2].bias)
    return model


def data(rows: int = 12) -> tuple[Tensor, Tensor]:
    """Some of three rows are of class 1, which `ignore_index` leaves out, and never all of them."""
    return numbers(rows, 5, seed=1), torch.tensor([0, 1, 2, 2, 1, 1, 0, 2, 0, 1, 1, 2, 0, 2]).repeat(5)[:rows]


def reference(model: nn.Module, loss_fn: Loss, x: Tensor, y: Tensor, size: int) -> tuple[list[Tensor], Tensor]:
    """∇(Ĉ + Σₖ sₖ (λ/4)‖∇Ĉₖ‖²) with the whole batch's Ĉ and the shares of rows sₖ, by plain autograd; and Ĉ."""
    parameters = list(model.parameters())
    loss = loss_fn(model(x), y)
    objective = loss
    for a, b in zip(x.split(size), y.split(size), strict=True):
        gradients = torch.autograd.grad(loss_fn(model(a), b), parameters, create_graph=True)
        norm = sum(gradient.square().sum() for gradient in gradients)
        objective = objective + len(a) / len(x) * STRENGTH / 4 * norm
    return list(torch.autograd.grad(objective, parameters)), loss.detach()


def gradients_of(model: nn.Module, method: str, step: Callable[[], Tensor]) -> tuple[list[Tensor], Tensor]:
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model.zero_grad()
    loss = step()
    if method == "FactoredSGD":  # the rate is 1
        return [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)], loss
    return [parameter.grad for parameter in model.parameters()], loss


def stepper(model: nn.Module, method: str, **settings: Any) -> Callable[..., Tensor]:
    if method == "FactoredSGD":
        return FactoredSGD(model, lr=1.0, strength=STRENGTH, micro_batch_size=3).step
    return GradientPenalty(model, STRENGTH, method=method, micro_batch_size=3, **settings).backward


@pytest.mark.parametrize("rows", [12, 14])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LOSSES)
def test_the_plain_part_is_that_of_the_whole_batch(
    name: str, method: str, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    loss_fn, looks = LOSSES[name]
    model, (x, y) = net(), data(rows)
    step = stepper(model, method)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            expected, plain = reference(model, loss_fn, x, y, 3)
            found, loss = gradients_of(model, method, lambda: step(lambda x, y: loss_fn(model(x), y), x, y))
            assert float(loss) == pytest.approx(float(plain), rel=1e-12)
            size = max(float(truth.abs().max()) for truth in expected)
            near = 1e-5 if method == "finite_difference" else 1e-10
            for ours, truth in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, truth, rtol=near, atol=near * size)
    said = [record.getMessage() for record in caplog.records if "the gradient of a batch's loss" in record.getMessage()]
    assert len(said) == 1
    assert re.search(looks, said[0])


RIGHT: dict[str, Loss] = {
    "cross-entropy": lambda o, y: F.cross_entropy(o, y),
    "mean square": lambda o, y: (o - F.one_hot(y, 3)).square().mean(),
    "a sum over the count": lambda o, y: F.cross_entropy(o, y, reduction="sum") / len(y),
    "smoothed": lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_a_mean_over_rows_is_not_blamed(
    name: str, training: bool, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    """Batch norm and dropout compare rows, or draw, in training mode only; a bias before a norm has rounding alone."""
    layers = [nn.Linear(5, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.5), nn.Linear(12, 8), nn.LayerNorm(8)]
    model = nn.Sequential(*layers, nn.Linear(8, 3)).to(dtype).train(training)
    x, y = data(64)
    penalty = GradientPenalty(model, STRENGTH, method="double_backward", micro_batch_size=12, check_every=1)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            penalty.backward(lambda x, y: RIGHT[name](model(x).double(), y), x.to(dtype), y)
    assert not caplog.records
    assert penalty._runner.micro_batches.row_mean.checked_at == 2


@pytest.mark.parametrize("name", ["class weights", "ignore_index", "sum"])
def test_a_head_of_zeros_does_not_hide_it(name: str) -> None:
    loss_fn, _ = LOSSES[name]
    model, (x, y) = net(head=False), data()
    parts = torch.stack([loss_fn(model(a), b) for a, b in zip(x.split(3), y.split(3), strict=True)])
    if name != "sum":
        torch.testing.assert_close(parts.mean(), loss_fn(model(x), y), rtol=1e-14, atol=0)  # losses say nothing
    penalty = GradientPenalty(model, STRENGTH, micro_batch_size=3)
    penalty.backward(lambda x, y: loss_fn(model(x), y), x, y)
    assert not penalty._runner.micro_batches.row_mean.holds


def test_a_difference_in_one_small_parameter_is_seen() -> None:
    """A contrastive term on one bare parameter, beside a mean over rows a million times as large."""
    model, (x, y) = net(), data()
    model.temperature = nn.Parameter(torch.ones((), dtype=torch.float64))
    penalty = GradientPenalty(model, STRENGTH, method="double_backward", micro_batch_size=3)

    def closure(x: Tensor, y: Tensor) -> Tensor:
        similar = torch.softmax(model.temperature * (x @ x.T), dim=-1)
        return 1e3 * F.cross_entropy(model(x), y) + 1e-6 * similar.diagonal().mean()

    penalty.backward(closure, x, y)
    assert not penalty._runner.micro_batches.row_mean.holds


def test_a_loss_that_is_a_mean_at_first_is_noticed_at_a_later_check(caplog: pytest.LogCaptureFixture) -> None:
    model, (x, y) = net(), data()
    later = torch.where(torch.arange(12) % 5 == 0, -100, y)
    penalty = GradientPenalty(model, STRENGTH, micro_batch_size=3, check_every=2)
    with caplog.at_level(logging.WARNING):
        for number, targets in enumerate([y, later, later]):
            penalty.backward(lambda x, y: F.cross_entropy(model(x), y), x[:, :], targets)
            assert penalty._runner.micro_batches.row_mean.holds == (number < 2)


def test_the_check_waits_for_a_penalised_step() -> None:
    model, (x, y) = net(), data()
    penalty = GradientPenalty(model, STRENGTH, micro_batch_size=3, every=3, check_every=4)
    seen = []
    for _ in range(7):
        penalty.backward(lambda x, y: F.cross_entropy(model(x), y), x, y)
        seen.append(penalty._runner.micro_batches.row_mean.checked_at)
    assert seen == [0, 0, 0, 0, 0, 0, 6]


class Draws:
    """A closure that draws although its model is in evaluation mode, from one of the generators that there are."""

    def __init__(self, model: nn.Module, source: str) -> None:
        self.model, self.source = model, source
        self.own = torch.Generator().manual_seed(5)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if self.source == "dropout":
            x = F.dropout(x, 0.5)
        elif self.source == "own":
            x = x + 0.1 * torch.randn(x.shape, generator=self.own, dtype=x.dtype)
        elif self.source == "python":
            x = x * random.random()
        else:
            x = x * float(np.random.rand())
        return F.cross_entropy(self.model(x), y)


def all_states(closure: Draws) -> list[Any]:
    numpy = [str(part) for part in np.random.get_state()]
    return [torch.get_rng_state().tolist(), closure.own.get_state().tolist(), random.getstate(), numpy]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("source", ["dropout", "own", "python", "numpy"])
def test_a_closure_that_draws_is_not_checked_and_its_generators_are_put_back(
    source: str, named: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (x, y) = net(), data()
    states, gradients = [], []
    for checked in (True, False):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        model.zero_grad()
        closure = Draws(model, source)
        if not checked:
            monkeypatch.setattr(RowMean, "due", lambda *_: False)
        penalty = GradientPenalty(
            model, STRENGTH, method="double_backward", micro_batch_size=3, generators=[closure.own] if named else ()
        )
        with caplog.at_level(logging.INFO):
            for _ in range(2):
                penalty.backward(closure, x, y)
        assert penalty._runner.micro_batches.row_mean.holds
        states.append(all_states(closure))
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert states[0] == states[1]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    said = [record for record in caplog.records if "not checked" in record.getMessage()]
    assert [record.levelname for record in said] == ["INFO"]
    assert "draws random numbers" in said[0].getMessage()


class Encoder(nn.Module):
    """Outside of the model; its own idea of training and a buffer that is made anew."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(5), nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(()))
        self.switched: list[bool] = []

    def train(self, mode: bool = True) -> Encoder:
        self.switched.append(mode)
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        return self.drop(self.norm(x))


def test_modes_buffers_and_gradients_are_as_without_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data()
    made = []
    for checked in (True, False):
        if not checked:
            monkeypatch.setattr(RowMean, "due", lambda *_: False)
        torch.manual_seed(1)
        layers = [nn.Linear(5, 12), nn.BatchNorm1d(12), nn.Dropout(0.5), nn.Linear(12, 3)]
        model, encoder = nn.Sequential(*layers).double(), Encoder().double()
        model[1].eval()  # a mode of its own
        called: list[str] = []
        model[0].weight.register_hook(lambda gradient, called=called: called.append("hook"))
        penalty = GradientPenalty(model, STRENGTH, method="double_backward", micro_batch_size=3)
        torch.manual_seed(2)
        penalty.backward(lambda x, y, model=model, encoder=encoder: F.cross_entropy(model(encoder(x)), y), x, y)
        assert [module.training for module in model] == [True, False, True, True]
        assert encoder.training
        assert encoder.norm.training
        assert encoder.switched == []
        assert called == ["hook"]
        parameters = [*model.parameters(), *encoder.parameters()]
        made.append([
            torch.get_rng_state(), *model.buffers(), *encoder.buffers(), *[parameter.grad for parameter in parameters]
        ])  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


@pytest.mark.parametrize("method", ["gram", "double_backward"])
def test_buffers_and_random_numbers_end_as_after_the_plain_pass(method: str) -> None:
    layers = [nn.Linear(5, 12), nn.BatchNorm1d(12), nn.Dropout(0.5), nn.Linear(12, 3)]
    model, (x, y) = nn.Sequential(*layers).double(), data()
    twin = copy.deepcopy(model)
    penalty = GradientPenalty(model, STRENGTH, method=method, micro_batch_size=3)
    torch.manual_seed(2)
    for _ in range(2):
        loss = penalty.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="sum"), x, y)
    after = torch.get_rng_state()
    torch.manual_seed(2)
    for _ in range(2):
        plain = F.cross_entropy(twin(x), y, reduction="sum")
    assert float(loss) == pytest.approx(float(plain.detach()), rel=1e-14)
    assert torch.equal(torch.get_rng_state(), after)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))


IGNORES: dict[str, Callable[[nn.Module, Tensor, Tensor], Callable[..., Tensor]]] = {
    "all arguments": lambda model, x, y: lambda *_: F.cross_entropy(model(x), y),
    "but their number": lambda model, x, y: lambda a, b: F.cross_entropy(model(x), y) * len(a) / a.shape[0],
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", IGNORES)
def test_a_closure_that_ignores_its_arguments_is_refused(name: str, method: str) -> None:
    model, (x, y) = net(), data()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=r"uses none of its arguments.*such as lambda inputs, targets"):
        stepper(model, method)(IGNORES[name](model, x, y), x, y)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


USES: dict[str, tuple[Callable[[nn.Module], Callable[..., Tensor]], Tensor]] = {
    "the same rows": (lambda m: lambda x, y: F.cross_entropy(m(x), y), torch.ones(12, 5, dtype=torch.float64)),
    "a gradient without data": (lambda m: lambda x, y: m(0 * x).sum(1).mean() + m[2].bias.sum(), data()[0]),
    "no gradient": (lambda m: lambda x, y: 0 * F.cross_entropy(m(x), y), data()[0]),
}


@pytest.mark.parametrize("name", USES)
def test_a_closure_with_the_same_gradient_everywhere_is_not_refused(name: str) -> None:
    make, x = USES[name]
    model = net()
    GradientPenalty(model, STRENGTH, micro_batch_size=3).backward(make(model), x, torch.zeros(12, dtype=torch.long))


class LossInTraining(nn.Module):
    """As detectors of torchvision: a loss in training mode, predictions in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor, y: Tensor) -> Any:
        outputs = self.inner(x)
        return {"loss": F.cross_entropy(outputs, y)} if self.training else [outputs]


def test_a_model_that_cannot_run_in_evaluation_mode_is_not_checked(caplog: pytest.LogCaptureFixture) -> None:
    model, (x, y) = LossInTraining(), data()
    expected, _ = reference(model.inner, F.cross_entropy, x, y, 3)
    penalty = GradientPenalty(model, STRENGTH, micro_batch_size=3)
    with caplog.at_level(logging.INFO):
        penalty.backward(lambda x, y: model(x, y)["loss"], x, y)
    for parameter, truth in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, truth, rtol=1e-10, atol=1e-12)
    assert "not checked: the closure in evaluation mode raises TypeError" in caplog.text


def test_a_resumed_penalty_remembers_what_the_loss_is() -> None:
    """The batch after the resume has no label to ignore; the uninterrupted run takes its plain part from the whole."""
    model, (x, y) = net(), data()
    seen = torch.where(torch.arange(12) % 5 == 0, -100, y)
    rows: list[int] = []

    def closure(x: Tensor, y: Tensor) -> Tensor:
        rows.append(len(x))
        return F.cross_entropy(model(x), y)

    first = GradientPenalty(model, STRENGTH, method="double_backward", micro_batch_size=3)
    first.backward(closure, x, seen)
    resumed = GradientPenalty(model, STRENGTH, method="double_backward", micro_batch_size=3)
    resumed.load_state_dict(first.state_dict())
    rows.clear()
    for penalty in (first, resumed):
        penalty.backward(closure, x, y)
    assert rows == [3, 3, 3, 3, 12] * 2
