"""One `DistributedDataParallel` module during a step of the penalty: its passes are the worker's own, until the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tacit._util.errors import InputError
from tacit.layers.calls import tensors_in
from tacit.penalty.sink import GradientSum, zero_with_gradients


class Replica:
    """One DDP module during a step: its forward runs the bare module, its gradients are kept aside for the end."""

    def __init__(self, ddp: DistributedDataParallel, count: Callable[[int], None]) -> None:
        self.ddp, self.count = ddp, count
        self.synchronises: bool = ddp.require_backward_grad_sync
        self.gradients = GradientSum()
        self.parameters: set[Tensor] = set(ddp.module.parameters()) if self.synchronises else set()
        self.own_forward = ddp.__dict__.get("forward")
        ddp.forward = self._bare_forward  # type: ignore[method-assign]

    @property
    def will_hand_over(self) -> bool:
        return bool(self.gradients.by_leaf)

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
            if parameter.requires_grad and name not in ignored and parameter not in self.gradients.by_leaf:
                raise InputError(
                    f"parameter {name!r} got no gradient, and DistributedDataParallel waits for every parameter; "
                    "wrap the model with find_unused_parameters=True."
                )

    def restore(self) -> None:
        if self.own_forward is None:
            self.ddp.__dict__.pop("forward", None)
        else:
            self.ddp.forward = self.own_forward  # type: ignore[method-assign]

    def hand_over(self, like: Tensor, scale: float | Tensor) -> Tensor:
        """A zero from one forward pass of DDP around a stand-in whose gradient is the one found, divided by `scale`."""
        module = self.ddp.module
        # No forward pass of the step broadcast buffers; this one does, so that the next step starts from rank 0's.
        self.ddp.require_forward_param_sync = True
        self.ddp._modules["module"] = _StandIn(module, self.gradients.divided(scale), like)
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


def lengths(value: Any) -> Iterator[int]:
    """The lengths of the tensors in nested arguments."""
    return (len(tensor) for tensor in tensors_in(value) if tensor.dim())
