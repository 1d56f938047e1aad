"""What must be equal to one device under DistributedDataParallel; `test_distributed.py` has the other side."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

from cases import Twice, batch_norm_net, numbers, spread
from distributed_workers import (
    EXAMPLES,
    STRENGTH,
    Result,
    batch,
    counted_reductions,
    gradients,
    loss_of,
    scenario,
    shard,
    wide,
)
from tacit import GradientPenalty, Relative
from tacit.penalty import METHODS


def one_step(rank: int, world: int, method: str, **options: Any) -> dict[str, Tensor]:
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, STRENGTH, method=method, **options)
    penalty.backward(loss_of(ddp, *shard(rank, world)))
    return {**gradients(ddp), "norm": penalty.last.gradient_squared_norm}


for method in METHODS:
    worlds = (2, 4) if METHODS[method].exact else (2,)
    scenario(f"micro {method}", worlds)(lambda rank, world, m=method: one_step(rank, world, m))
    if method != "gram":  # which refuses it
        scenario(f"global {method}", worlds)(
            lambda rank, world, m=method: one_step(rank, world, m, norm_of="global_batch")
        )


@scenario("micro-batches within a worker", (2, 4))
def micro_batches_within(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, STRENGTH, micro_batch_size=2)
    penalty.backward(lambda x, y: F.cross_entropy(ddp(x), y), *shard(rank, world))
    return gradients(ddp)


SAMPLED_STEPS = 2


@scenario("sampled")
def sampled(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, STRENGTH, micro_batch_size=2, sampled=2, seed=9)
    found = {}
    for step in range(SAMPLED_STEPS):
        ddp.zero_grad()
        penalty.backward(lambda x, y: F.cross_entropy(ddp(x), y), *shard(rank, world))
        found |= {f"{step} {name}": value for name, value in gradients(ddp).items()}
    return found


@scenario("sampled calls")
def sampled_calls(rank: int, world: int) -> Result:
    """One of two accumulated calls carries the penalty: for some workers and steps the first, for others the second."""
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, STRENGTH, sampled=1, seed=9)
    found, (inputs, targets) = {}, shard(rank, world)
    for step in range(4):
        ddp.zero_grad()
        for number, context in enumerate((ddp.no_sync(), nullcontext())):
            rows = slice(4 * number, 4 * number + 4)
            with context:
                penalty.backward(loss_of(ddp, inputs[rows], targets[rows]), weight=0.5, part=(number, 2))
        found |= {f"{step} {name}": value for name, value in gradients(ddp).items()}
    return found


@scenario("added")
def added(rank: int, world: int) -> Result:
    """The plain gradient by DDP itself, then the penalty's part of a few rows."""
    ddp, (inputs, targets) = DDP(wide()), shard(rank, world)
    F.cross_entropy(ddp(inputs), targets).backward()
    GradientPenalty(ddp, STRENGTH).add(lambda x, y: F.cross_entropy(ddp(x), y), inputs[:3], targets[:3])
    return gradients(ddp)


def accumulated(rank: int, world: int, **options: Any) -> Result:
    """Two calls per update on halves of the worker's part, twice: the second update starts from a first reduction."""
    ddp = DDP(wide(), **{key: options.pop(key) for key in list(options) if key in DDP_OPTIONS})
    penalty = GradientPenalty(ddp, STRENGTH, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        inputs, targets = shard(rank, world, step=step)
        half = len(inputs) // 2
        for part, context in ((slice(half), ddp.no_sync()), (slice(half, None), nullcontext())):
            with context:
                penalty.backward(loss_of(ddp, inputs[part], targets[part]), weight=0.5)
        optimizer.step()
    return {**dict(ddp.module.state_dict()), **{f"grad {k}": v for k, v in gradients(ddp).items()}}


DDP_OPTIONS = ("static_graph", "find_unused_parameters", "gradient_as_bucket_view", "bucket_cap_mb")
scenario("accumulated", (2, 4))(accumulated)
scenario("accumulated global")(lambda rank, world: accumulated(rank, world, norm_of="global_batch"))
scenario("accumulated in views of buckets")(lambda rank, world: accumulated(rank, world, gradient_as_bucket_view=True))


def trained(rank: int, world: int, **options: Any) -> Result:
    ddp = DDP(wide(), **{key: options.pop(key) for key in list(options) if key in DDP_OPTIONS})
    train(ddp, GradientPenalty(ddp, lambda step: 0.1 * (1 + step), **options), lambda k: shard(rank, world, step=k))
    return dict(ddp.module.state_dict())


def train(model: nn.Module, penalty: GradientPenalty, part: Callable[[int], tuple[Tensor, Tensor]]) -> None:
    """Four steps with momentum, clipping, a decaying rate and a growing strength."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for step in range(4):
        optimizer.zero_grad()
        penalty.backward(lambda x, y: F.cross_entropy(model(x), y), *part(step))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()


@scenario("limited")
def limited(rank: int, world: int) -> Result:
    """Every worker's sharpness and strength: a step alone, two that accumulate one update, and a last one."""
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, 100.0, largest_ratio=1.0)
    found = []
    for step, context in enumerate((nullcontext(), ddp.no_sync(), nullcontext(), nullcontext())):
        with context:
            penalty.backward(loss_of(ddp, *shard(rank, world, step=step)))
        found.append([penalty.last.strength, float(penalty.last.batch_sharpness)])
    return {"found": torch.tensor(found, dtype=torch.float64)}


