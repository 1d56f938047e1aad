"""Sharpness-aware steps under DistributedDataParallel; `test_distributed_sam.py` has the other side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

from cases import batch_norm_net, spread
from distributed_workers import Result, counted_reductions, gradients, message, scenario, shard, wide
from tacit import SharpnessAware

RADIUS, SEED = 0.1, 6


def closure_of(model: nn.Module, seen: list[Tensor] | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    def closure(x: Tensor, y: Tensor) -> Tensor:
        if seen is not None:
            seen.append(x)
        return F.cross_entropy(model(x), y)

    return closure


def one_step(rank: int, world: int, *, wrapped: bool = True, sampled: int | None = None) -> Result:
    """The gradient, the loss, the rows of the direction, how often DDP reduced, and whether parameters came back."""
    ddp, seen = DDP(wide()), []
    sam = SharpnessAware(ddp if wrapped else ddp.module, RADIUS, sampled=sampled, seed=SEED)
    before = {name: parameter.detach().clone() for name, parameter in ddp.module.named_parameters()}
    with counted_reductions(ddp) as reductions:
        loss = sam.backward(closure_of(ddp, seen), *shard(rank, world))
    back = all(torch.equal(parameter, before[name]) for name, parameter in ddp.module.named_parameters())
    return {
        **gradients(ddp), "loss": loss, "rows": seen[0], "reductions": torch.tensor(len(reductions)),
        "back": torch.tensor(back),
    }  # fmt: skip


scenario("sam", (1, 2))(one_step)
scenario("sam of the bare module")(lambda rank, world: one_step(rank, world, wrapped=False))
scenario("sam sampled")(lambda rank, world: one_step(rank, world, sampled=3))


@scenario("sam accumulated")
def accumulated(rank: int, world: int) -> Result:
    """Two calls per update on unequal parts of the worker's batch, as tensors, and batches of other sizes elsewhere."""
    ddp = DDP(wide())
    sam = SharpnessAware(ddp, RADIUS)
    inputs, targets = shard(rank, world)
    cut = 3 + rank
    for part, context in ((slice(cut), ddp.no_sync()), (slice(cut, None), nullcontext())):
        with context:
            (sam.loss(closure_of(ddp), inputs[part], targets[part]) / 2).backward()
    return gradients(ddp)


@scenario("sam trained")
def trained(rank: int, world: int) -> Result:
    ddp = DDP(spread(batch_norm_net()).double())
    sam = SharpnessAware(ddp, RADIUS, sampled=4, seed=SEED)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        sam.backward(closure_of(ddp), *shard(rank, world, features=3, step=step))
        optimizer.step()
    return {name: value.clone() for name, value in ddp.module.named_parameters()}


@scenario("sam, one worker fails")
def one_fails(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    sam = SharpnessAware(ddp, RADIUS)
    inputs, targets = shard(rank, world)
    sam.backward(closure_of(ddp), inputs, targets)  # so that the group is known
    bad = inputs * torch.nan if rank == 1 else inputs
    return message(lambda: sam.backward(closure_of(ddp), bad, targets))


@scenario("sam refuses fully_shard")
def refuses_fully_shard(rank: int, world: int) -> Result:
    model = wide()
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (world,)))
    return message(lambda: SharpnessAware(model, RADIUS))
