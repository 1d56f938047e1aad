"""The gradients that optimizers with a run axis get: plain, penalised on all or on drawn micro-batches, or SAM's.

    penalty     ∇Ĉ + (λ/2) · mean over micro-batches of Hₖ gₖ, all of them or `sampled` drawn ones
    SAM         ∇Ĉ(ω + ρ g/‖g‖), g the gradient of the whole minibatch or of `sam_rows` drawn rows

Weight decay adds μω, at ω. It is inside the penalised gₖ where the run says so, and never part of SAM's direction.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.penalty.pieces import drawn_rows
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train import batched_mlp
from tacit.studies.train.batched_mlp import Layers
from tacit.studies.train.batched_relative import BatchedRelative, norms


class BatchedGradients:
    """Gradients of every run on its own minibatch, each with its own λ, r, ρ and μ."""

    def __init__(self, runs: Sequence[RunSpec], *, weight_decay: Tensor) -> None:
        first = runs[0]
        self.run, self.seeds = first, [run.seed for run in runs]
        self.strength, relative, self.radius = (
            weight_decay.new_tensor([getattr(run, name) for run in runs]).view(-1, 1, 1)
            for name in ("strength", "relative", "sam_radius")
        )
        self.penalized = first.strength > 0 or first.relative > 0
        # AdamW's decay is the optimizer's own.
        self.weight_decay = weight_decay if first.optimizer != "adamw" and bool(weight_decay.any()) else None
        self.decay_inside = self.weight_decay is not None and first.weight_decay_penalized
        self.relative = BatchedRelative(relative) if first.relative else None

    def tensors(self) -> list[Tensor]:
        return [] if self.relative is None else self.relative.tensors()

    def __call__(self, layers: Layers, inputs: Tensor, targets: Tensor, *, updates: int) -> tuple[Tensor, list[Tensor]]:
        """The logits of the whole minibatch, and the gradients, after `updates` updates."""
        if self.run.sam_radius:
            moved = self._moved(layers, inputs, targets, updates)
            found, seen, _ = batched_mlp.plain_gradient(moved, inputs, targets)
            self._add_decay(found, layers)
            return seen.logits, found
        found, seen, D = batched_mlp.plain_gradient(layers, inputs, targets)
        if self.decay_inside:
            self._add_decay(found, layers)
        if self.penalized and updates < self.run.penalized_updates:
            pieces = self.run.sampled or inputs.shape[1] // (self.run.micro_batch_size or inputs.shape[1])
            if self.run.sampled:
                chosen = self._drawn(inputs, targets, self.run.sampled * (self.run.micro_batch_size or 0), updates)
                _, drawn, D = batched_mlp.plain_gradient(layers, *chosen)
            else:
                drawn = seen
            decay = self.weight_decay if self.decay_inside else None
            part = batched_mlp.penalty_gradient(layers, drawn, D, pieces=pieces, weight_decay=decay)
            strength = self.strength
            if self.relative is not None:
                strength = self.relative.now()
                self.relative.see(strength, found, part)
            for gradient, curved in zip(found, part, strict=True):
                gradient.addcmul_(curved, strength)
        if not self.decay_inside:
            self._add_decay(found, layers)
        return seen.logits, found

    def _add_decay(self, gradients: list[Tensor], layers: Layers) -> None:
        if self.weight_decay is not None:
            for gradient, parameter in zip(gradients, layers.tensors(), strict=True):
                gradient.addcmul_(parameter, self.weight_decay)

    def _moved(self, layers: Layers, inputs: Tensor, targets: Tensor, updates: int) -> Layers:
        """ω + ρ g/‖g‖; a run whose g is zero stays where it is."""
        if self.run.sam_rows:
            inputs, targets = self._drawn(inputs, targets, self.run.sam_rows, updates)
        direction, _, _ = batched_mlp.plain_gradient(layers, inputs, targets)
        norm = norms(direction)
        scale = torch.where(norm > 0, self.radius / norm, 0.0)
        moved = [tensor + scale * part for tensor, part in zip(layers.tensors(), direction, strict=True)]
        return Layers(moved[: len(layers)], moved[len(layers) :], layers.links)

    def _drawn(self, inputs: Tensor, targets: Tensor, count: int, updates: int) -> tuple[Tensor, Tensor]:
        """`count` rows of every run's minibatch, a function of (seed, update): those that a single run draws."""
        rows = inputs.shape[1]
        by_seed = {seed: drawn_rows(rows, count, seed=seed, worker=0, call=updates) for seed in {*self.seeds}}
        numbers = torch.cat([at * rows + by_seed[seed] for at, seed in enumerate(self.seeds)]).to(inputs.device)
        return tuple(  # type: ignore[return-value]
            whole.flatten(0, 1).index_select(0, numbers).view(len(self.seeds), count, -1) for whole in (inputs, targets)
        )
