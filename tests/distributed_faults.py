"""What every rank must refuse, or survive when one of them fails, under DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

from cases import Twice, batch_norm_net, spread
from distributed_workers import STRENGTH, Result, counted_reductions, loss_of, message, scenario, shard, wide
from tacit import FactoredSGD, GradientPenalty


@scenario("refused: unused parameters")
def unused_refused(rank: int, world: int) -> Result:
    ddp = DDP(spread(Twice()).double())
    return message(lambda: GradientPenalty(ddp, 0.3).backward(loss_of(ddp, *shard(rank, world, features=3))))


def uneven(rank: int, world: int, *, given: bool = False, **options: Any) -> Result:
    ddp = DDP(wide())
    inputs, targets = shard(rank, world)
    if rank == world - 1:
        inputs, targets = inputs[:-1], targets[:-1]
    penalty = GradientPenalty(ddp, STRENGTH, **options)
    if given:
        found = message(lambda: penalty.backward(lambda x, y: F.cross_entropy(ddp(x), y), inputs, targets))
    else:
        found = message(lambda: penalty.backward(loss_of(ddp, inputs, targets)))
    clean = all((p.grad is None) == ("InputError" in found) for p in ddp.parameters())
    return f"{found} clean: {clean}"


scenario("refused: uneven batches", (2, 4))(uneven)
scenario("refused: uneven batches given")(lambda rank, world: uneven(rank, world, given=True))
scenario("refused: uneven global batches")(lambda rank, world: uneven(rank, world, norm_of="global_batch"))
scenario("uneven batches unchecked")(lambda rank, world: uneven(rank, world, check_ranks=False))


@scenario("refused: uneven accumulation")
def uneven_accumulation(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, STRENGTH)
    inputs, targets = shard(rank, world)
    with ddp.no_sync():
        penalty.backward(loss_of(ddp, inputs[rank:], targets[rank:]))
    return message(lambda: penalty.backward(loss_of(ddp, inputs, targets)))


def fails(rank: int, world: int, *, where: str, **options: Any) -> Result:
    """The last rank fails in its second step; all of them must stop there, and a third step must work again."""
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, STRENGTH, **options)
    inputs, targets = shard(rank, world)
    penalty.backward(loss_of(ddp, inputs, targets))

    def closure() -> Tensor:
        if rank == world - 1 and where == "before":
            raise KeyError("data")
        loss = F.cross_entropy(ddp(inputs), targets)
        return loss * torch.nan if rank == world - 1 else loss

    found = message(lambda: penalty.backward(closure), Exception)
    ddp.zero_grad()
    penalty.backward(loss_of(ddp, inputs, targets))
    return f"{found} again: {float(ddp.module[0].weight.grad.norm()):.10f}"


scenario("fails before the model", (2, 4))(lambda rank, world: fails(rank, world, where="before"))
scenario("fails after the model")(lambda rank, world: fails(rank, world, where="after"))
scenario("fails before the global batch")(
    lambda rank, world: fails(rank, world, where="before", norm_of="global_batch")
)


@scenario("fails in no_sync")
def fails_in_no_sync(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, STRENGTH)
    inputs, targets = shard(rank, world)

    def update() -> None:
        with ddp.no_sync():
            penalty.backward(loss_of(ddp, inputs * (torch.nan if rank else 1.0), targets))
        penalty.backward(loss_of(ddp, inputs, targets))

    return message(update)


@scenario("refused: different strengths")
def different_strengths(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    return message(lambda: GradientPenalty(ddp, 0.1 * (1 + rank)).backward(loss_of(ddp, *shard(rank, world))))


@scenario("refused: different coins of a global batch")
def different_coins(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, 0.1, norm_of="global_batch", probability=0.5, seed=rank)

    def steps() -> None:
        for _ in range(20):
            penalty.backward(loss_of(ddp, *shard(rank, world)))

    return message(steps)


@scenario("refused: join")
def join(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, STRENGTH)
    with ddp.join():
        return message(lambda: penalty.backward(loss_of(ddp, *shard(rank, world))))


@scenario("refused: static graph in no_sync")
def static_graph_in_no_sync(rank: int, world: int) -> Result:
    ddp = DDP(wide(), static_graph=True)
    penalty = GradientPenalty(ddp, STRENGTH)
    with ddp.no_sync():
        return message(lambda: penalty.backward(loss_of(ddp, *shard(rank, world))))


@scenario("refused: mixed_precision")
def mixed_precision(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    ddp.mixed_precision = object()  # the real one needs a GPU
    return message(lambda: GradientPenalty(ddp, STRENGTH))


@scenario("refused: communication hook and global batch")
def hook_and_global(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    with counted_reductions(ddp):
        return message(lambda: GradientPenalty(ddp, STRENGTH, norm_of="global_batch"))


@scenario("refused: optimizer in backward")
def optimizer_in_backward(rank: int, world: int) -> Result:
    from torch.distributed.optim import _apply_optimizer_in_backward

    model = wide()
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    return message(lambda: GradientPenalty(DDP(model), STRENGTH))


@scenario("refused: sync batch norm")
def sync_batch_norm(rank: int, world: int) -> Result:
    ddp = DDP(batch_norm_net())
    ddp.module[1] = nn.SyncBatchNorm(4)  # put in later, because DDP takes it on GPUs only
    return message(lambda: GradientPenalty(ddp, STRENGTH))


@scenario("refused: global batch without ddp")
def global_without_ddp(rank: int, world: int) -> Result:
    model = wide()
    penalty = GradientPenalty(model, STRENGTH, norm_of="global_batch")
    return message(lambda: penalty.backward(loss_of(model, *shard(rank, world))))


@scenario("refused: fsdp2")
def fsdp2(rank: int, world: int) -> Result:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    model = wide()
    fully_shard(model, mesh=mesh)
    return message(lambda: GradientPenalty(model, STRENGTH))


@scenario("refused: fsdp1")
def fsdp1(rank: int, world: int) -> Result:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(wide(), device_id=torch.device("cpu"))
    return message(lambda: GradientPenalty(model, STRENGTH))


@scenario("refused: replicate")
def replicate(rank: int, world: int) -> Result:
    from torch.distributed._composable.replicate import replicate

    return message(lambda: GradientPenalty(replicate(wide()), STRENGTH))


@scenario("refused: tensor parallel")
def tensor_parallel(rank: int, world: int) -> Result:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    model = parallelize_module(wide(), mesh, {"0": ColwiseParallel()})
    return message(lambda: GradientPenalty(model, STRENGTH))


@scenario("refused: factored, wrapped")
def factored_wrapped(rank: int, world: int) -> Result:
    return message(lambda: FactoredSGD(nn.Sequential(DDP(wide())), lr=0.1))


@scenario("refused: factored, closure wrapped")
def factored_closure(rank: int, world: int) -> Result:
    model = wide()
    optimizer, ddp = FactoredSGD(model, lr=0.1), DDP(model)
    return message(lambda: optimizer.step(loss_of(ddp, *shard(rank, world))))
