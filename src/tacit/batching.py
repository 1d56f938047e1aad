"""Which examples make up each minibatch of an epoch, and in which order the minibatches come."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from numbers import Integral
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from tacit._util.errors import InputError
from tacit._util.random_generators import generator

Order = Literal["shuffled", "fixed", "mirrored", "shuffle_once", "with_replacement"]
Remainder = Literal["refuse", "drop", "keep"]
ORDERS: tuple[str, ...] = get_args(Order)
REMAINDERS: tuple[str, ...] = get_args(Remainder)


def batches_per_epoch(train_size: int, batch_size: int, *, remainder: Remainder = "refuse") -> int:
    """m, the number of updates per epoch.

    m = N/B when B divides N. Otherwise the choice must be explicit: `drop` leaves the last N % B examples of an
    epoch out (m = ⌊N/B⌋), `keep` makes a smaller last batch of them (m = ⌈N/B⌉).

    >>> batches_per_epoch(1000, 32, remainder="drop")
    31
    """
    _require_whole("train_size", train_size)
    _require_whole("batch_size", batch_size)
    if not 1 <= batch_size <= train_size:
        raise InputError(
            f"batch_size={batch_size} with train_size={train_size}; expected 1 <= batch_size <= train_size."
        )
    if remainder not in REMAINDERS:
        raise InputError(f"remainder={remainder!r} is unknown; use one of {', '.join(REMAINDERS)}.")
    left_over = train_size % batch_size
    if left_over and remainder == "refuse":
        raise InputError(
            f"train_size={train_size} is not a multiple of batch_size={batch_size}; the theory needs equal batches. "
            f"Use train_size={train_size - left_over}, or say remainder='drop' or remainder='keep'."
        )
    return train_size // batch_size + (1 if left_over and remainder == "keep" else 0)


def _require_whole(name: str, value: Any) -> None:
    if not isinstance(value, Integral):
        remedy = " Use len(dataset)." if hasattr(value, "__len__") else ""
        raise InputError(f"{name} is a {type(value).__name__}; expected a whole number.{remedy}")


def epoch_batches(
    train_size: int,
    batch_size: int,
    *,
    order: Order,
    seed: int = 0,
    epoch: int = 0,
    remainder: Remainder = "refuse",
) -> list[Tensor]:
    """The minibatches of one epoch as index tensors: a pure function of its arguments.

    - `shuffled`: a new random partition of the examples every epoch (what the paper trains with);
    - `fixed`: examples 0..N−1 in the order of the dataset, every epoch the same;
    - `shuffle_once`: one random partition, repeated in the same order every epoch;
    - `mirrored`: a new random partition every second epoch, walked there in even epochs and back in odd ones, so
      that the order's first-order effect cancels over the pair;
    - `with_replacement`: every minibatch is drawn from the whole set, independently (the SDE analogy). Within one
      minibatch examples are distinct.

    All but the last use each example at most once per epoch, exactly once unless `remainder="drop"` leaves some out.

    >>> [batch.tolist() for batch in epoch_batches(4, 2, order="fixed")]
    [[0, 1], [2, 3]]
    """
    updates = batches_per_epoch(train_size, batch_size, remainder=remainder)
    if order == "with_replacement":
        draws = generator(seed, "order", epoch)
        return [torch.randperm(train_size, generator=draws)[:batch_size] for _ in range(updates)]
    if order == "fixed":
        examples = torch.arange(train_size)
    elif order in ("shuffled", "mirrored", "shuffle_once"):
        drawn_at = {"shuffled": epoch, "mirrored": epoch - epoch % 2, "shuffle_once": 0}[order]
        examples = torch.randperm(train_size, generator=generator(seed, "order", drawn_at))
    else:
        raise InputError(f"order={order!r} is unknown; use one of {', '.join(ORDERS)}.")
    batches = list(examples.split(batch_size)[:updates])
    return batches[::-1] if order == "mirrored" and epoch % 2 else batches


def all_orders(batches: int, *, at_most: int = 8) -> Iterator[tuple[int, ...]]:
    """Every order in which `batches` minibatches can come: m! permutations, for exact means over orders.

    >>> len(list(all_orders(4)))
    24
    """
    if batches < 1:
        raise InputError(f"batches={batches}; expected at least one minibatch.")
    if batches > at_most:
        raise InputError(
            f"{batches} minibatches have {math.factorial(batches)} orders; expected at most {at_most} minibatches. "
            "Use sampled orders instead."
        )
    return itertools.permutations(range(batches))


class BatchSampler:
    """`batch_sampler=` for a torch DataLoader: any order of `epoch_batches`, one epoch per iteration.

    The epoch is over when its last minibatch has been handed out: an iteration that stops early, a look at the first
    minibatch say, leaves `epoch` where it was, and the next one starts it again. Worker processes fetch ahead, so
    with them say `set_epoch` after an early stop.

    >>> sampler = BatchSampler(4, 2, order="mirrored", seed=1)
    >>> there, back = list(sampler), list(sampler)
    >>> there == back[::-1]
    True
    """

    def __init__(
        self,
        train_size: int,
        batch_size: int,
        *,
        order: Order = "shuffled",
        seed: int = 0,
        remainder: Remainder = "refuse",
    ) -> None:
        self.length = batches_per_epoch(train_size, batch_size, remainder=remainder)
        if order not in ORDERS:
            raise InputError(f"order={order!r} is unknown; use one of {', '.join(ORDERS)}.")
        self.train_size, self.batch_size, self.remainder = train_size, batch_size, remainder
        self.order, self.seed, self.epoch = order, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch: for resuming."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[list[int]]:
        return self._walk(self.epoch)

    def _walk(self, epoch: int) -> Iterator[list[int]]:
        batches = epoch_batches(
            self.train_size, self.batch_size, order=self.order, seed=self.seed, epoch=epoch, remainder=self.remainder
        )
        for position, batch in enumerate(batches, start=1):
            if position == len(batches):  # not after the loop: who counts the minibatches never asks for one more
                self.epoch = epoch + 1
            yield batch.tolist()