@scenario("relative", (1, 2))
def relative(rank: int, world: int) -> Result:
    """Every worker's strength and norms; the fourth step is no_sync's, and the fifth overflows on one worker."""
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, Relative(0.4, start=0.1, smoothing=0.5))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    found = []
    for step in range(7):
        factor = math.inf if step == 4 and rank == 0 else 1.0
        with ddp.no_sync() if step == 3 else nullcontext():
            loss = loss_of(ddp, *shard(rank, world, step=step))
            penalty.backward(lambda loss=loss, factor=factor: factor * loss(), scaler=scaler)
        last = penalty.last
        found.append([last.strength, float(last.gradient_squared_norm), float(last.penalty_gradient_norm)])
    return {"found": torch.tensor(found, dtype=torch.float64)}


@scenario("relative sampled")
def relative_sampled(rank: int, world: int) -> Result:
    """Every worker's strength and weights, where each draws rows of its own."""
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, Relative(0.4), micro_batch_size=2, sampled=1)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    found = []
    for step in range(6):
        optimizer.zero_grad()
        penalty.backward(lambda x, y: F.cross_entropy(ddp(x), y), *shard(rank, world, step=step))
        optimizer.step()
        found.append(penalty.last.strength)
    return {"found": torch.tensor(found, dtype=torch.float64), **dict(ddp.module.state_dict())}


scenario("trained", (2, 4))(trained)
scenario("trained static_graph")(lambda rank, world: trained(rank, world, static_graph=True))
scenario("trained find_unused_parameters")(lambda rank, world: trained(rank, world, find_unused_parameters=True))
scenario("trained gradient_as_bucket_view")(lambda rank, world: trained(rank, world, gradient_as_bucket_view=True))
scenario("trained small buckets")(lambda rank, world: trained(rank, world, bucket_cap_mb=0.0005))
scenario("trained gram")(lambda rank, world: trained(rank, world, method="gram"))
scenario("trained unchecked")(lambda rank, world: trained(rank, world, check_ranks=False))


@scenario("trained other order")
def trained_other_order(rank: int, world: int) -> Result:
    """Every worker shuffles its own part differently: a mean does not care."""
    ddp = DDP(wide())

    def part(step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = shard(rank, world, step=step)
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(rank))
        return inputs[order], targets[order]

    train(ddp, GradientPenalty(ddp, lambda step: 0.1 * (1 + step)), part)
    return dict(ddp.module.state_dict())


@scenario("wrapped after the penalty was made")
def wrapped_after(rank: int, world: int) -> Result:
    model = wide()
    penalty = GradientPenalty(model, lambda step: 0.1 * (1 + step))
    train(DDP(model), penalty, lambda k: shard(rank, world, step=k))
    return dict(model.state_dict())


@scenario("part of a larger model")
def part_of_larger(rank: int, world: int) -> Result:
    """The body is wrapped, the head is too: two DDP modules in one closure."""
    whole = wide()
    model = nn.Sequential(DDP(whole[:3]), DDP(whole[3:]))
    train(model, GradientPenalty(model, lambda step: 0.1 * (1 + step)), lambda k: shard(rank, world, step=k))
    return dict(whole.state_dict())


@scenario("reductions")
def reductions(rank: int, world: int) -> Result:
    """One bucket: the hook is called once per reduction. Micro-batches and methods with two passes change nothing."""
    found: dict[str, Tensor] = {}
    for method in METHODS:
        ddp = DDP(wide())
        with counted_reductions(ddp) as calls:
            penalty = GradientPenalty(ddp, 1e-3, method=method, micro_batch_size=2)
            for _ in range(3):
                penalty.backward(lambda x, y, ddp=ddp: F.cross_entropy(ddp(x), y), *shard(rank, world))
        found[method] = torch.tensor(len(calls))
    return found


