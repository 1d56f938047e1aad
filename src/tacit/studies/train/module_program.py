"""The program of one run: any `nn.Module`, trained by autograd, its penalty by `tacit.GradientPenalty`.

Without a penalty an update is ω ← (1 − εμ) ω − ε∇Ĉ, two passes over all parameters at once. With one it is

    ω ← ω − ε ∇( Ĉ + (μ/2)‖ω‖² + (λ/4)‖∇Ĉ + μω‖² )                                                (section 2.3)

or, with weight decay outside the penalised norm, ω ← (1 − εμ) ω − ε ∇( Ĉ + (λ/4)‖∇Ĉ‖² ). L2 covers all parameters:
weights, biases and SkipInit scalars.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._random import generator
from tacit.penalty import GradientPenalty
from tacit.studies.data.facts import DATASETS
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train import devices
from tacit.studies.train.models import mlp, wide_resnet
from tacit.studies.train.operations import count, features

EVALUATED_ACTIVATIONS = 4_500_000  # WRN-10-1 on 32x32 images: 50 rows at a time are 1.6 times as fast as 250
METHOD = "gram"  # exact; one fixed method, so that rounding never depends on the machine


def build(run: RunSpec) -> nn.Module:
    """The model of a run, where its seed puts it: float32, on the CPU."""
    facts, draws = DATASETS[run.dataset], generator(run.seed, "init")
    if run.model == "mlp":
        return nn.Sequential(nn.Flatten(), mlp([features(run), *[run.width] * run.depth, facts.classes], draws))
    return wide_resnet(run.depth, run.width, classes=facts.classes, channels=facts.shape[0], generator=draws)


class _LostError(Exception):
    """The loss of a minibatch is not finite."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits.detach()


class Single:
    """One model and its run."""

    pause_every = 1  # a step of a large model takes a while

    def __init__(self, runs: Sequence[RunSpec], *, device: torch.device, dtype: torch.dtype) -> None:
        (run,) = runs  # packing gives these models a fleet of their own
        self.run, self.device = run, device
        self.images = run.model == "wide_resnet" and devices.prefers_channels_last(device)
        self.layout = torch.channels_last if self.images else torch.contiguous_format
        self.model = build(run).to(device=device, dtype=dtype)
        self.model.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.parameters: list[Tensor] = list(self.model.parameters())
        self.evaluation_rows = min(250, max(1, EVALUATED_ACTIVATIONS // count(run).activations))
        self.penalty = GradientPenalty(self.model, run.strength, method=METHOD)

    def update(self, inputs: Tensor, labels: Tensor, *, rates: Sequence[float]) -> Tensor:
        (rate,) = rates
        inputs, run = self._laid_out(inputs), self.run
        if run.strength:
            try:
                logits, gradients = self._penalized(inputs, labels)
            except _LostError as lost:
                return self._lose(lost.logits)
        else:
            logits = self._logits(inputs)
            gradients = list(torch.autograd.grad(F.cross_entropy(logits, labels), self.parameters))
        with torch.no_grad():
            if run.weight_decay and not self._decay_in_graph:
                torch._foreach_mul_(self.parameters, 1 - rate * run.weight_decay)
            torch._foreach_add_(self.parameters, gradients, alpha=-rate)
        return logits.detach()[None]

    def outputs(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self._logits(self._laid_out(inputs))[None]

    def squared_gradient_norms(self, inputs: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(self._logits(self._laid_out(inputs)), labels)
        gradients = list(torch.autograd.grad(loss, self.parameters))
        with torch.no_grad():
            torch._foreach_add_(gradients, self.parameters, alpha=self.run.weight_decay)
            return _squares(gradients)

    def decay_losses(self) -> Tensor:
        with torch.no_grad():
            return self.run.weight_decay / 2 * _squares(self.parameters)

    def tensors(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.parameters]

    def clear(self, number: int) -> None:
        with torch.no_grad():
            torch._foreach_zero_(self.parameters)

    @property
    def _decay_in_graph(self) -> bool:
        return self.run.strength > 0 and self.run.weight_decay_penalized

    def _penalized(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, list[Tensor]]:
        seen: list[Tensor] = []
        decay = self.run.weight_decay if self._decay_in_graph else 0.0

        def loss() -> Tensor:
            logits = self._logits(inputs)
            seen.append(logits)
            value = F.cross_entropy(logits, labels)
            if decay:
                flat = torch.cat([parameter.reshape(-1) for parameter in self.parameters])  # one node for all tensors
                value = value + decay / 2 * flat.dot(flat)
            if not torch.isfinite(value):
                raise _LostError(logits)
            return value

        self.model.zero_grad(set_to_none=True)
        self.penalty.backward(loss)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        assert len(gradients) == len(self.parameters)
        return seen[0], gradients

    def _lose(self, logits: Tensor) -> Tensor:
        """A penalty needs a finite loss. Without one the run has diverged, and nothing may bring it back by chance."""
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.fill_(float("nan"))
        return torch.full_like(logits, float("nan"))[None]

    def _logits(self, inputs: Tensor) -> Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.run.precision == "bfloat16"):
            logits: Tensor = self.model(inputs)
        return logits if self.run.precision == "float32" else logits.float()

    def _laid_out(self, inputs: Tensor) -> Tensor:
        return inputs.contiguous(memory_format=self.layout) if inputs.dim() == 4 else inputs


def _squares(tensors: list[Tensor]) -> Tensor:
    """Σ‖·‖² in float64 on the CPU, shaped (1,): squares of float32 sums, tensor by tensor."""
    return torch.stack(torch._foreach_norm(tensors)).cpu().double().square().sum()[None]
