"""A model that `fully_shard` (FSDP2) shards, in one process and in two: its gradients, put together."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from cases import spread
from distributed_workers import STRENGTH, Result, loss_of, message, scenario, shard, wide
from tacit import GradientPenalty
from tacit.penalty import METHODS
from tacit.studies.train.models import mlp


def sharded(model: nn.Module, world: int) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    for layer in model:  # type: ignore[attr-defined]
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor().detach().clone()


def with_kinks() -> nn.Module:
    return spread(mlp([12, 14, 13, 3])).double()


def one_step(rank: int, world: int, *, as_tensor: bool = False, make: Any = wide, **options: Any) -> Result:
    model = sharded(make(), world)
    before = {f"weight {name}": whole(parameter) for name, parameter in model.named_parameters()}
    penalty = GradientPenalty(model, STRENGTH, method="finite_difference", norm_of="global_batch", **options)
    closure = loss_of(model, *shard(rank, world))
    if as_tensor:
        (penalty.loss(closure) / 2).backward()
        penalty.steps = 0
        (penalty.loss(closure) / 2).backward()
    else:
        penalty.backward(closure)
    found = {name: whole(parameter.grad) for name, parameter in model.named_parameters()}
    after = {f"after {name}": whole(parameter) for name, parameter in model.named_parameters()}
    error = torch.tensor(float(penalty.last.error or 0.0))
    return {**found, **before, **after, "norm": penalty.last.gradient_squared_norm, "error": error}


for world in (1, 2):
    scenario(f"shards of {world}", (world,))(one_step)
    scenario(f"shards of {world}, kinks", (world,))(lambda rank, world: one_step(rank, world, make=with_kinks))
    scenario(f"shards of {world}, central", (world,))(lambda rank, world: one_step(rank, world, central=True))
    scenario(f"shards of {world}, as a loss", (world,))(lambda rank, world: one_step(rank, world, as_tensor=True))


@scenario("shards, trained")
def trained(rank: int, world: int) -> Result:
    model = sharded(wide(), world)
    penalty = GradientPenalty(model, STRENGTH, method="finite_difference", norm_of="global_batch", every=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        inputs, targets = shard(rank, world, step=step)
        penalty.backward(lambda x=inputs, y=targets: F.cross_entropy(model(x), y))
        optimizer.step()
    return {name: whole(parameter) for name, parameter in model.named_parameters()}


for method in METHODS:
    if method != "finite_difference":
        scenario(f"refused: shards, {method}")(
            lambda rank, world, method=method: message(
                lambda: GradientPenalty(sharded(wide(), world), STRENGTH, method=method)
            )
        )
scenario("refused: shards, norm_of='micro_batch'")(
    lambda rank, world: message(
        lambda: (lambda model: GradientPenalty(model, STRENGTH, method="finite_difference").backward(
            loss_of(model, *shard(rank, world))
        ))(sharded(wide(), world))
    )
)  # fmt: skip