@scenario("communication hook")
def communication_hook(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    with counted_reductions(ddp):
        GradientPenalty(ddp, STRENGTH).backward(loss_of(ddp, *shard(rank, world)))
    return gradients(ddp)


@scenario("strength zero")
def strength_zero(rank: int, world: int) -> Result:
    with_us, without = DDP(wide()), DDP(wide())
    GradientPenalty(with_us, 0.0).backward(loss_of(with_us, *shard(rank, world)))
    loss_of(without, *shard(rank, world))().backward()
    return {name: gradients(with_us)[name] - gradient for name, gradient in gradients(without).items()}


@scenario("plain steps between penalised ones")
def plain_between(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, STRENGTH)
    for step in range(4):
        ddp.zero_grad()
        closure = loss_of(ddp, *shard(rank, world, step=step))
        closure().backward() if step % 2 else penalty.backward(closure)
        if step == 2:
            kept = gradients(ddp)
            with torch.no_grad():
                ddp(shard(rank, world)[0])
    return {**kept, **{f"plain {name}": gradient for name, gradient in gradients(ddp).items()}}


@scenario("hooks on parameters")
def hooks_on_parameters(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    later: list[int] = []
    for parameter in ddp.parameters():
        parameter.register_hook(lambda gradient: 2 * gradient)
        parameter.register_post_accumulate_grad_hook(lambda parameter: later.append(1))
    GradientPenalty(ddp, STRENGTH).backward(loss_of(ddp, *shard(rank, world)))
    return {**gradients(ddp), "later": torch.tensor(len(later))}


@scenario("two views of the global batch")
def two_views(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    inputs, targets = shard(rank, world)
    other = inputs + 0.3 * numbers(EXAMPLES, 12, seed=9)[rank * len(inputs) : (rank + 1) * len(inputs)]
    GradientPenalty(ddp, STRENGTH, norm_of="global_batch").backward(
        loss_of(ddp, inputs, targets), second_view=loss_of(ddp, other, targets)
    )
    return gradients(ddp)


@scenario("buffers")
def buffers(rank: int, world: int) -> Result:
    found = {}
    for method in METHODS:
        ddp = DDP(spread(batch_norm_net()).double())
        penalty = GradientPenalty(ddp, 1e-3, method=method)
        for step in range(2):
            penalty.backward(loss_of(ddp, *shard(rank, world, features=3, step=step)))
        found |= {f"{method} {name}": buffer.clone() for name, buffer in ddp.module.named_buffers()}
    return found


@scenario("half precision")
def half_precision(rank: int, world: int) -> Result:
    """Accumulation, bfloat16 autocast, a GradScaler, clipping: everything at once."""
    ddp = DDP(wide().float())
    penalty = GradientPenalty(ddp, STRENGTH, method="gram")
    optimizer, scaler = torch.optim.SGD(ddp.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
    inputs, targets = shard(rank, world)
    half = len(inputs) // 2
    for part, context in ((slice(half), ddp.no_sync()), (slice(half, None), nullcontext())):
        with context, torch.autocast("cpu", torch.bfloat16):
            penalty.backward(loss_of(ddp, inputs[part].float(), targets[part]), weight=0.5, scaler=scaler)
    scaler.unscale_(optimizer)
    found = gradients(ddp)
    nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    return {**found, "moved": torch.cat([p.detach().reshape(-1) for p in ddp.parameters()])}


@scenario("compiled")
def compiled(rank: int, world: int) -> Result:
    """A compiled model has no second derivative: approximate methods only."""
    found = {}
    for name in ("outside", "inside"):
        model = wide()
        ddp = DDP(torch.compile(model, backend="aot_eager")) if name == "inside" else DDP(model)
        run = torch.compile(ddp, backend="aot_eager") if name == "outside" else ddp
        penalty = GradientPenalty(run, STRENGTH, method="finite_difference")
        for _ in range(2):
            model.zero_grad()
            penalty.backward(loss_of(run, *shard(rank, world)))
        found |= {f"{name} {key}": gradient for key, gradient in gradients(model).items()}
    return found


@scenario("a plan, then a step")
def plan_then_step(rank: int, world: int) -> Result:
    ddp = DDP(wide())
    penalty = GradientPenalty(ddp, STRENGTH)
    if rank == 0:  # a plan says nothing to the others
        penalty.plan(loss_of(ddp, *shard(rank, world)))
    penalty.backward(loss_of(ddp, *shard(rank, world)))
    return gradients(ddp)


@scenario("unused parameters found")
def unused_found(rank: int, world: int) -> Result:
    ddp = DDP(spread(Twice()).double(), find_unused_parameters=True)
    GradientPenalty(ddp, STRENGTH).backward(loss_of(ddp, *shard(rank, world, features=3)))
    return gradients(ddp)


@scenario("one process", (1,))
def one_process(rank: int, world: int) -> Result:
    micro, whole = DDP(wide()), DDP(wide())
    GradientPenalty(micro, STRENGTH).backward(loss_of(micro, *batch()))
    GradientPenalty(whole, STRENGTH, norm_of="global_batch").backward(loss_of(whole, *batch()))
    return {**gradients(micro), **{f"global {name}": gradient for name, gradient in gradients(whole).items()}}
