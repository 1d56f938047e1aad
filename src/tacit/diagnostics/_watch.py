"""Seeing every use of a parameter in a forward pass: known operations are recorded, anything else is noted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tacit._calls import EmbeddingCall, convolution_call, tensors_in
from tacit.diagnostics._uses import (
    BroadcastUse,
    ConvolutionUse,
    EmbeddingUse,
    FlatConvolutionUse,
    LinearUse,
    Use,
)


class Watch(TorchFunctionMode):
    """While active, operations on the given parameters leave a `Use` each, for `count` examples along the first axis.

    It works on functions, not modules, so `F.linear` with a parameter counts like `nn.Linear`. A parameter in any other
    differentiable operation, or in one whose first axis is not a multiple of `count`, is listed in `elsewhere`.
    Outputs are remembered by their place in the autograd graph, so later changes in place do not matter.
    """

    def __init__(self, parameters: Mapping[str, Tensor], count: int) -> None:
        super().__init__()
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self.count = count
        self.uses: list[Use] = []
        self.elsewhere: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        touched = {self.names[id(tensor)] for tensor in tensors_in((args, kwargs)) if id(tensor) in self.names}
        if not touched or not any(made.requires_grad for made in tensors_in(result)):
            return result
        record = _KNOWN.get(func)
        first = len(self.uses)
        if record is not None and isinstance(result, Tensor) and self._has_examples(result):
            record(self, result, *args, **kwargs)
        self.elsewhere |= touched - {use.name for use in self.uses[first:]}
        return result

    def _has_examples(self, result: Tensor) -> bool:
        return result.dim() > 0 and result.shape[0] > 0 and result.shape[0] % self.count == 0

    def knows(self, tensor: Any) -> bool:
        return id(tensor) in self.names

    def note(self, kind: type[Use], parameter: Tensor, result: Tensor, **facts: Any) -> None:
        self.uses.append(kind(self.names[id(parameter)], parameter, get_gradient_edge(result), self.count, **facts))

    def note_broadcast(
        self, parameter: Any, result: Tensor, *, aligned: tuple[int, ...] | None = None, factor: Tensor | None = None
    ) -> None:
        """Nothing is noted for an untracked tensor, nor for one that has an entry per example."""
        if not self.knows(parameter):
            return
        shape = aligned or (1,) * (result.dim() - parameter.dim()) + tuple(parameter.shape)
        if len(shape) == result.dim() and shape[0] == 1:
            self.note(BroadcastUse, parameter, result, aligned=shape, factor=factor)


def _linear(watch: Watch, result: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    if result.dim() < 2 or watch.knows(input):
        return
    if watch.knows(weight):
        watch.note(LinearUse, weight, result, inputs=input.detach())
    watch.note_broadcast(bias, result)


def _matrix_product(watch: Watch, result: Tensor, input: Tensor, other: Tensor) -> None:
    if watch.knows(other) and not watch.knows(input) and other.dim() == 2 and input.dim() >= 2:
        watch.note(LinearUse, other, result, inputs=input.detach(), transposed=True)


def _convolution(dimensions: int) -> Callable[..., None]:
    kind = ConvolutionUse if dimensions == 2 else FlatConvolutionUse

    def convolution(watch: Watch, result: Tensor, *args: Any, **kwargs: Any) -> None:
        call = convolution_call(dimensions, *args, **kwargs)
        if not call.batched or watch.knows(call.input):
            return
        watch.note_broadcast(call.bias, result, aligned=(1, call.weight.shape[0], *[1] * dimensions))
        if watch.knows(call.weight) and call.settings is not None:
            settings = dict(zip(("stride", "padding", "dilation", "groups"), call.settings, strict=True))
            watch.note(kind, call.weight, result, inputs=call.input.detach(), settings=settings)

    return convolution


def _embedding(watch: Watch, result: Tensor, *args: Any, **kwargs: Any) -> None:
    call = EmbeddingCall(*args, **kwargs)
    # Scaling by frequency counts tokens over the whole minibatch: not a sum over examples.
    if watch.knows(call.weight) and not call.scale_grad_by_freq:
        watch.note(EmbeddingUse, call.weight, result, tokens=call.input, padding=call.padding_idx)


def _layer_norm(
    watch: Watch,
    result: Tensor,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> None:
    if result.dim() == len(normalized_shape) or watch.knows(input):
        return
    if watch.knows(weight):
        watch.note_broadcast(weight, result, factor=F.layer_norm(input.detach(), normalized_shape, eps=eps))
    watch.note_broadcast(bias, result)


def _rms_norm(
    watch: Watch,
    result: Tensor,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> None:
    if result.dim() > len(normalized_shape) and not watch.knows(input) and watch.knows(weight):
        watch.note_broadcast(weight, result, factor=F.rms_norm(input.detach(), normalized_shape, eps=eps))


def _group_norm(
    watch: Watch,
    result: Tensor,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> None:
    aligned = (1, input.shape[1], *[1] * (input.dim() - 2))
    if watch.knows(weight):
        factor = F.group_norm(input.detach(), num_groups, eps=eps)
        watch.note_broadcast(weight, result, aligned=aligned, factor=factor)
    watch.note_broadcast(bias, result, aligned=aligned)


def _batch_norm(
    watch: Watch,
    result: Tensor,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> None:
    if training:  # mixes the examples: no example has a gradient of its own
        return
    aligned = (1, input.shape[1], *[1] * (input.dim() - 2))
    if watch.knows(weight):
        factor = F.batch_norm(input.detach(), running_mean, running_var, eps=eps)
        watch.note_broadcast(weight, result, aligned=aligned, factor=factor)
    watch.note_broadcast(bias, result, aligned=aligned)


def _addition(watch: Watch, result: Tensor, input: Any, other: Any, **kwargs: Any) -> None:
    for parameter, rest in ((input, other), (other, input)):
        if watch.knows(parameter) and isinstance(rest, Tensor) and not watch.knows(rest) and not kwargs:
            watch.note_broadcast(parameter, result)


def _multiplication(watch: Watch, result: Tensor, input: Any, other: Any, **kwargs: Any) -> None:
    for parameter, rest in ((input, other), (other, input)):
        if watch.knows(parameter) and isinstance(rest, Tensor) and not watch.knows(rest) and not kwargs:
            watch.note_broadcast(parameter, result, factor=rest.detach())


def _expansion(watch: Watch, result: Tensor, input: Tensor, *shape: Any, **kwargs: Any) -> None:
    watch.note_broadcast(input, result)


_KNOWN: dict[Any, Callable[..., None]] = {
    F.linear: _linear,
    F.conv1d: _convolution(1),
    F.conv2d: _convolution(2),
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.batch_norm: _batch_norm,
    torch.matmul: _matrix_product,
    Tensor.matmul: _matrix_product,
    Tensor.__matmul__: _matrix_product,
    torch.add: _addition,
    Tensor.add: _addition,
    Tensor.add_: _addition,
    Tensor.__iadd__: _addition,
    torch.mul: _multiplication,
    Tensor.mul: _multiplication,
    Tensor.expand: _expansion,
}
