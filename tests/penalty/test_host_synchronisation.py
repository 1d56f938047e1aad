"""No ordinary step waits for the device: nothing reads a number, and no tensor is made on another device.

Two looks: every way to read a tensor's numbers is counted over twenty steps on the CPU, and steps run on the meta
device, whose tensors have no numbers and refuse to meet others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from cases import ConvolutionNet, TransformerBlock, batch_norm_net, labels, numbers, spread
from tacit import GradientPenalty, Relative, SharpnessAware

READS = {"aten._local_scalar_dense.default", "aten.equal.default", "aten.nonzero.default", "aten.is_nonzero.default",
         "aten._unique2.default", "aten.item.default"}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "micro-batches": {"micro_batch_size": 4},
    "one sampled": {"micro_batch_size": 4, "sampled": 1},
    "two sampled": {"micro_batch_size": 4, "sampled": 2},
    "every": {"every": 4},
    "probability": {"probability": 0.5},
    "largest_ratio": {"largest_ratio": 1.0},
    "relative": {"strength": Relative(0.4)},
    "relative, sampled": {"strength": Relative(0.4), "micro_batch_size": 4, "sampled": 1},
}


class Reads(TorchDispatchMode):
    """Counts operations that wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(function) in READS:
            self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[list[str]]:
    """Reads of numbers, those that no dispatcher sees among them, but for tensors of row numbers on the CPU."""
    reads, before = Reads(), {name: getattr(Tensor, name) for name in ("tolist", "numpy")}

    def noting(name: str) -> Callable[..., Any]:
        def read(tensor: Tensor, *arguments: Any, **named: Any) -> Any:
            reads.seen.append(name)
            return before[name](tensor, *arguments, **named)

        return read

    try:
        for name in before:
            setattr(Tensor, name, noting(name))
        with reads:
            yield reads.seen
    finally:
        for name, method in before.items():
            setattr(Tensor, name, method)


Batch = tuple[Tensor, Tensor]


def problems(device: str) -> dict[str, tuple[nn.Module, Batch]]:
    mlp = spread(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)))
    made: dict[str, tuple[nn.Module, Batch]] = {
        "mlp": (mlp, (numbers(16, 5, seed=1), labels(16, 3, 2))),
        "convolutions": (spread(ConvolutionNet()), (numbers(12, 2, 8, 8, seed=1), labels(12, 3, 2))),
        "batch norm": (spread(batch_norm_net()), (numbers(12, 3, seed=1), labels(12, 3, 2))),
        "transformer": (
            spread(TransformerBlock()),
            (labels(48, 7, 4).reshape(12, 4), labels(48, 7, 5).reshape(12, 4)),
        ),
    }
    return {
        name: (model.double().to(device), (batch[0].to(device), batch[1].to(device)))
        for name, (model, batch) in made.items()
    }


def loss_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        found = model(x)
        return F.cross_entropy(found.reshape(-1, found.shape[-1]), y.reshape(-1))

    return loss


def penalty_of(model: nn.Module, method: str, options: dict[str, Any]) -> GradientPenalty:
    others = {"strength": 0.1, **options}
    return GradientPenalty(model, others.pop("strength"), method=method, defer_checks=True, **others)


@pytest.mark.parametrize("method", ["double_backward", "gram"])
@pytest.mark.parametrize("option", OPTIONS)
def test_ordinary_steps_read_no_number(option: str, method: str) -> None:
    for name, (model, batch) in problems("cpu").items():
        penalty = penalty_of(model, method, OPTIONS[option])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(3):  # the first steps look at what others take for granted
            penalty.backward(loss_of(model), *batch)
        with counted() as seen:
            for _ in range(20):
                optimizer.zero_grad()
                penalty.backward(loss_of(model), *batch)
                optimizer.step()
        assert seen == [], name
        assert penalty.last is not None


@pytest.mark.parametrize("method", ["double_backward", "gram"])
@pytest.mark.parametrize("sampled", [None, 1])
def test_ordinary_steps_with_a_scaler_read_no_number(sampled: int | None, method: str) -> None:
    model, batch = problems("cpu")["mlp"]
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    penalty = penalty_of(model, method, {"micro_batch_size": 4, "sampled": sampled})
    for _ in range(3):
        penalty.backward(loss_of(model), *batch, scaler=scaler)
    with counted() as seen:
        for _ in range(20):
            penalty.backward(loss_of(model), *batch, scaler=scaler)
    assert seen == []


def test_a_read_is_seen() -> None:
    value = torch.ones(2)
    reads: list[Callable[[], object]] = [
        lambda: float(value[0]), lambda: bool(value.any()), lambda: value.tolist(), lambda: value.numpy(),
        lambda: value.nonzero(), lambda: torch.equal(value, value), lambda: torch.unique(value),
    ]  # fmt: skip
    for read in reads:
        with counted() as seen:
            read()
        assert seen


@pytest.mark.parametrize("method", ["double_backward", "gram"])
@pytest.mark.parametrize("option", OPTIONS)
def test_steps_run_on_the_meta_device(option: str, method: str, caplog: pytest.LogCaptureFixture) -> None:
    for name, (model, batch) in problems("meta").items():
        penalty = penalty_of(model, method, OPTIONS[option])
        with caplog.at_level(logging.WARNING, "tacit"):
            for _ in range(3):
                model.zero_grad()
                penalty.backward(loss_of(model), *batch)
        gradients = [parameter.grad for parameter in model.parameters()]
        assert all(gradient is not None and gradient.device.type == "meta" for gradient in gradients), name
        if name in ("mlp", "convolutions"):
            assert "one after another" not in caplog.text


@pytest.mark.parametrize("rows", [None, 4])
def test_sharpness_aware_steps_run_on_the_meta_device(rows: int | None) -> None:
    for model, batch in problems("meta").values():
        sam = SharpnessAware(model, 0.05, sampled=rows, defer_checks=True)
        for _ in range(3):
            model.zero_grad()
            sam.backward(loss_of(model), *batch)
        assert all(parameter.grad is not None for parameter in model.parameters())
