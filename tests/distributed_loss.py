"""`penalty.loss` under DistributedDataParallel: its gradients beside those of `penalty.backward`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

from cases import Twice, spread
from distributed_workers import (
    STRENGTH,
    Result,
    counted_reductions,
    gradients,
    loss_of,
    message,
    scenario,
    shard,
    wide,
)
from tacit import GradientPenalty
from tacit.penalty import METHODS


def differentiate(penalty: GradientPenalty, closure: Callable[..., Tensor], *batch: Tensor, as_tensor: bool) -> Tensor:
    if not as_tensor:
        return penalty.backward(closure, *batch)
    loss = penalty.loss(closure, *batch)
    loss.backward()
    return loss.detach()


def compared(run: Callable[[bool], dict[str, Tensor]]) -> Result:
    """What `run(as_tensor)` finds both ways: the expected values have names that begin with "backward "."""
    expected = run(False)
    return {**run(True), **{f"backward {name}": value for name, value in expected.items()}}


def one_step(rank: int, world: int, method: str, **options: Any) -> Result:
    def run(as_tensor: bool) -> dict[str, Tensor]:
        ddp = DDP(wide())
        penalty = GradientPenalty(ddp, STRENGTH, method=method, **options)
        loss = differentiate(penalty, loss_of(ddp, *shard(rank, world)), as_tensor=as_tensor)
        return {**gradients(ddp), "loss": loss, "norm": penalty.last.gradient_squared_norm}

    return compared(run)


for method in METHODS:
    scenario(f"loss, {method}")(lambda rank, world, m=method: one_step(rank, world, m))
    if method != "gram":  # which refuses it
        scenario(f"loss, {method} of the global batch")(
            lambda rank, world, m=method: one_step(rank, world, m, norm_of="global_batch")
        )


def trained(rank: int, world: int, make: Callable[[], nn.Module] = wide, features: int = 12, **wrapping: Any) -> Result:
    def run(as_tensor: bool) -> dict[str, Tensor]:
        ddp = DDP(make(), **wrapping)
        penalty = GradientPenalty(ddp, STRENGTH, every=2, micro_batch_size=4)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            batch = shard(rank, world, features, step=step)
            differentiate(penalty, lambda x, y: F.cross_entropy(ddp(x), y), *batch, as_tensor=as_tensor)
            optimizer.step()
        return dict(ddp.module.state_dict())

    return compared(run)


scenario("loss, trained")(trained)
scenario("loss, static_graph")(lambda rank, world: trained(rank, world, static_graph=True))
scenario("loss, gradient_as_bucket_view")(lambda rank, world: trained(rank, world, gradient_as_bucket_view=True))
scenario("loss, find_unused_parameters")(
    lambda rank, world: trained(rank, world, lambda: spread(Twice()).double(), 3, find_unused_parameters=True)
)


@scenario("loss, accumulated with a scaler")
def accumulated(rank: int, world: int) -> Result:
    """Four parts of each worker's batch, divided by four and scaled, as a trainer does it."""

    def run(as_tensor: bool) -> dict[str, Tensor]:
        ddp = DDP(wide())
        penalty, scaler = GradientPenalty(ddp, STRENGTH), torch.amp.GradScaler("cpu", init_scale=1024.0)
        parts = list(zip(*(tensor.split(len(tensor) // 4) for tensor in shard(rank, world)), strict=True))
        for number, part in enumerate(parts):
            with ddp.no_sync() if number < 3 else nullcontext():
                if as_tensor:
                    scaler.scale(penalty.loss(loss_of(ddp, *part)) / 4).backward()
                else:
                    penalty.backward(loss_of(ddp, *part), weight=0.25, scaler=scaler)
        return gradients(ddp)

    return compared(run)


@scenario("loss, the bare module in the closure")
def bare_module(rank: int, world: int) -> Result:
    def run(as_tensor: bool) -> dict[str, Tensor]:
        ddp = DDP(wide())
        penalty = GradientPenalty(ddp, STRENGTH)
        differentiate(penalty, loss_of(ddp.module if as_tensor else ddp, *shard(rank, world)), as_tensor=as_tensor)
        return gradients(ddp)

    return compared(run)


class Trainer(nn.Module):
    """As Lightning does it: the forward pass that DDP wraps is the whole training step, penalty included."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.penalty = GradientPenalty(model, STRENGTH, **options)

    def forward(self, inputs: Tensor, targets: Tensor, as_tensor: bool = True) -> Tensor:
        closure = loss_of(self.model, inputs, targets)
        return self.penalty.loss(closure) if as_tensor else self.penalty.backward(closure)


def inside_forward(rank: int, world: int, **options: Any) -> Result:
    def run(as_tensor: bool) -> dict[str, Tensor]:
        if not as_tensor:
            ddp = DDP(wide())
            GradientPenalty(ddp, STRENGTH, **options).backward(loss_of(ddp, *shard(rank, world)))
            return gradients(ddp)
        trainer = Trainer(wide(), **options)
        ddp = DDP(trainer)
        ddp(*shard(rank, world)).backward()
        return gradients(trainer.model)

    return compared(run)


scenario("loss, inside the forward pass of DDP")(inside_forward)
scenario("loss, inside the forward pass of DDP, global batch")(
    lambda rank, world: inside_forward(rank, world, norm_of="global_batch")
)
scenario("refused: backward inside the forward pass of DDP")(
    lambda rank, world: message(lambda: DDP(Trainer(wide()))(*shard(rank, world), as_tensor=False))
)


@scenario("loss, one that is never used")
def never_used(rank: int, world: int) -> Result:
    """Counted reductions: none for the loss that is dropped, one for the next."""
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, STRENGTH)
    with counted_reductions(ddp) as calls:
        penalty.loss(loss_of(ddp, *shard(rank, world)))
        before = len(calls)
        penalty.loss(loss_of(ddp, *shard(rank, world))).backward()
    counts = {"before": torch.tensor(before), "after": torch.tensor(len(calls))}
    twin = DDP(wide())
    GradientPenalty(twin, STRENGTH).backward(loss_of(twin, *shard(rank, world)))
    expected = {"before": torch.tensor(0), "after": torch.tensor(1), **gradients(twin)}
    return {**counts, **gradients(ddp), **{f"backward {name}": value for name, value in expected.items()}}
