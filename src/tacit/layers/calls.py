"""Calls of torch's layer functions, read the same way by everything that watches a model run.

`layer_call` turns a call of a torch function into one of the typed calls below, whatever way the model writes its
layer: `F.linear(x, W, b)`, `x @ W.T`, `torch.addmm(b, x, W)` and `torch.einsum("bi,oi->bo", x, W)` are all a
`LinearCall`. Functions are read, not modules, so a weight used by hand counts like one in a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class LinearCall:
    """z = x Wᵀ + b on the last axis of x; z = x W + b when `transposed`."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None = None
    transposed: bool = False


@dataclass(frozen=True)
class ConvolutionCall:
    """What `F.conv1d`, `F.conv2d` or `F.conv3d` was called with; `settings` is None where padding is a word ("same").

    `settings` are stride, padding and dilation, a number per dimension each, and the number of groups.
    """

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    settings: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int] | None
    dimensions: int
    batched: bool


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


@dataclass(frozen=True)
class NormCall:
    """z = n(x) ∘ w + b, with `normalize` for n and `aligned` the shape of w and b with as many axes as x.

    `over_examples` says that n mixes the examples of a minibatch: batch norm in training mode.
    """

    input: Tensor
    weight: Tensor | None
    bias: Tensor | None
    normalize: Callable[[Tensor], Tensor]
    aligned: tuple[int, ...]
    over_examples: bool = False


@dataclass(frozen=True)
class SumCall:
    """z = x + p, with broadcasting."""

    input: Tensor
    parameter: Tensor


@dataclass(frozen=True)
class ProductCall:
    """z = x ∘ p, with broadcasting."""

    input: Tensor
    parameter: Tensor


@dataclass(frozen=True)
class ExpansionCall:
    """z = p with its entries repeated along new or singleton axes."""

    parameter: Tensor


LayerCall = LinearCall | ConvolutionCall | EmbeddingCall | NormCall | SumCall | ProductCall | ExpansionCall
IsParameter = Callable[[Any], bool]


def layer_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_parameter: IsParameter) -> LayerCall | None:
    """The call of `func` as a layer of a parameter; None where it is none of the layers above."""
    reader = _READERS.get(func)
    return None if reader is None else reader(is_parameter, *args, **kwargs)


def transposed_parameter(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_parameter: IsParameter) -> bool:
    """Whether the call is `W.T`, `W.t()` or another way to write the transpose of a matrix that is a parameter."""
    if func not in _TRANSPOSES or kwargs or not (args and is_parameter(args[0]) and args[0].dim() == 2):
        return False
    axes: list[Any] = []
    for argument in args[1:]:
        axes += argument if isinstance(argument, (tuple, list)) else [argument]
    order = [axis % 2 for axis in axes if isinstance(axis, int)]
    if func in (torch.permute, Tensor.permute):
        return order == [1, 0]
    return not order or sorted(order) == [0, 1]


