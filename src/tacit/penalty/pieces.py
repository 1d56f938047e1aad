"""A batch cut into micro-batches along the first axis of its tensors, whatever holds them.

A batch is what the closure is called with: tensors, or dicts, lists, tuples, named tuples and dataclasses of them,
nested as they like. Numbers, strings, None and tensors without an axis are the same in every piece.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from tacit._errors import InputError

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
        found = f"the batch tensors have lengths {sorted(lengths)}" if lengths else "the batch has no tensor with rows"
        raise InputError(
            f"{found}; expected one length, that of the batch. Let the closure use what has no row for each example "
            "without taking it as an argument."
        )
    length = lengths.pop()
    if length == 0:
        raise InputError("the batch is empty; expected at least one example.")
    return length


def row_tensors(batch: Any) -> list[Tensor]:
    """The tensors of a batch that have rows, in a fixed order."""
    if _plain(batch):
        return list(batch)
    found: list[Tensor] = []

    def see(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _mapped(see, batch)
    return found


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
