"""The program of a fleet of MLPs or of convolutions on signals: `batched_mlp` behind the protocol of `program`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.studies.data.facts import Facts
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train import batched_conv1d, batched_mlp
from tacit.studies.train.batched_gradients import BatchedGradients
from tacit.studies.train.batched_optimizers import BatchedOptimizer
from tacit.studies.train.models import signal_length
from tacit.studies.train.packing import trains_alone


def _initialise(runs: Sequence[RunSpec], facts: Facts, *, dtype: torch.dtype) -> batched_mlp.Layers:
    first, seeds = runs[0], [run.seed for run in runs]
    if first.model == "conv1d":
        return batched_conv1d.initialise(
            signal_length(facts), width=first.width, depth=first.depth, classes=facts.classes, seeds=seeds, dtype=dtype
        )
    features = facts.features if first.image_size is None else facts.shape[0] * first.image_size**2
    return batched_mlp.initialise([features, *[first.width] * first.depth, facts.classes], seeds, dtype=dtype)


def is_fused(run: RunSpec) -> bool:
    """Whether `batched_mlp.update` makes the whole update, in which no gradient is formed: the fastest where it can."""
    return run.optimizer == "sgd" and not (
        run.sam_radius or run.relative or run.micro_batch_size or run.penalty_until < 1
    )


class Batched:
    """Many models of one shape; every tensor has a leading run axis."""

    evaluation_rows = 250

    def __init__(self, runs: Sequence[RunSpec], facts: Facts, *, device: torch.device, dtype: torch.dtype) -> None:
        first, classes = runs[0], facts.classes
        self.count, self.device, self.dtype = len(runs), device, dtype
        self.pause_every = 1 if trains_alone(first) else 20  # a step of a large model takes a while
        self.layers = _initialise(runs, facts, dtype=dtype).to(device)
        smoothing = first.label_smoothing
        self.targets = torch.eye(classes, dtype=dtype, device=device) * (1 - smoothing) + smoothing / classes
        self.strengths = self._per_run([run.strength for run in runs])
        self.weight_decays = self._per_run([run.weight_decay for run in runs])
        # AdamW's is no part of a loss.
        self.decays_in_loss = self.weight_decays if first.optimizer != "adamw" else torch.zeros_like(self.weight_decays)
        self.penalized, self.decay_penalized = first.strength > 0, first.weight_decay_penalized
        self.decayed = any(run.weight_decay > 0 for run in runs)
        self.updates = 0
        self.gradients = BatchedGradients(runs, weight_decay=self.weight_decays)
        self.optimizer = BatchedOptimizer(first, self.layers.tensors(), weight_decay=self.weight_decays)
        self.fused = is_fused(first)
        self._numbers: list[float] = []
        self._rates: batched_mlp.Rates | None = None

    def update(self, inputs: Tensor, labels: Tensor, *, rates: Sequence[float]) -> Tensor:
        rows, targets = self._minibatch(inputs, labels)
        found = self._rates_of(list(rates))
        self.updates += 1
        if self.fused:
            return batched_mlp.update(self.layers, rows, targets, rates=found)
        logits, gradients = self.gradients(self.layers, rows, targets, updates=self.updates - 1)
        self.optimizer.step(gradients, rate=found.learning_rate, number=self.updates)
        return logits

    def outputs(self, inputs: Tensor) -> Tensor:
        return batched_mlp.outputs(self.layers, inputs.reshape(len(inputs), -1).expand(self.count, -1, -1))

    def squared_gradient_norms(self, inputs: Tensor, labels: Tensor) -> Tensor:
        rows, targets = self._minibatch(inputs, labels)
        found = batched_mlp.squared_gradient_norm(self.layers, rows, targets, weight_decay=self.decays_in_loss)
        return found.cpu().double()

    def decay_losses(self) -> Tensor:
        halves = batched_mlp.half_squared_norm(self.layers).cpu().double()
        return self.decays_in_loss.flatten().cpu().double() * halves

    def tensors(self) -> list[Tensor]:
        return [*self.layers.tensors(), *self.optimizer.tensors(), *self.gradients.tensors()]

    def weights(self, number: int) -> dict[str, Tensor]:
        named = batched_conv1d.weights if self.layers.links else batched_mlp.weights
        return named(self.layers, number)

    def resumed_at(self, updates: int) -> None:
        self.updates = updates

    def clear(self, number: int) -> None:
        for tensor in self.tensors():
            tensor[number].zero_()

    def _minibatch(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        rows = inputs.reshape(self.count, len(inputs) // self.count, -1)
        return rows, self.targets.index_select(0, labels).view(*rows.shape[:2], -1)

    def _rates_of(self, numbers: list[float]) -> batched_mlp.Rates:
        """Made anew only when a schedule, or a run that diverged, changes them."""
        if self._rates is None or numbers != self._numbers:
            self._numbers = numbers
            self._rates = batched_mlp.Rates(
                learning_rate=self._per_run(numbers),
                strength=self.strengths,
                weight_decay=self.weight_decays,
                penalized=self.penalized,
                decayed=self.decayed,
                decay_penalized=self.decay_penalized,
            )
        return self._rates

    def _per_run(self, numbers: list[float]) -> Tensor:
        return torch.tensor(numbers, dtype=self.dtype, device=self.device).view(-1, 1, 1)
