"""The examples that a fleet trains and is judged on, on its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tacit._errors import InputError
from tacit._random import generator
from tacit.studies.data import augment, images
from tacit.studies.data.facts import Data, Facts
from tacit.studies.data.signals import Signals
from tacit.studies.describe.spec import AMOUNTS, RunSpec


class Inputs(Protocol):
    """Inputs of a dataset: by number, changed by an augmentation if one is given, or a range of them as they are."""

    def __len__(self) -> int: ...
    def take(self, examples: Tensor, change: object = None) -> Tensor: ...
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
    if run.augmentation in AMOUNTS and len(facts.shape) != 1:
        raise InputError(f"augmentation {run.augmentation} is for signals; {run.dataset} has shape {facts.shape}.")

    def made(raw: np.ndarray, *, most_shift: int = 0) -> Inputs:
        return standardised(raw, facts, size=run.image_size, most_shift=most_shift, device=device, dtype=dtype)

    most_shift = int(amount(run)) if run.augmentation == "shift" else 0

    train, test = slice(run.train_size), slice(run.test_size)
    labels = with_noise(torch.tensor(data.train_targets[train], dtype=torch.long), run.label_noise, facts.classes)
    return (
        Examples(made(data.train_inputs[train], most_shift=most_shift), labels.to(device)),
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
    most_shift: int = 0,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    """Stored inputs as runs see them: images standardised by the facts, at `size`; signals as they are."""
    if facts.standardisation != "none":
        return images.prepare(raw, facts, size=size, device=device, dtype=dtype)
    return Signals.prepare(torch.tensor(raw, dtype=dtype, device=device), most_shift=most_shift)


def augmentation(runs: Sequence[RunSpec], train: Examples, facts: Facts, *, device: torch.device) -> augment.Change:
    """What is done to the minibatch at each position; runs of one fleet share the kind and the amount."""
    run, seeds = runs[0], [run.seed for run in runs]
    shape = facts.shape
    if run.augmentation == "crop_flip":
        padding = images.padding(run.image_size, shape[-1])
        return augment.crops_and_flips(seeds, batch_size=run.batch_size, padding=padding)
    sizes = {"batch_size": run.batch_size, "batches": run.batches_per_epoch}
    if run.augmentation == "shift":
        return augment.shifts(seeds, **sizes, most=int(amount(run)), device=device)
    if run.augmentation == "noise":
        like = train.inputs.between(0, 1)
        return augment.noise(seeds, **sizes, features=shape[0], deviation=amount(run), like=like)
    return augment.no_change


def amount(run: RunSpec) -> float:
    """Samples of a shift, or the standard deviation of noise."""
    return AMOUNTS[run.augmentation] if run.augmentation_amount is None else run.augmentation_amount


def _targets(values: object, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)
