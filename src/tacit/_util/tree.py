"""Arithmetic on named tensors: `dict[str, Tensor]`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

Tree = dict[str, Tensor]


def map_tree(function: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Tree:
    first, *rest = trees
    return {name: function(leaf, *[tree[name] for tree in rest]) for name, leaf in first.items()}


def add(left: Mapping[str, Tensor], right: Mapping[str, Tensor], *, scale: float | Tensor = 1.0) -> Tree:
    """left + scale · right, leaf by leaf."""
    return map_tree(lambda a, b: a + scale * b, left, right)


def scale(tree: Mapping[str, Tensor], factor: float | Tensor) -> Tree:
    return map_tree(lambda leaf: factor * leaf, tree)


def dot(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tensor:
    return total((left[name] * right[name]).sum() for name in left)


def squared_norm(tree: Mapping[str, Tensor]) -> Tensor:
    return total(leaf.square().sum() for leaf in tree.values())


def real(tensor: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones: their squares add up to |z|², their products to the real part of z̄w."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def total(scalars: Iterable[Tensor]) -> Tensor:
    """Sum of scalar tensors, stacked once: a chain of additions would lengthen the graph."""
    return torch.stack(list(scalars)).sum()


def flatten(tree: Mapping[str, Tensor]) -> Tensor:
    """One vector, in the tree's own order."""
    return torch.cat([leaf.reshape(-1) for leaf in tree.values()])


def unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> Tree:
    """The tree with the shapes of `like` whose flattening is `vector`."""
    pieces = vector.split([leaf.numel() for leaf in like.values()])
    return {name: piece.reshape(leaf.shape) for piece, (name, leaf) in zip(pieces, like.items(), strict=True)}
