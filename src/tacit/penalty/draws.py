"""Rows and micro-batches drawn from a batch: functions of seed, worker and call, so that only counters are stored.

A step whose penalty is that of q of m micro-batches, weighted by 1/q, has the mean of all m over its draws:

    g = ∇Ĉ_B + (λ/2) (1/q) Σ over the q drawn of Hₖ gₖ
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tacit._errors import InputError
from tacit._random import generator
from tacit.penalty.pieces import Cut, Piece, count_rows, row_tensors, with_tensors
from tacit.penalty.workers.wrappers import worker_number


def drawn_rows(rows: int, count: int, *, seed: int, worker: int = 0, call: int) -> Tensor:
    """`count` of the numbers 0 … rows − 1 without repetition, in random order: the start of a permutation."""
    return torch.randperm(rows, generator=generator(seed, "draw", worker, call))[:count]


def rows_of(batch: tuple[Any, ...], numbers: Tensor) -> tuple[Any, ...]:
    """The batch of these rows; nothing waits for the device."""
    tensors = row_tensors(batch)
    if any(tensor.device.type == "cuda" for tensor in tensors):
        numbers = numbers.pin_memory()
    there = {device: numbers.to(device, non_blocking=True) for device in {tensor.device for tensor in tensors}}
    made: tuple[Any, ...] = with_tensors(batch, [_select(tensor, there[tensor.device]) for tensor in tensors])
    return made


def _select(tensor: Tensor, numbers: Tensor) -> Tensor:
    if not tensor.requires_grad:
        return tensor.index_select(0, numbers)
    rows = tensor.unbind()  # a graph that keeps no tensors, so that several passes may go through it
    return torch.stack([rows[number] for number in numbers.tolist()])


def cut_batch(
    batch: tuple[Any, ...], size: int | None, sampled: int | None, *, penalised: bool, caller: str, seed: int, call: int
) -> Cut:
    """The batch and the pieces of it that one step penalises.

    Without a size, or a penalty, it is one piece, and without `sampled` all of its micro-batches. Otherwise they are so
    many of a random permutation of the rows, each with its share of the penalty. Rows that the permutation leaves over
    are not drawn; a batch of one micro-batch, or of fewer rows, is that one.
    """
    if size is not None and not batch:
        raise InputError(
            f"micro_batch_size={size} but got no batch; "
            f"expected {caller}(closure, inputs, targets) with a closure of two arguments."
        )
    if size is None or not penalised:
        return Cut.whole_only(batch)
    if sampled is None:
        return Cut.of(batch, size)
    rows = count_rows(batch)
    if rows <= size:
        return Cut.whole_only(batch)
    parts = rows // size
    count = min(sampled, parts)
    numbers = drawn_rows(rows, count * size, seed=seed, worker=worker_number(), call=call)
    chosen = [Piece(rows_of(batch, each), 1 / count) for each in numbers.split(size)]
    return Cut(Piece(batch), chosen, size=size, parts=parts)


def part_is_drawn(number: int, parts: int, count: int, *, seed: int, step: int) -> bool:
    """Whether micro-batch `number` of the `parts` that one step accumulates is among the `count` drawn ones."""
    return number in drawn_rows(parts, count, seed=seed, worker=worker_number(), call=step).tolist()
