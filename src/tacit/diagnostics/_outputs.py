"""What a model returns, whatever it is made of: tensors along the examples inside tuples, dictionaries, dataclasses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A copy with the function applied to every tensor. What is no tensor and no container (a cache) stays as it is."""
    if isinstance(value, Tensor):
        return function(value)
    leaves, structure = tree_flatten(value)
    if len(leaves) != 1 or leaves[0] is not value:
        return tree_unflatten([map_tensors(function, leaf) for leaf in leaves], structure)
    if isinstance(value, dict):  # a class of one's own: what transformers return is one
        made = copy.copy(value)
        for name, entry in value.items():
            made[name] = map_tensors(function, entry)
        return made
    if is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in fields(value):
            object.__setattr__(changed, field.name, map_tensors(function, getattr(value, field.name)))
        return changed
    return value


def along_examples(outputs: Any, count: int) -> list[Tensor]:
    """The tensors whose first axis is that of the examples, detached."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        if _has_examples(tensor, count):
            found.append(tensor.detach())
        return tensor

    map_tensors(note, outputs)
    return found


def with_parts(outputs: Any, count: int, parts: Sequence[Tensor]) -> Any:
    """The outputs with `parts` in the places of `along_examples`."""
    left = iter(parts)
    return map_tensors(lambda tensor: next(left) if _has_examples(tensor, count) else tensor.detach(), outputs)


def _has_examples(tensor: Tensor, count: int) -> bool:
    return tensor.dim() > 0 and len(tensor) == count
