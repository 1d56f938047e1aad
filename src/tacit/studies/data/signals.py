"""Signals on the device: rows of numbers, shifted minibatch by minibatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit._util.random_generators import generator


@dataclass(frozen=True)
class Signals:
    """Rows (N, samples)."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def take(self, examples: Tensor) -> Tensor:
        return self.values.index_select(0, examples)

    def between(self, start: int, stop: int) -> Tensor:
        return self.values[start:stop]


def shifts(
    signals: Signals, seeds: Sequence[int], *, batch_size: int, batches: int, most: int
) -> Callable[[Tensor, int], Tensor]:
    """(examples, position) → rows that are moved in a circle by −most … most samples, each as likely as the others.

    All shifted copies are kept, so that a shifted minibatch is one gather like any other.
    """
    values = signals.values
    shifted = torch.cat([values.roll(by, dims=1) for by in range(-most, most + 1)])

    def draw(draws: torch.Generator) -> Tensor:
        return torch.randint(2 * most + 1, (batches, batch_size), generator=draws).to(values.device)

    drawn = draws_by_position(seeds, batches, draw)
    return lambda examples, position: shifted.index_select(0, examples + len(values) * drawn(position))


def draws_by_position(
    seeds: Sequence[int], batches: int, draw: Callable[[torch.Generator], Tensor]
) -> Callable[[int], Tensor]:
    """position → the draws of all runs for its minibatch, (runs · B, …): one generator per run and epoch."""
    epoch, drawn = -1, torch.empty(0)

    def at(position: int) -> Tensor:
        nonlocal epoch, drawn
        if epoch != position // batches:
            epoch = position // batches
            each = [draw(generator(seed, "augment", epoch)) for seed in seeds]  # (m, B, …)
            drawn = torch.stack(each, dim=1).flatten(1, 2)
        return drawn[position % batches]

    return at