def _linear(is_parameter: IsParameter, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> LayerCall | None:
    return LinearCall(input, weight, bias)


def _matrix_product(is_parameter: IsParameter, input: Any, other: Any, **options: Any) -> LayerCall | None:
    of_matrix = is_parameter(other) and other.dim() == 2
    return (
        LinearCall(input, other, transposed=True) if of_matrix and isinstance(input, Tensor) and not options else None
    )


def _reflected_matrix_product(is_parameter: IsParameter, other: Any, input: Any) -> LayerCall | None:
    return _matrix_product(is_parameter, input, other)


def _matrix_product_with_bias(
    is_parameter: IsParameter, input: Tensor, mat1: Tensor, mat2: Tensor, **options: Any
) -> LayerCall | None:
    scaled = any(value != 1 for key, value in options.items() if key in ("beta", "alpha")) or "out" in options
    if scaled or not is_parameter(mat2) or input.dim() != 1 or input.shape[0] != mat2.shape[1]:
        return None
    return LinearCall(mat1, mat2, input, transposed=True)


def _einstein_sum(is_parameter: IsParameter, equation: Any, *operands: Any) -> LayerCall | None:
    """A matrix times rows: `bi,oi->bo`, `bti,io->bto`, `oi,...i->...o`; one letter summed, the new one last."""
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or "->" not in equation:
        return None
    left, made = equation.replace(" ", "").split("->")
    names = left.split(",")
    if is_parameter(operands[0]) and not is_parameter(operands[1]):
        names, operands = names[::-1], operands[::-1]
    rows, matrix = names
    input, weight = operands
    if not is_parameter(weight) or len(matrix) != 2 or len(set(matrix)) != 2 or not rows or "." in matrix:
        return None
    summed = rows[-1]
    kept = matrix.replace(summed, "")
    repeated = len(set(rows.replace(".", ""))) != len(rows.replace(".", ""))
    if repeated or summed not in matrix or kept in rows or made != rows[:-1] + kept:
        return None
    return LinearCall(input, weight, transposed=matrix[0] == summed)


def _convolution(dimensions: int) -> Callable[..., LayerCall | None]:
    def convolution(
        is_parameter: IsParameter,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> LayerCall:
        def spread(value: Any) -> tuple[int, ...]:
            numbers = (value,) if isinstance(value, int) else tuple(value)
            return tuple(int(entry) for entry in (numbers * dimensions if len(numbers) == 1 else numbers))

        settings = None if isinstance(padding, str) else (spread(stride), spread(padding), spread(dilation), groups)
        return ConvolutionCall(input, weight, bias, settings, dimensions, batched=input.dim() == dimensions + 2)

    return convolution


def _embedding(is_parameter: IsParameter, *args: Any, **kwargs: Any) -> LayerCall:
    return EmbeddingCall(*args, **kwargs)


def _layer_norm(
    is_parameter: IsParameter,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> LayerCall:
    aligned = (1,) * (input.dim() - len(normalized_shape)) + tuple(normalized_shape)
    return NormCall(input, weight, bias, lambda x: F.layer_norm(x, normalized_shape, eps=eps), aligned)


def _rms_norm(
    is_parameter: IsParameter,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> LayerCall:
    aligned = (1,) * (input.dim() - len(normalized_shape)) + tuple(normalized_shape)
    return NormCall(input, weight, None, lambda x: F.rms_norm(x, normalized_shape, eps=eps), aligned)


def _group_norm(
    is_parameter: IsParameter,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> LayerCall:
    return NormCall(input, weight, bias, lambda x: F.group_norm(x, num_groups, eps=eps), _channels(input))


def _batch_norm(
    is_parameter: IsParameter,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> LayerCall:
    def normalize(x: Tensor) -> Tensor:
        return F.batch_norm(x, running_mean, running_var, eps=eps)

    return NormCall(input, weight, bias, normalize, _channels(input), over_examples=training)


def _channels(input: Tensor) -> tuple[int, ...]:
    return (1, input.shape[1], *[1] * (input.dim() - 2))


def _operands(is_parameter: IsParameter, input: Any, other: Any) -> tuple[Tensor, Tensor] | None:
    """(the other tensor, the parameter) where exactly one of the two is a parameter."""
    if is_parameter(other) and isinstance(input, Tensor) and not is_parameter(input):
        return input, other
    if is_parameter(input) and isinstance(other, Tensor) and not is_parameter(other):
        return other, input
    return None


def _sum(is_parameter: IsParameter, input: Any, other: Any, **options: Any) -> LayerCall | None:
    operands = _operands(is_parameter, input, other)
    return SumCall(*operands) if operands and not options else None


def _product(is_parameter: IsParameter, input: Any, other: Any, **options: Any) -> LayerCall | None:
    operands = _operands(is_parameter, input, other)
    return ProductCall(*operands) if operands and not options else None


def _expansion(is_parameter: IsParameter, input: Tensor, *shape: Any, **options: Any) -> LayerCall | None:
    return ExpansionCall(input) if is_parameter(input) else None


_READERS: dict[Any, Callable[..., LayerCall | None]] = {
    F.linear: _linear,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm), _matrix_product),
    Tensor.__rmatmul__: _reflected_matrix_product,
    **dict.fromkeys((torch.addmm, Tensor.addmm), _matrix_product_with_bias),
    torch.einsum: _einstein_sum,
    F.conv1d: _convolution(1),
    F.conv2d: _convolution(2),
    F.conv3d: _convolution(3),
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.batch_norm: _batch_norm,
    **dict.fromkeys((torch.add, Tensor.add, Tensor.add_, Tensor.__iadd__), _sum),
    **dict.fromkeys((torch.mul, Tensor.mul), _product),
    Tensor.expand: _expansion,
}
_TRANSPOSES = {
    torch.t, Tensor.t, torch.transpose, Tensor.transpose, torch.permute, Tensor.permute,
    *[getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH")],
}  # fmt: skip


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in nested tuples, lists and dictionaries, in their order."""
    tensors: list[Tensor] = []
    waiting = [value]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, Tensor):
            tensors.append(entry)
        elif isinstance(entry, (tuple, list)):
            waiting.extend(reversed(entry))
        elif isinstance(entry, dict):
            waiting.extend(reversed(entry.values()))
    return tensors
