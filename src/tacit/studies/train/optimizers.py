"""Optimizers of a study beyond plain SGD: torch's own, behind a name.

The rate of each update is set by the training loop, so a schedule acts on all of them alike.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from tacit.studies.describe.spec import RunSpec


def make_optimizer(run: RunSpec, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """`momentum` and `nesterov` are torch.optim.SGD's; weight decay is the training loop's, AdamW's aside."""
    given = list(parameters)
    if run.optimizer in ("momentum", "nesterov"):
        return torch.optim.SGD(given, lr=0.0, momentum=run.momentum_used, nesterov=run.optimizer == "nesterov")
    if run.optimizer == "adam":
        return torch.optim.Adam(given, lr=0.0)
    assert run.optimizer == "adamw"
    return torch.optim.AdamW(given, lr=0.0, weight_decay=run.weight_decay)


def step(optimizer: torch.optim.Optimizer, gradients: Iterable[Tensor | None], *, rate: float) -> None:
    """One update with these gradients and this rate."""
    (group,) = optimizer.param_groups
    group["lr"] = rate
    for parameter, gradient in zip(group["params"], gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def state_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Buffers and step counts of every parameter, in a fixed order; made now if no update has made them yet.

    A step on gradients of zero at rate 0 makes them; the zeros that torch starts from are put back after it, so it
    leaves no trace. (Momentum's first buffer is the first gradient: 0 · β + g gives the same bits.)
    """
    (group,) = optimizer.param_groups
    if not optimizer.state:
        kept = [parameter.detach().clone() for parameter in group["params"]]
        step(optimizer, [torch.zeros_like(parameter) for parameter in group["params"]], rate=0.0)
        with torch.no_grad():
            for parameter, value in zip(group["params"], kept, strict=True):
                parameter.copy_(value)
        for tensor in _tensors(optimizer):
            tensor.zero_()
    return _tensors(optimizer)


def _tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    (group,) = optimizer.param_groups
    states = [optimizer.state[parameter] for parameter in group["params"]]
    return [state[key] for state in states for key in sorted(state) if isinstance(state[key], Tensor)]
