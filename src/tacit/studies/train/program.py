"""What a fleet asks of its models: one small protocol, two programs behind it.

`batched_program.Batched` is many MLPs with a run axis, `module_program.Single` is one `nn.Module`. Which one trains a
run is a function of the run alone, so the same study always packs and rounds the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tacit.studies.data.facts import Facts
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train.batched_program import Batched
from tacit.studies.train.module_program import Single
from tacit.studies.train.packing import has_run_axis


class Program(Protocol):
    """The models of a fleet, updated in place. Inputs of a minibatch are those of all runs, one after the other."""

    pause_every: int  # minibatches between two calls of `pause`
    evaluation_rows: int  # rows per forward pass of an evaluation: activations stay in the cache

    def update(self, inputs: Tensor, labels: Tensor, *, rates: Sequence[float]) -> Tensor:
        """One update of every run on its own B rows, with its own rate; the logits (runs, B, classes) before it."""

    def outputs(self, inputs: Tensor) -> Tensor:
        """Logits (runs, rows, classes) of every run on the same rows."""

    def squared_gradient_norms(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """‖∇Ĉ + μω‖² of a minibatch, per run, in float64 on the CPU."""

    def decay_losses(self) -> Tensor:
        """(μ/2)‖ω‖² per run, in float64 on the CPU."""

    def tensors(self) -> list[Tensor]:
        """Everything that training changes, as it is in memory."""

    def weights(self, number: int) -> dict[str, Tensor]:
        """The parameters and buffers of one run, by their names in the model that `module_program.build` makes."""

    def resumed_at(self, updates: int) -> None:
        """Told after a restore, when `tensors` are in place, how many updates were made."""

    def clear(self, number: int) -> None:
        """Zeros for a run that diverged: nothing reads it again, and infinities are kept out of the arithmetic."""


def make(runs: Sequence[RunSpec], facts: Facts, *, device: torch.device, dtype: torch.dtype) -> Program:
    """The program for these runs, each model where its own seed puts it."""
    if has_run_axis(runs[0]):
        return Batched(runs, facts, device=device, dtype=dtype)
    return Single(runs, facts, device=device, dtype=dtype)
