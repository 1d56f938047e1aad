"""The examples that a fleet trains and is judged on, on its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tacit._util.errors import InputError
from tacit._util.random_generators import generator
from tacit.studies.data import images, signals
from tacit.studies.data.facts import Data, Facts
from tacit.studies.describe.spec import SHIFT, RunSpec


class Inputs(Protocol):
    """Inputs of a dataset as they are: by number, or a range of them."""

    def __len__(self) -> int: ...
    def take(self, examples: Tensor) -> Tensor: ...
    def between(self, start: int, stop: int) -> Tensor: ...


@dataclass(frozen=True)
class Examples:
    """Inputs and class numbers."""

    inputs: Inputs
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


def prepare(
    data: Data, run: RunSpec, facts: Facts, *, device: torch.device, dtype: torch.dtype
) -> tuple[Examples, Examples]:
    """The first `train_size` and `test_size` examples of a dataset, as this run sees them; no noise in test labels."""
    if run.train_size > facts.train_size or (run.test_size or 0) > facts.test_size:
        raise InputError(
            f"{run.dataset} has {facts.train_size} training and {facts.test_size} test examples; found train_size "
            f"{run.train_size} and test_size {run.test_size}."
        )
    if run.augmentation == "shift" and len(facts.shape) != 1:
        raise InputError(f"augmentation shift is for signals; {run.dataset} has shape {facts.shape}.")

    def made(raw: np.ndarray) -> Inputs:
        return standardised(raw, facts, size=run.image_size, device=device, dtype=dtype)

    train, test = slice(run.train_size), slice(run.test_size)
    labels = with_noise(torch.tensor(data.train_targets[train], dtype=torch.long), run.label_noise, facts.classes)
    return (
        Examples(made(data.train_inputs[train]), labels.to(device)),
        Examples(made(data.test_inputs[test]), _targets(data.test_targets[test], device)),
    )


def with_noise(labels: Tensor, share: float, classes: int) -> Tensor:
    """The labels with this share of them drawn anew from all classes: the same ones whatever a run's seed."""
    draws = generator(0, "labels", len(labels))
    chosen = torch.randperm(len(labels), generator=draws)[: round(share * len(labels))]
    noisy = labels.clone()
    noisy[chosen] = torch.randint(classes, (len(labels),), generator=draws)[: len(chosen)]
    return noisy


def standardised(
    raw: np.ndarray,
    facts: Facts,
    *,
    size: int | None = None,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    """Stored inputs as runs see them: images standardised by the facts, at `size`; signals as they are."""
    if facts.standardisation != "none":
        return images.prepare(raw, facts, size=size, device=device, dtype=dtype)
    return signals.Signals(torch.tensor(raw, dtype=dtype, device=device))


def augmented(runs: Sequence[RunSpec], inputs: Inputs, facts: Facts) -> Callable[[Tensor, int], Tensor]:
    """(examples, position) → the inputs of a minibatch as the runs train on them; a fleet shares kind and amount.

    A pure function of (seed, position), so a minibatch can be made again: n-step SGD stays on one augmented minibatch,
    C_reg sees it again, and a resumed run goes on as if it had never stopped.
    """
    run, seeds = runs[0], [run.seed for run in runs]
    if run.augmentation == "crop_flip":
        assert isinstance(inputs, images.Images)
        padding = images.padding(run.image_size, facts.shape[-1])
        return images.crops_and_flips(inputs, seeds, batch_size=run.batch_size, padding=padding)
    if run.augmentation == "shift":
        assert isinstance(inputs, signals.Signals)
        most = int(run.augmentation_amount or SHIFT)
        return signals.shifts(inputs, seeds, batch_size=run.batch_size, batches=run.batches_per_epoch, most=most)
    return lambda examples, _: inputs.take(examples)


def _targets(values: object, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)
