"""Sequences of minibatches: every order, sampled orders, every partition, every draw with replacement.

A sequence is a list of steps; step i holds the examples of the i-th minibatch of each sequence, one row each.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit._util.errors import InputError
from tacit._util.random_generators import generator
from tacit.batching import all_orders
from tacit.theory.landscape import Landscape

ENUMERATED_BATCHES = 6  # 720 orders; one more is 5040 walks per learning rate
ENUMERATED_SEQUENCES = 5000


@dataclass(frozen=True)
class Orders:
    """Rows of minibatch indices; exact when every order is there, else sampled in pairs of an order and its reverse."""

    rows: Tensor
    exact: bool

    def __str__(self) -> str:
        return f"all {len(self.rows)} orders" if self.exact else f"{len(self.rows)} sampled orders, in mirrored pairs"


def orders_of(batches: int, *, samples: int = 400, seed: int = 0, at_most: int = ENUMERATED_BATCHES) -> Orders:
    """All m! orders for small m; otherwise sampled ones, with a warning that says so.

    Samples come as an order followed by its reverse: the O(ε²) effect of the order cancels within a pair, so the
    noise of the sampled mean is O(ε³) instead of O(ε²).

    >>> str(orders_of(3))
    'all 6 orders'
    """
    if batches <= at_most:
        return Orders(torch.tensor(list(all_orders(batches)), dtype=torch.long), exact=True)
    if samples < 2:
        raise InputError(f"samples={samples}; expected at least 2, an order and its reverse.")
    warnings.warn(
        f"{batches} minibatches have {batches}! = {math.factorial(batches):.2g} orders: the mean is taken over "
        f"{samples // 2 * 2} sampled ones, in mirrored pairs, and has a standard error.",
        stacklevel=2,
    )
    draws = generator(seed, "order")
    there = torch.stack([torch.randperm(batches, generator=draws) for _ in range(samples // 2)])
    return Orders(torch.stack([there, there.flip(1)], dim=1).reshape(-1, batches), exact=False)


def steps_of(scape: Landscape, rows: Tensor) -> list[Tensor]:
    """The steps of the given orders of the landscape's own minibatches."""
    if not scape.equal_batches:
        sizes = sorted({len(batch) for batch in scape.batches})
        raise InputError(
            f"minibatches have sizes {sizes}; expected one size to walk all orders together. "
            "Drop the remainder, or walk one order at a time with `sgd`."
        )
    stack = torch.stack(scape.batches)
    return [stack[column] for column in rows.T]


def sequences_with_replacement(batches: int, *, length: int) -> Tensor:
    """Every sequence of `length` draws from the minibatches: m^length rows, each equally likely."""
    if batches**length > ENUMERATED_SEQUENCES:
        raise InputError(
            f"{batches} minibatches have {batches**length} sequences of {length} draws with replacement; "
            f"expected at most {ENUMERATED_SEQUENCES}. Use fewer minibatches."
        )
    return torch.tensor(list(itertools.product(range(batches), repeat=length)), dtype=torch.long)


def partition_count(train_size: int, sizes: Sequence[int]) -> int:
    """How many ordered partitions of the examples into minibatches of these sizes there are; the rest is left out."""
    left, count = train_size, 1
    for size in sizes:
        count *= math.comb(left, size)
        left -= size
    return count


def steps_of_all_partitions(train_size: int, sizes: Sequence[int]) -> list[Tensor]:
    """Every way to deal the examples into minibatches of these sizes, in order: one step per minibatch.

    >>> [len(step) for step in steps_of_all_partitions(4, (2, 2))]
    [6, 6]
    """
    if sum(sizes) > train_size or min(sizes) < 1:
        raise InputError(f"minibatch sizes {tuple(sizes)} do not fit into train_size={train_size}.")
    count = partition_count(train_size, sizes)
    if count > ENUMERATED_SEQUENCES:
        raise InputError(f"{count} partitions are too many to enumerate; expected at most {ENUMERATED_SEQUENCES}.")
    dealt = list(_deal(tuple(range(train_size)), tuple(sizes)))
    return [torch.tensor([parts[i] for parts in dealt], dtype=torch.long) for i in range(len(sizes))]


def _deal(left: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    if not sizes:
        yield ()
        return
    for first in itertools.combinations(left, sizes[0]):
        rest = tuple(example for example in left if example not in first)
        for others in _deal(rest, sizes[1:]):
            yield (first, *others)
