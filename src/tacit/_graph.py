"""The autograd graph behind a tensor: its nodes, the operations they stand for, and those that torch gets wrong."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch import Tensor

# Operations whose second derivative is wrong in torch 2.13, not merely missing: fused weight norm is off by percents.
WRONG_SECOND_DERIVATIVES = {"WeightNormInterface": "torch's fused weight_norm"}


REENTRANT_CHECKPOINT = "CheckpointFunction"
SUSPECT = {REENTRANT_CHECKPOINT, *WRONG_SECOND_DERIVATIVES}


def nodes(*roots: Tensor) -> Iterator[Any]:
    """Every node of the graph behind the tensors, once."""
    seen, waiting = set(), [root.grad_fn for root in roots]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [parent for parent, _ in node.next_functions]


def operation(node: Any) -> str:
    """The operation that a node differentiates, without torch's 'Backward0': `Relu`, `Addmm`, …"""
    kind: Any = type(node)
    return _operation(kind)


@functools.cache
def _operation(kind: Any) -> str:
    return kind.__name__.split("Backward")[0].rstrip("0123456789D") or "?"


_harmless: set[Any] = set()  # kinds of nodes that `suspects` has seen and does not name


def suspects(root: Tensor) -> set[str]:
    """Operations behind the tensor that a penalty may have to refuse; of re-entrant checkpoints torch tells nothing."""
    kinds, seen, waiting = set(), set(), [root.grad_fn]
    while waiting:  # not over `nodes`: every step of a model walks here
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kinds.add(type(node))
        for parent, _ in node.next_functions:
            waiting.append(parent)
    new = kinds - _harmless
    if not new:
        return set()
    named = {kind for kind in new if _operation(kind) in SUSPECT}
    _harmless.update(new - named)
    return {_operation(kind) for kind in named}


def leaf_uses(*roots: Tensor) -> dict[Tensor, int]:
    """Every leaf below the roots in the autograd graph, with the number of edges that reach it."""
    counts: dict[Tensor, int] = {}
    seen, waiting = set(), [root.grad_fn for root in roots]
    while waiting:  # not over `nodes`: every small step of a model walks here, and that would ask each node twice
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for child, _ in node.next_functions:
            if child is not None and hasattr(child, "variable"):
                counts[child.variable] = counts.get(child.variable, 0) + 1
            else:
                waiting.append(child)
    return counts
