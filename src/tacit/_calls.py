"""Calls of torch's layer functions, read the same way by everything that watches a model run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class ConvolutionCall:
    """What `F.conv1d`, `F.conv2d` or `F.conv3d` was called with; `settings` is None where padding is a word ("same").

    `settings` are stride, padding and dilation, a number per dimension each, and the number of groups.
    """

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    settings: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int] | None
    batched: bool


def convolution_call(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> ConvolutionCall:
    """The arguments of a convolution, as torch names and orders them."""

    def spread(value: Any) -> tuple[int, ...]:
        return (int(value),) * dimensions if isinstance(value, int) else tuple(int(entry) for entry in value)

    settings = None if isinstance(padding, str) else (spread(stride), spread(padding), spread(dilation), groups)
    return ConvolutionCall(input, weight, bias, settings, batched=input.dim() == dimensions + 2)


@dataclass(frozen=True)
class EmbeddingCall:
    """What `F.embedding` was called with, by torch's names and in torch's order."""

    input: Tensor
    weight: Tensor
    padding_idx: int | None = None
    max_norm: float | None = None
    norm_type: float = 2.0
    scale_grad_by_freq: bool = False
    sparse: bool = False


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from tensors_in(entry)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
