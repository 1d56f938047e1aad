"""A batch cut into micro-batches along the first axis of its tensors: all of them, or some that are drawn.

A batch is what the closure is called with: tensors, or dicts, lists, tuples, named tuples and dataclasses of them,
nested as they like. Numbers, strings, None and tensors without an axis are the same in every piece.

Draws are functions of seed, worker and call, so that only counters are stored. A step whose penalty is that of q of m
micro-batches, weighted by 1/q, has the mean of all m over its draws:

    g = ∇Ĉ_B + (λ/2) (1/q) Σ over the q drawn of Hₖ gₖ
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from tacit._util.arguments import whole_number
from tacit._util.errors import InputError
from tacit._util.random_generators import generator
from tacit.penalty.workers.wrappers import worker_number

_NO_ROWS = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, torch.Generator)
_EXPECTED = "expected tensors, or dicts, lists, tuples, named tuples or dataclasses of them"


@dataclasses.dataclass(frozen=True)
class Piece:
    """A micro-batch as the closure's arguments, and its share of the batch's rows; shares of a batch add up to 1."""

    batch: tuple[Any, ...]
    share: float = 1.0


@dataclasses.dataclass(frozen=True)
class Cut:
    """A batch, and the pieces of it that a step penalises: all of them, or some that were drawn.

    Where they were drawn, the loss's own gradient is that of the whole batch, and `parts` are as many as the batch has;
    otherwise 0.
    """

    whole: Piece
    pieces: list[Piece]
    size: int | None = None
    parts: int = 0

    @property
    def drawn(self) -> bool:
        return self.parts > 0

    @staticmethod
    def whole_only(batch: tuple[Any, ...]) -> Cut:
        whole = Piece(batch)
        return Cut(whole, [whole])

    @staticmethod
    def of(batch: tuple[Any, ...], size: int) -> Cut:
        """In micro-batches of `size` rows, the last one of those that remain."""
        return Cut(Piece(batch), pieces(batch, size), size=size)

    def all_pieces(self) -> list[Piece]:
        """Those of the whole batch, in the order of its rows."""
        return pieces(self.whole.batch, self.size) if self.drawn and self.size is not None else self.pieces


def pieces(batch: tuple[Any, ...], size: int) -> list[Piece]:
    """The batch in pieces of `size` rows; where that does not divide it, the last piece has the rows that remain."""
    length = count_rows(batch)
    if length <= size:
        return [Piece(batch)]
    parts = zip(*[tensor.split(size) for tensor in row_tensors(batch)], strict=True)
    return [Piece(with_tensors(batch, part), len(part[0]) / length) for part in parts]


def count_rows(batch: tuple[Any, ...]) -> int:
    """Of the whole batch: all its tensors have one length."""
    lengths = {len(tensor) for tensor in row_tensors(batch)}
    if len(lengths) != 1:
        problem = (
            f"the batch tensors have lengths {sorted(lengths)}" if lengths else "the batch has no tensor with rows"
        )
        raise InputError(
            f"{problem}; expected one length, that of the batch. Let the closure use what has no row for each example "
            "without taking it as an argument."
        )
    length = lengths.pop()
    if length == 0:
        raise InputError("the batch is empty; expected at least one example.")
    return length


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


def weight_of_part(part: tuple[int, int] | None, count: int | None, *, seed: int, call: int, step: int | None) -> float:
    """k/q where call j of k is drawn, 0 where it is not: the mean over the k calls is that over the q = `count` drawn.

    A step is known by its number, or by that of its first call.
    """
    if count is None:
        raise InputError(
            f"part={part}; expected it with sampled=q and without micro_batch_size, for the penalty of q of the "
            "calls that one optimizer step accumulates."
        )
    if part is None:
        raise InputError(
            f"sampled={count} without micro_batch_size; expected penalty.backward(closure, weight=1 / k, "
            "part=(j, k)) in call j of the k that one optimizer step accumulates, or a micro_batch_size."
        )
    number, parts = part
    if not 0 <= whole_number("part[0]", number, at_least=0) < whole_number("part[1]", parts, at_least=1):
        raise InputError(f"part={part}; expected (j, k) with 0 <= j < k.")
    first = call - number if step is None else step
    drawn = drawn_rows(parts, count, seed=seed, worker=worker_number(), call=first).tolist()
    return max(parts / count, 1.0) if number in drawn else 0.0


def row_tensors(batch: Any) -> list[Tensor]:
    """The tensors of a batch that have rows, in a fixed order."""
    if _plain(batch):
        return list(batch)
    tensors: list[Tensor] = []

    def see(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    _mapped(see, batch)
    return tensors


def with_tensors(batch: Any, tensors: Iterable[Tensor]) -> Any:
    """The batch with other tensors in place of its `row_tensors`, in their order."""
    if _plain(batch):
        return tuple(tensors)
    waiting = iter(tensors)
    return _mapped(lambda _: next(waiting), batch)


def _plain(batch: Any) -> bool:
    """Whether it is what most closures take, and small models feel every call on the way to: tensors with rows."""
    return type(batch) is tuple and all(
        type(entry) is Tensor and entry.layout is torch.strided and entry.dim() > 0 and not entry.is_nested
        for entry in batch
    )


def _mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same containers with `function` of every tensor that has rows; nothing given is changed."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_nested:
            raise _refused(value)
        return function(value) if value.dim() else value
    if isinstance(value, _NO_ROWS):
        return value
    try:
        return _container(value, {key: _mapped(function, entry) for key, entry in _entries(value)})
    except InputError:
        raise
    except Exception as error:  # a class of the user's may refuse to be copied or to be set
        raise _refused(value) from error


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)
    else:
        raise _refused(value)


def _container(value: Any, entries: dict[Any, Any]) -> Any:
    """A container like `value` with these entries."""
    if isinstance(value, tuple):
        made = list(entries.values())
        return value._make(made) if hasattr(value, "_make") else type(value)(made)
    if not isinstance(value, (MutableMapping, list)) and isinstance(value, Mapping):
        return entries
    new = copy.copy(value)
    for key, entry in entries.items():
        if isinstance(value, (Mapping, list)):
            new[key] = entry
        else:
            object.__setattr__(new, key, entry)  # also of a frozen dataclass
    return new


def _refused(value: Any) -> InputError:
    kind = "sparse or nested tensor" if isinstance(value, Tensor) else type(value).__name__
    return InputError(
        f"the batch holds a {kind}, which cannot be cut into micro-batches; {_EXPECTED}. "
        f"Pass the tensors of the {kind}, or let the closure use it without taking it as an argument."
    )
