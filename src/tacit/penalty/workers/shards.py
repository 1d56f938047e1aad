"""Finite differences on a model that `fully_shard` (FSDP2) shards: every worker holds a part of every parameter.

FSDP2 gathers parameters in the forward pass and averages gradients over workers in the backward pass, so a gradient is
found by `backward`, not by `autograd.grad`, and it is that of the global batch. The vectors of the method (gradient,
direction, difference) are the workers' shards; their lengths are added up over workers. The other methods differentiate
twice, which FSDP2 does not support.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tacit._util.errors import InputError
from tacit.penalty.methods.kinks import Kinks
from tacit.penalty.methods.two_pass import Views
from tacit.penalty.objective import Objective, Outcome
from tacit.penalty.surroundings.refusals import NOTHING_REACHED
from tacit.penalty.surroundings.state import RandomState
from tacit.penalty.workers.wrappers import in_a_group


def is_sharded(model: nn.Module) -> bool:
    """Whether the model, or a part of it, went through `fully_shard`."""
    return in_a_group() and any(
        "FSDPModule" in {kind.__name__ for kind in type(module).__mro__} for module in model.modules()
    )


def plain_step(objective: Objective) -> Outcome:
    """Strength 0: the gradient of the global batch, as FSDP2 leaves it."""
    views = ShardedViews(objective)
    views.finish([torch.zeros_like(gradient) for gradient in views.gradients[0]])
    return Outcome(views.loss(), torch.zeros_like(views.loss()))


class ShardedViews(Views):
    """`Views` whose tensors are this worker's shards."""

    def __init__(self, objective: Objective, *, replay_kinks: bool = False) -> None:
        self.objective = objective
        if len(objective.closures) > 1:
            raise InputError("second_view on a model that went through fully_shard; expected one view.")
        self.parameters = list(objective.parameters.values())
        self.leaves: list[Tensor] = [parameter for parameter in objective.model.parameters() if parameter.requires_grad]
        self.group = _group_of(self.leaves)
        if objective.mean is None and dist.get_world_size(self.group) > 1:
            raise InputError(
                "norm_of='micro_batch' on a model that went through fully_shard (FSDP2), which averages gradients over "
                "workers in its backward pass; use norm_of='global_batch'."
            )
        self.starts = [RandomState.now(objective.model, objective.generators)]
        self.kinks = [Kinks()] if replay_kinks else []
        with self.kinks[0].record() if self.kinks else _nothing():
            self.losses = [objective.loss(objective.closures[0])]
        self.gradients = [self._gradient(self.losses[0])]
        wanted = {id(parameter) for parameter in self.parameters}
        self.reached = [leaf for leaf in self.leaves if id(leaf) in wanted and isinstance(leaf, nn.Parameter)]
        own = zip(self.leaves, self.gradients[0], strict=True)
        self.directions = [[gradient for leaf, gradient in own if id(leaf) in wanted]]
        self._inner_product = self.norm(self.directions[0]).square()

    def _gradient(self, loss: Tensor, *, first: Sequence[Tensor] | None = None) -> list[Tensor]:
        before = [leaf.grad for leaf in self.leaves]
        try:
            for leaf in self.leaves:
                leaf.grad = None
            with _without_hooks(self.leaves):
                (self.objective.scale * loss).backward()
            gradients = [None if leaf.grad is None else _local(leaf.grad) for leaf in self.leaves]
        finally:
            for leaf, gradient in zip(self.leaves, before, strict=True):
                leaf.grad = gradient
        if all(gradient is None for gradient in gradients):
            raise InputError(
                f"{NOTHING_REACHED} A model that went through fully_shard must synchronise gradients: "
                "leave set_requires_gradient_sync at True."
            )
        scaled = [
            torch.zeros_like(_local(leaf.detach())) if gradient is None else gradient / self.objective.scale
            for leaf, gradient in zip(self.leaves, gradients, strict=True)
        ]
        return scaled

    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        own = super().norm(tensors).double().square()
        dist.all_reduce(own, group=self.group)
        return own.sqrt()

    def parameter_norm(self) -> float:
        return float(self.norm([_local(parameter.detach()) for parameter in self.reached]))

    @contextmanager
    def moved(self, direction: Sequence[Tensor], distance: float) -> Iterator[None]:
        """In place, since FSDP2 gathers parameters from their own memory; put back bitwise."""
        shards = [_local(parameter.detach()) for parameter in self.reached]
        originals = [shard.clone() for shard in shards]
        try:
            for shard, step in zip(shards, direction, strict=True):
                shard.add_(step, alpha=distance)
            yield
        finally:
            for shard, original in zip(shards, originals, strict=True):
                shard.copy_(original)

    def deliver(self, results: list[Tensor]) -> None:
        whole = [_sharded_like(leaf, result) for leaf, result in zip(self.leaves, results, strict=True)]
        (self.objective.deliver or torch.autograd.backward)(self.leaves, whole)


@contextmanager
def _without_hooks(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Inside, gradient hooks on these tensors are silent: a user's hook is about the final gradient."""
    hooked = [(tensor, tensor._backward_hooks) for tensor in tensors if tensor._backward_hooks]
    try:
        for tensor, _ in hooked:
            tensor._backward_hooks = None
        yield
    finally:
        for tensor, hooks in hooked:
            tensor._backward_hooks = hooks


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _local(tensor: Tensor) -> Tensor:
    """This worker's part of a DTensor."""
    part: Any = tensor
    return part.to_local() if hasattr(part, "to_local") else tensor


def _sharded_like(parameter: Tensor, part: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    if not isinstance(parameter, DTensor):
        return part
    return DTensor.from_local(
        part, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
        stride=parameter.stride(),
    )  # fmt: skip


def _group_of(parameters: Sequence[Tensor]) -> Any:
    """The process group that all parameters are sharded over."""
    meshes = {id(mesh): mesh for mesh in (getattr(parameter, "device_mesh", None) for parameter in parameters)}
    mesh = next(iter(meshes.values()))
    if mesh is None or any(other is None or other != mesh for other in meshes.values()) or mesh.ndim != 1:
        raise InputError(
            "the model is sharded over several meshes, over one with several dimensions, or only in part; expected "
            "fully_shard of the whole model over one mesh of one dimension."
        )
    return mesh.get_group()
