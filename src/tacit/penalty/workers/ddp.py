"""The penalty of a model that `DistributedDataParallel` (DDP) replicates over workers.

With W workers, each with its own equal part of the batch, the objective is one of

    (1/W) Σᵣ ( Ĉᵣ + (λ/4)‖∇Ĉᵣ‖² )            norm_of="micro_batch": what `micro_batch_size` does on one device
    Ĉ + (λ/4)‖∇Ĉ‖²,   Ĉ = (1/W) Σᵣ Ĉᵣ        norm_of="global_batch": what one device does with the whole batch

A worker computes its part with DDP out of the way: DDP expects one forward and one backward pass per step, its hooks
would reduce whatever the first of several passes leaves behind. The finished gradient then goes through DDP's own
forward and backward once (`hand_over`), so that its buckets, communication hooks, unused parameters, static graph and
buffers work as they do without a penalty. What is lost is the overlap of computing and communicating.

A trainer may call the penalty inside the forward pass of DDP (Lightning does, around `training_step`). That DDP itself
prepares its reducer when the forward pass ends, so there `GradientPenalty.loss` only hands gradients to parameters.

For the global batch, worker r adds Rᵣ = 2⟨∇Ĉᵣ, ḡ⟩ − ‖ḡ‖² with ḡ the mean gradient held constant: the mean of Rᵣ over
workers is ‖ḡ‖², and the mean of its gradients is 2 H ḡ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from tacit._util.errors import InputError
from tacit.penalty.sink import GradientSum
from tacit.penalty.workers.agreement import facts_of_step, refuse_disagreement
from tacit.penalty.workers.replica import Replica
from tacit.penalty.workers.wrappers import in_a_group, refuse_settings


class Workers:
    """What one `GradientPenalty` knows about its fellow workers; without a process group it does nothing."""

    def __init__(self, norm_of: str, *, check: bool) -> None:
        self.norm_of, self.check = norm_of, check
        self.group: Any = None  # of the last DDP seen: to tell the others when a step fails before it reaches its DDP
        self.device = torch.device("cpu")
        self.portions: list[int] = []  # examples per forward pass since the last reduction

    @contextmanager
    def step(self, model: nn.Module, strength: float, weight: float, size: int | None) -> Iterator[Step]:
        """Inside, every pass is the worker's own; on leaving, workers agree that `Step.hand_over` may follow.

        `size` is the number of examples, where the caller knows it; otherwise it is read off DDP's first input.
        """
        step = Step(self, strength, weight, size)
        try:
            step.enter(model)
            yield step
            step.agree()
        except Exception:
            step.tell_failure()
            self.portions = []
            raise
        finally:
            step.restore()
        if step.synchronises or not step.replicas:
            self.portions = []

    @contextmanager
    def alone(self, model: nn.Module) -> Iterator[None]:
        """Inside, DDP is out of the way, and nothing is sent or reduced: to look at the model only."""
        step = Step(Workers(self.norm_of, check=False), 0.0, 1.0, None)
        try:
            step.enter(model)
            yield
        finally:
            step.restore()


class Step:
    """One call of `backward` or `loss`: gradients found, DDP modules met, and what workers tell each other."""

    def __init__(self, workers: Workers, strength: float, weight: float, size: int | None) -> None:
        self.workers, self.strength, self.weight, self.size = workers, strength, weight, size
        self.replicas: list[Replica] = []
        self.surrounding: DistributedDataParallel | None = None  # whose forward pass this step runs in
        self.others = GradientSum()  # of leaves that no replica reduces
        self.watch: Any = None
        self.distributed = in_a_group()
        self.reduced_inside = self.silent = False

    @property
    def synchronises(self) -> bool:
        inside = self.surrounding is not None and self.surrounding.require_backward_grad_sync
        return inside or any(replica.synchronises for replica in self.replicas)

    def enter(self, model: nn.Module) -> None:
        if not self.distributed:
            return
        self.surrounding = DistributedDataParallel._active_ddp_module
        if self.surrounding is not None:
            self._remember_group(self.surrounding)
        if self.size is not None:
            self.workers.portions.append(self.size)
        for module in model.modules():
            if isinstance(module, DistributedDataParallel) and module is not self.surrounding:
                self._take(module)
        if not self.replicas:  # the model may have been wrapped after the penalty was made, as a module of its own
            self.watch = register_module_forward_pre_hook(self._notice)

    def mean(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The mean over workers of each gradient: one reduction per dtype."""
        known = bool(self.replicas) or self.surrounding is not None
        if self.distributed and not known:
            raise InputError(
                "norm_of='global_batch' but the closure called no DistributedDataParallel; expected a wrapped model. "
                "Wrap it, or leave norm_of='micro_batch'."
            )
        if not known or self._world() == 1:
            return [gradient.detach() for gradient in gradients]
        if not self.reduced_inside:
            self._agree("the gradient of the global batch")
        self.reduced_inside = True
        means: list[Tensor | None] = [None] * len(gradients)
        for dtype in {gradient.dtype: None for gradient in gradients}:
            places = [place for place, gradient in enumerate(gradients) if gradient.dtype == dtype]
            flat = torch.cat([gradients[place].detach().reshape(-1) for place in places])
            with self._communicating():
                dist.all_reduce(flat, group=self.workers.group)
            flat /= self._world()
            for place, part in zip(places, flat.split([gradients[place].numel() for place in places]), strict=True):
                means[place] = part.view(gradients[place].shape)
        return [part for part in means if part is not None]

    def largest(self, value: float) -> float:
        """The largest of the workers' values."""
        if not (self.replicas or self.surrounding is not None) or self._world() == 1:
            return value
        reduced = torch.tensor(value, dtype=torch.float64, device=self.workers.device)
        with self._communicating():
            dist.all_reduce(reduced, op=dist.ReduceOp.MAX, group=self.workers.group)
        return float(reduced)

    def largest_after(self, value: Tensor) -> Tensor | None:
        """The same once the step has succeeded, after `agree`; None while gradients accumulate and no worker waits.

        Workers that may have joined (`silent`) take part in DDP's reductions only, so there each keeps its own value.
        """
        if self.silent or not (self.replicas or self.surrounding is not None):
            return value
        return torch.tensor(self.largest(float(value)), dtype=value.dtype) if self.synchronises else None

    def mean_after(self, values: Tensor) -> Tensor | None:
        """The mean of the workers' values, on the rules of `largest_after`: the same bits on all of them."""
        if self.silent or not (self.replicas or self.surrounding is not None):
            return values
        if not self.synchronises or self._world() == 1:
            return values if self.synchronises else None
        reduced = values.detach().to(self.workers.device, copy=True)
        with self._communicating():
            dist.all_reduce(reduced, group=self.workers.group)
        return reduced / self._world()

    def add(self, leaves: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Keep gradients for `hand_over`: those of parameters that a DDP reduces with it, all others together."""
        for leaf, gradient in zip(leaves, gradients, strict=True):
            for replica in self.replicas:
                if leaf in replica.parameters:
                    replica.gradients.add([leaf], [gradient])
                    break
            else:
                self.others.add([leaf], [gradient])

    def agree(self) -> None:
        """Make sure that every worker is about to reduce the same thing."""
        for replica in self.replicas:
            replica.refuse_missing()
        if self.synchronises and self._world() > 1:
            self._agree("the gradient")

    def refuse_backward_inside_ddp(self) -> None:
        if self.surrounding is not None and self._world() > 1 and self.synchronises:
            raise InputError(
                "penalty.backward was called inside the forward pass of DistributedDataParallel, which reduces no "
                "gradient there. Use penalty.loss(closure) and let the trainer call backward on it, "
                "as in self.manual_backward(penalty.loss(closure))."
            )

    def hand_over(self, loss: Tensor, scale: float | Tensor) -> Tensor:
        """The loss, detached, plus zeros whose gradients are those kept here, divided by `scale`."""
        with torch.enable_grad():
            parts = [replica.hand_over(loss, scale) for replica in self.replicas if replica.will_hand_over]
            return sum(parts, self.others.hand_over(loss, scale))

    def into_grad(self, loss: Tensor) -> None:
        """Adds the kept gradients to `.grad`, those of a DDP through its reducer."""
        whole = self.hand_over(loss, 1.0)
        if whole.requires_grad:
            whole.backward()

    def restore(self) -> None:
        if self.watch is not None:
            self.watch.remove()
        for replica in reversed(self.replicas):
            replica.restore()

    def tell_failure(self) -> None:
        """Take part in the next exchange, which the others wait in or will come to, so that they stop as well."""
        told = not self.distributed or self.workers.group is None or self.silent
        if not told and self._world() > 1:
            self._agree("", failed=True)

    def _notice(self, module: nn.Module, inputs: Any) -> None:
        known = any(replica.ddp is module for replica in self.replicas)
        if isinstance(module, DistributedDataParallel) and torch.is_grad_enabled() and not known:
            self._take(module)

    def _take(self, ddp: DistributedDataParallel) -> None:
        self._remember_group(ddp)
        self.replicas.append(Replica(ddp, self.workers.portions.append if self.size is None else _ignore))

    def _remember_group(self, ddp: DistributedDataParallel) -> None:
        self.workers.group = ddp.process_group
        self.workers.device = next(parameter.device for parameter in ddp.module.parameters())
        if ddp._join_config.enable:
            self.silent = True  # workers that have joined take part in DDP's reductions only
        refuse_settings(ddp, norm_of=self.workers.norm_of)

    def _world(self) -> int:
        return dist.get_world_size(self.workers.group)

    @contextmanager
    def _communicating(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.silent = True  # nobody can be told anything any more
            raise

    def _agree(self, what: str, *, failed: bool = False) -> None:
        """Every worker's facts to every worker: 48 bytes, then the same sentence everywhere, or none."""
        if not self.workers.check:
            return
        portions = self.workers.portions
        handing = sum(replica.will_hand_over for replica in self.replicas)
        facts = facts_of_step(
            failed=failed, portions=portions, strength=self.strength, weight=self.weight, handing=handing
        )
        mine = torch.tensor(facts, dtype=torch.int64, device=self.workers.device)
        everyone = [torch.empty_like(mine) for _ in range(self._world())]
        with self._communicating():
            dist.all_gather(everyone, mine, group=self.workers.group)
        self.silent = failed
        if not failed:
            try:
                refuse_disagreement([row.tolist() for row in everyone], what)
            except InputError:
                self.silent = True  # the others raise the same
                raise


def _ignore(size: int) -> None: ...
