"""`tacit.Relative` for a fleet: λ of every run from the norms of its steps before, by the same rule.

λ = r · mean‖∇Ĉ‖ / mean‖½ H∇Ĉ‖
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.penalty.relative import FELT, FLOOR, RISE, Relative

FACTS = Relative(1.0)  # for its defaults


class BatchedRelative:
    """λ of the next update of every run; all tensors are (runs, 1, 1)."""

    def __init__(self, ratio: Tensor) -> None:
        self.ratio = ratio
        self.gradient, self.product, self.weight = (
            torch.zeros_like(ratio) for _ in range(3)
        )  # means, and their weight
        self.applied = torch.full_like(ratio, FACTS.start)

    def tensors(self) -> list[Tensor]:
        return [self.gradient, self.product, self.weight, self.applied]

    def now(self) -> Tensor:
        wanted = (self.ratio * self.gradient / self.product).clamp(FLOOR * FACTS.start, FACTS.cap)
        known = (self.gradient > 0) | (self.product > 0)
        return torch.where(known, wanted.minimum(RISE * self.applied.clamp(min=FACTS.start)), self.applied)

    def see(self, strength: Tensor, gradient: Sequence[Tensor], product: Sequence[Tensor]) -> None:
        """Take note of a step with this λ, of its gradients and of ½ H∇Ĉ."""
        seen = norms(gradient), norms(product)
        counts = seen[0].isfinite() & seen[1].isfinite() & ((seen[0] > 0) | (seen[1] > 0))
        trusted = (self.weight > 0) | (FELT * strength * seen[1] >= self.ratio * seen[0])
        w = FACTS.smoothing
        grown = torch.where(trusted, (1 - w) * self.weight + w, 0.0)
        gain = torch.where(trusted, w / grown, 1.0)  # a step that is not trusted is forgotten at the next
        for mean, new in zip((self.gradient, self.product), seen, strict=True):
            mean.copy_(torch.where(counts, (1 - gain) * mean + gain * new, mean))
        self.weight.copy_(torch.where(counts, grown, self.weight))
        self.applied.copy_(torch.where(counts, strength, self.applied))


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """‖·‖ over all parameters of each run, (runs, 1, 1)."""
    return torch.stack([tensor.square().sum((1, 2)) for tensor in tensors]).sum(0).sqrt().view(-1, 1, 1)
