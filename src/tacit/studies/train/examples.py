"""The examples that a fleet trains and is judged on, on its device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tacit.studies.data import augment
from tacit.studies.data.facts import DATASETS, Data
from tacit.studies.describe.spec import RunSpec


class Inputs(Protocol):
    """Inputs of a dataset: by number, augmented if asked, or a range of them as they are."""

    def __len__(self) -> int: ...
    def take(self, examples: Tensor, crops: augment.Crops | None = None) -> Tensor: ...
    def between(self, start: int, stop: int) -> Tensor: ...


@dataclass(frozen=True)
class Rows:
    """Inputs that are plain rows of numbers, ready as they are."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def take(self, examples: Tensor, crops: augment.Crops | None = None) -> Tensor:
        assert crops is None  # RunSpec refuses augmentation without images
        return self.values.index_select(0, examples)

    def between(self, start: int, stop: int) -> Tensor:
        return self.values[start:stop]


@dataclass(frozen=True)
class Examples:
    """Inputs and class numbers."""

    inputs: Inputs
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


def prepare(data: Data, run: RunSpec, *, device: torch.device, dtype: torch.dtype) -> tuple[Examples, Examples]:
    """The first `train_size` and `test_size` examples of a dataset, as this run sees them."""
    facts = DATASETS[run.dataset]
    made: Callable[..., Inputs]
    if len(facts.shape) == 3:
        made = lambda raw: augment.prepare(raw, facts, size=run.image_size, device=device, dtype=dtype)  # noqa: E731
    else:
        made = lambda raw: Rows(torch.tensor(raw, dtype=dtype, device=device))  # noqa: E731
    return (
        Examples(made(data.train_inputs[: run.train_size]), _targets(data.train_targets[: run.train_size], device)),
        Examples(made(data.test_inputs[: run.test_size]), _targets(data.test_targets[: run.test_size], device)),
    )


def _targets(values: object, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)
