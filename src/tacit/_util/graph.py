"""The autograd graph behind a tensor: its nodes, the operations they stand for, and those that torch gets wrong."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# Operations whose second derivative is wrong in torch 2.13, not merely missing: fused weight norm is off by percents.
WRONG_SECOND_DERIVATIVES = {"WeightNormInterface": "torch's fused weight_norm"}


_ACCUMULATE: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
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
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(waiting)
    while waiting:  # not over `nodes`: every small step of a model walks here, and that would ask each node twice
        for child, _ in waiting.pop().next_functions:
            if type(child) is _ACCUMULATE:
                leaf: Tensor = child.variable  # type: ignore[union-attr]
                counts[leaf] = counts.get(leaf, 0) + 1
            elif child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    return counts
