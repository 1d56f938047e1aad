"""The random changes of a minibatch: crops and flips of images, shifts and noise of signals.

Each is a pure function of (seed, position), so a minibatch can be made again: n-step SGD stays on one augmented
minibatch, C_reg sees it again, and a resumed run goes on as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tacit._random import generator
from tacit.studies.data.images import draw_crops
from tacit.studies.data.signals import Noise, Shifts

Change = Callable[[int], object]  # minibatch position → what `take` is given


def no_change(position: int) -> None:
    return None


def crops_and_flips(seeds: Sequence[int], *, batch_size: int, padding: int) -> Change:
    return lambda position: draw_crops(batch_size, seeds, padding=padding, position=position)


class PerEpoch:
    """Draws of a whole epoch at once: one generator per run and epoch instead of one per minibatch."""

    def __init__(self, seeds: Sequence[int], batches: int, draw: Callable[[torch.Generator], Tensor]) -> None:
        self.seeds, self.batches, self.draw = tuple(seeds), batches, draw
        self.epoch, self.drawn = -1, torch.empty(0)

    def at(self, position: int) -> Tensor:
        """The draws of all runs for one minibatch, (runs · B, …)."""
        epoch, within = divmod(position, self.batches)
        if epoch != self.epoch:
            drawn = [self.draw(generator(seed, "augment", epoch)) for seed in self.seeds]  # each (m, B, …)
            self.epoch, self.drawn = epoch, torch.stack(drawn, dim=1).flatten(1, 2)
        return self.drawn[within]


def shifts(seeds: Sequence[int], *, batch_size: int, batches: int, most: int, device: torch.device) -> Change:
    """Circular shifts by −most … most samples, each as likely as the others."""
    draws = PerEpoch(
        seeds, batches, lambda drawn: torch.randint(2 * most + 1, (batches, batch_size), generator=drawn).to(device)
    )
    return lambda position: Shifts(draws.at(position))


def noise(
    seeds: Sequence[int], *, batch_size: int, batches: int, features: int, deviation: float, like: Tensor
) -> Change:
    """Independent Gaussian noise on every sample; drawn in float32 whatever the precision of the run."""
    draws = PerEpoch(
        seeds,
        batches,
        lambda drawn: (deviation * torch.randn((batches, batch_size, features), generator=drawn)).to(like),
    )
    return lambda position: Noise(draws.at(position))
