"""The update of `torch.optim.SGD` for a parameter whose gradient is known by its factors, G = LᵀR, and never formed.

    d = G + μ W
    without momentum        W ← W − ε d                                   one product, into W
    heavy ball              V ← β V + (1 − τ) d,   W ← W − ε V            one product, into V
    Nesterov                V as above,            W ← W − ε (d + β V)    two products, into V and into W

V starts as d, without dampening τ, as in `torch.optim.SGD`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SLAB = 2**20  # elements of V that stay in the processor's cache between the product and the step that reads it


@dataclass(frozen=True)
class Gradient:
    """A gradient LᵀR + `rest`, either of which may be missing."""

    left: Tensor | None = None
    right: Tensor | None = None
    rest: Tensor | None = None

    def add_to(self, target: Tensor, *, keep: float, times: float, rows: slice = slice(None)) -> None:
        """target ← keep · target + times · gradient, on some rows of a matrix or on all of a tensor."""
        part = target[rows] if self.left is not None else target
        if self.left is not None and self.right is not None:
            left, right = self.left[:, rows].to(target.dtype), self.right.to(target.dtype)
            part.addmm_(left.T, right, beta=keep, alpha=times)
        elif keep == 0:
            part.zero_()
        elif keep != 1:
            part.mul_(keep)
        if self.rest is not None:
            part.add_(self.rest if self.left is None else self.rest[rows], alpha=times)


def sgd_update(parameter: Tensor, gradient: Gradient, group: Mapping[str, Any], state: dict[str, Any]) -> None:
    """One step of SGD with the group's `lr`, `weight_decay`, `momentum`, `dampening` and `nesterov`, in place."""
    rate, decay, momentum = (float(group[name]) for name in ("lr", "weight_decay", "momentum"))
    if momentum == 0:
        gradient.add_to(parameter, keep=1 - rate * decay, times=-rate)
        return
    buffer = state.get("momentum_buffer")
    keep, fresh = (momentum, 1 - float(group["dampening"])) if buffer is not None else (0.0, 1.0)
    if buffer is None:
        buffer = state["momentum_buffer"] = torch.empty_like(parameter, memory_format=torch.preserve_format)
    for rows in _slabs(parameter, gradient):
        gradient.add_to(buffer, keep=keep, times=fresh, rows=rows)
        velocity, weights = (buffer[rows], parameter[rows]) if gradient.left is not None else (buffer, parameter)
        if decay:
            velocity.add_(weights, alpha=fresh * decay)
        if not group["nesterov"]:
            weights.add_(velocity, alpha=-rate)
        else:
            gradient.add_to(parameter, keep=1 - rate * decay, times=-rate, rows=rows)
            weights.add_(velocity, alpha=-rate * momentum)


def _slabs(parameter: Tensor, gradient: Gradient) -> list[slice]:
    """Rows of a large matrix in parts: V is read while it is still in the cache."""
    if gradient.left is None:
        return [slice(None)]
    height = max(1, SLAB // parameter.shape[1])
    return [slice(start, start + height) for start in range(0, parameter.shape[0], height)]
