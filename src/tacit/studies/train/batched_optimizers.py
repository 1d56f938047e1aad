"""The optimizers of `optimizers` on tensors with a run axis, each run with its own rate and weight decay."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.studies.describe.spec import RunSpec

ADAM_BETAS, ADAM_FLOOR = (0.9, 0.999), 1e-8  # torch's defaults


class BatchedOptimizer:
    """One update of every run, as torch.optim's SGD, Adam and AdamW make it.

    Weight decay is part of the gradients that it gets; AdamW's own acts here.
    """

    def __init__(self, run: RunSpec, parameters: Sequence[Tensor], *, weight_decay: Tensor) -> None:
        self.run, self.parameters, self.weight_decay = run, list(parameters), weight_decay
        self.averages = {"sgd": 0, "momentum": 1, "nesterov": 1, "adam": 2, "adamw": 2}[run.optimizer]
        # Momentum's first buffer is the first gradient in torch: β · 0 + g gives the same bits.
        self.state = [[torch.zeros_like(each) for each in self.parameters] for _ in range(self.averages)]

    def tensors(self) -> list[Tensor]:
        return [tensor for part in self.state for tensor in part]

    def step(self, gradients: list[Tensor], *, rate: Tensor, number: int) -> None:
        """Update `number`, counted from 1. The gradients may be changed."""
        if self.run.optimizer == "adamw":
            kept = 1 - rate * self.weight_decay
            for parameter in self.parameters:
                parameter.mul_(kept)
        if self.averages == 2:
            gradients, rate = self._adam(gradients, number), rate / (1 - ADAM_BETAS[0] ** number)
        elif self.averages == 1:
            gradients = self._momentum(gradients)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.addcmul_(gradient, rate, value=-1)

    def _momentum(self, gradients: list[Tensor]) -> list[Tensor]:
        (buffers,) = self.state
        torch._foreach_mul_(buffers, self.run.momentum_used)
        torch._foreach_add_(buffers, gradients)
        if self.run.optimizer == "momentum":
            return buffers
        torch._foreach_add_(gradients, buffers, alpha=self.run.momentum_used)
        return gradients

    def _adam(self, gradients: list[Tensor], number: int) -> list[Tensor]:
        (first, second), (a, b) = self.state, ADAM_BETAS
        torch._foreach_lerp_(first, gradients, 1 - a)
        torch._foreach_mul_(second, b)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - b)
        scale = torch._foreach_sqrt(second)
        torch._foreach_div_(scale, (1 - b**number) ** 0.5)
        torch._foreach_add_(scale, ADAM_FLOOR)
        return list(torch._foreach_div(first, scale))
