"""The penalty of a model that `DistributedDataParallel` (DDP) replicates over workers.

With W workers, each with its own equal part of the batch, the objective is one of

    (1/W) Σᵣ ( Ĉᵣ + (λ/4)‖∇Ĉᵣ‖² )            of="micro_batch": what `micro_batch_size` does on one device
    Ĉ + (λ/4)‖∇Ĉ‖²,   Ĉ = (1/W) Σᵣ Ĉᵣ        of="global_batch": what one device does with the whole batch

A worker computes its part with DDP out of the way: DDP expects one forward and one backward pass per step, its hooks
would reduce whatever the first of several passes leaves behind. The finished gradient then goes through DDP's own
forward and backward once (`_hand_over`), so that its buckets, communication hooks, unused parameters, static graph and
buffers work as they do without a penalty. What is lost is the overlap of computing and communicating.

A trainer may call the penalty inside the forward pass of DDP (Lightning does, around `training_step`). That DDP itself
prepares its reducer when the forward pass ends, so there `GradientPenalty.loss` only hands gradients to parameters.

For the global batch, worker r adds Rᵣ = 2⟨∇Ĉᵣ, ḡ⟩ − ‖ḡ‖² with ḡ the mean gradient held constant: the mean of Rᵣ over
workers is ‖ḡ‖², and the mean of its gradients is 2 H ḡ.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from tacit._calls import tensors_in
from tacit._errors import InputError
from tacit.penalty._hand_over import GradientSum, zero_with_gradients
from tacit.penalty._wrappers import in_a_group, refuse_settings


class Workers:
    """What one `GradientPenalty` knows about its fellow workers; without a process group it does nothing."""

    def __init__(self, of: str, *, check: bool) -> None:
        self.of, self.check = of, check
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
        """Inside, DDP is out of the way, and nothing is said or reduced: for a look."""
        step = Step(Workers(self.of, check=False), 0.0, 1.0, None)
        try:
            step.enter(model)
            yield
        finally:
            step.restore()


class Step:
    """One call of `backward` or `loss`: gradients found, DDP modules met, and what workers tell each other."""

    def __init__(self, workers: Workers, strength: float, weight: float, size: int | None) -> None:
        self.workers, self.strength, self.weight, self.size = workers, strength, weight, size
        self.replicas: list[_Replica] = []
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
                "of='global_batch' but the closure called no DistributedDataParallel; expected a wrapped model. "
                "Wrap it, or leave of='micro_batch'."
            )
        if not known or self._world() == 1:
            return [gradient.detach() for gradient in gradients]
        if not self.reduced_inside:
            self._agree("the gradient of the global batch")
        self.reduced_inside = True
        found: list[Tensor | None] = [None] * len(gradients)
        for dtype in {gradient.dtype: None for gradient in gradients}:
            places = [place for place, gradient in enumerate(gradients) if gradient.dtype == dtype]
            flat = torch.cat([gradients[place].detach().reshape(-1) for place in places])
            with self._communicating():
                dist.all_reduce(flat, group=self.workers.group)
            flat /= self._world()
            for place, part in zip(places, flat.split([gradients[place].numel() for place in places]), strict=True):
                found[place] = part.view(gradients[place].shape)
        return [part for part in found if part is not None]

    def largest(self, value: float) -> float:
        """The largest of the workers' values."""
        if not (self.replicas or self.surrounding is not None) or self._world() == 1:
            return value
        found = torch.tensor(value, dtype=torch.float64, device=self.workers.device)
        with self._communicating():
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.workers.group)
        return float(found)

    def deliver(self, leaves: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Keep gradients for `hand_over`: those of parameters that a DDP reduces with it, all others together."""
        for leaf, gradient in zip(leaves, gradients, strict=True):
            for replica in self.replicas:
                if leaf in replica.parameters:
                    replica.found.add([leaf], [gradient])
                    break
            else:
                self.others.add([leaf], [gradient])

    def agree(self) -> None:
        """Make sure that every worker is about to reduce the same thing."""
        for replica in self.replicas:
            replica.refuse_missing()
        if self.synchronises and self._world() > 1:
            self._agree("the gradient")

    @property
    def found_gradients(self) -> bool:
        return bool(self.others.by_leaf) or any(replica.will_hand_over for replica in self.replicas)

    def refuse_backward_inside_ddp(self) -> None:
        if self.surrounding is not None and self._world() > 1 and self.synchronises:
            raise InputError(
                "penalty.backward was called inside the forward pass of DistributedDataParallel, which reduces no "
                "gradient there. Use penalty.loss(closure) and let the trainer call backward on it, "
                "as in self.manual_backward(penalty.loss(closure))."
            )

    def hand_over(self, loss: Tensor, *, scale: float) -> Tensor:
        """The loss, detached, plus zeros whose gradients are the ones found, divided by `scale`."""
        parts = [replica.hand_over(loss, scale) for replica in self.replicas if replica.will_hand_over]
        if self.others.by_leaf:
            parts.append(zero_with_gradients(_divided(self.others, scale), loss))
        with torch.enable_grad():
            return sum(parts, loss)

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
        self.replicas.append(_Replica(ddp, self.workers.portions.append if self.size is None else _ignore))

    def _remember_group(self, ddp: DistributedDataParallel) -> None:
        self.workers.group = ddp.process_group
        self.workers.device = next(parameter.device for parameter in ddp.module.parameters())
        if ddp._join_config.enable:
            self.silent = True  # workers that have joined take part in DDP's reductions only
        refuse_settings(ddp, of=self.workers.of)

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
        facts = [failed, sum(portions), hash(tuple(portions)) >> 2, _bits(self.strength), _bits(self.weight), handing]
        mine = torch.tensor([int(fact) for fact in facts], dtype=torch.int64, device=self.workers.device)
        everyone = [torch.empty_like(mine) for _ in range(self._world())]
        with self._communicating():
            dist.all_gather(everyone, mine, group=self.workers.group)
        self.silent = failed
        if not failed:
            try:
                _refuse_disagreement([row.tolist() for row in everyone], what)
            except InputError:
                self.silent = True  # the others raise the same
                raise


class _Replica:
    """One DDP module during a step: its forward runs the bare module, its gradients are kept aside for the end."""

    def __init__(self, ddp: DistributedDataParallel, count: Callable[[int], None]) -> None:
        self.ddp, self.count = ddp, count
        self.synchronises: bool = ddp.require_backward_grad_sync
        self.found = GradientSum()
        self.parameters: set[Tensor] = set(ddp.module.parameters()) if self.synchronises else set()
        self.own_forward = ddp.__dict__.get("forward")
        ddp.forward = self._bare_forward  # type: ignore[method-assign]

    @property
    def will_hand_over(self) -> bool:
        return bool(self.found.by_leaf)

    def _bare_forward(self, *inputs: Any, **arguments: Any) -> Any:
        size = next(lengths((inputs, arguments)), None)
        if size is not None:
            self.count(size)
        if self.ddp.device_ids:  # as DDP does: inputs may come from another device
            moved, moved_arguments = nn.parallel.scatter_gather.scatter_kwargs(inputs, arguments, self.ddp.device_ids)
            inputs, arguments = moved[0], moved_arguments[0]
        return self.ddp.module(*inputs, **arguments)

    def refuse_missing(self) -> None:
        if not self.will_hand_over or self.ddp.find_unused_parameters or self.ddp.static_graph:
            return
        ignored = self.ddp.parameters_to_ignore
        for name, parameter in self.ddp.module.named_parameters():
            if parameter.requires_grad and name not in ignored and parameter not in self.found.by_leaf:
                raise InputError(
                    f"parameter {name!r} got no gradient, and DistributedDataParallel waits for every parameter; "
                    "wrap the model with find_unused_parameters=True."
                )

    def restore(self) -> None:
        if self.own_forward is None:
            self.ddp.__dict__.pop("forward", None)
        else:
            self.ddp.forward = self.own_forward  # type: ignore[method-assign]

    def hand_over(self, like: Tensor, scale: float) -> Tensor:
        """A zero from one forward pass of DDP around a stand-in whose gradient is the one found, divided by `scale`."""
        module = self.ddp.module
        # No forward pass of the step broadcast buffers; this one does, so that the next step starts from rank 0's.
        self.ddp.require_forward_param_sync = True
        self.ddp._modules["module"] = _StandIn(module, _divided(self.found, scale), like)
        try:
            with torch.enable_grad():
                return DistributedDataParallel.forward(self.ddp)
        finally:
            self.ddp._modules["module"] = module


class _StandIn(nn.Module):
    """In a module's place for one pass: an output that has the given gradients, and the module's buffers to send."""

    def __init__(self, module: nn.Module, gradients: dict[Tensor, Tensor], like: Tensor) -> None:
        super().__init__()
        self.named_buffers = module.named_buffers  # type: ignore[method-assign]
        self.gradients, self.like = gradients, like

    def forward(self) -> Tensor:
        return zero_with_gradients(self.gradients, self.like)


def _divided(found: GradientSum, scale: float) -> dict[Tensor, Tensor]:
    """The gradients, which are then no longer kept here."""
    gradients, found.by_leaf = found.by_leaf, {}
    return gradients if scale == 1 else {leaf: gradient / scale for leaf, gradient in gradients.items()}


def _refuse_disagreement(rows: list[list[int]], what: str) -> None:
    failed, totals, fingerprints, strengths, weights, handing = (list(column) for column in zip(*rows, strict=True))
    if any(failed):
        ranks = ", ".join(str(rank) for rank, flag in enumerate(failed) if flag)
        raise InputError(f"rank {ranks} raised an error in this step; its own message says why, and every rank stops.")
    switch = "or pass check_ranks=False."
    if len(set(fingerprints)) > 1:
        raise InputError(
            f"the ranks have batches of {_listed(totals)} examples (or in different portions); the penalty needs equal "
            f"ones. Use drop_last=True in the loader and the sampler, {switch}"
        )
    for name, column in (("strength", strengths), ("weight", weights)):
        if len(set(column)) > 1:
            values = _listed([_number(bits) for bits in column])
            raise InputError(f"the ranks have {name} {values}; expected one value. Use the same on all, {switch}")
    if len(set(handing)) > 1:
        raise InputError(
            f"{_listed(handing)} wrapped models of the ranks got {what}; expected the same on all. "
            "Make the closure reach the same models on every rank."
        )


def _ignore(size: int) -> None: ...


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(str(value) for value in values)


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _number(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def lengths(value: Any) -> Iterator[int]:
    """The lengths of the tensors in nested arguments."""
    return (len(tensor) for tensor in tensors_in(value) if tensor.dim())
