"""Signals on the device: rows of numbers, shifted or given noise minibatch by minibatch.

A shift is the crop of a signal: the samples move in a circle, by −s … s places. All shifted copies are kept, so that a
shifted minibatch is one gather like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shifts:
    """For each row of a minibatch, which of the shifts −s … s it gets: 0 is −s, 2s is s."""

    number: Tensor


@dataclass(frozen=True)
class Noise:
    """What is added to each row of a minibatch."""

    values: Tensor


@dataclass(frozen=True)
class Signals:
    """Rows (N, samples), and with `most_shift` = s all their shifts ((2s + 1)·N, samples), −s first."""

    values: Tensor
    shifted: Tensor | None = None

    @classmethod
    def prepare(cls, values: Tensor, *, most_shift: int = 0) -> Signals:
        if not most_shift:
            return cls(values)
        return cls(values, torch.cat([values.roll(by, dims=1) for by in range(-most_shift, most_shift + 1)]))

    def __len__(self) -> int:
        return len(self.values)

    def take(self, examples: Tensor, change: object = None) -> Tensor:
        """The rows of these numbers, shifted or with noise if `change` says so."""
        if isinstance(change, Shifts):
            assert self.shifted is not None
            return self.shifted.index_select(0, examples + len(self.values) * change.number)
        rows = self.values.index_select(0, examples)
        return rows + change.values if isinstance(change, Noise) else rows

    def between(self, start: int, stop: int) -> Tensor:
        return self.values[start:stop]
