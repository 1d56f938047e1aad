"""Seeing every use of a parameter in a forward pass: known operations are recorded, anything else is noted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from tacit.diagnostics._uses import (
    BroadcastUse,
    ConvolutionUse,
    EmbeddingUse,
    FlatConvolutionUse,
    LinearUse,
    Use,
)
from tacit.layers.calls import (
    ConvolutionCall,
    EmbeddingCall,
    ExpansionCall,
    LinearCall,
    NormCall,
    ProductCall,
    SumCall,
    layer_call,
    tensors_in,
)


class Watch(TorchFunctionMode):
    """While active, operations on the given parameters leave a `Use` each, for `count` examples along the first axis.

    It works on functions, not modules, so `F.linear` with a parameter counts like `nn.Linear`. A parameter in any other
    differentiable operation, or in one whose first axis is not a multiple of `count`, is listed in `unrecorded`.
    Outputs are remembered by their place in the autograd graph, so later changes in place do not matter.
    """

    def __init__(self, parameters: Mapping[str, Tensor], count: int) -> None:
        super().__init__()
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self.count = count
        self.uses: list[Use] = []
        self.unrecorded: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        touched = {self.names[id(tensor)] for tensor in tensors_in((args, kwargs)) if id(tensor) in self.names}
        if not touched or not any(made.requires_grad for made in tensors_in(result)):
            return result
        call = layer_call(func, args, kwargs, self.knows)
        first = len(self.uses)
        if call is not None and isinstance(result, Tensor) and self._has_examples(result):
            _RECORDERS[type(call)](self, result, call)
        self.unrecorded |= touched - {use.name for use in self.uses[first:]}
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


def _linear(watch: Watch, result: Tensor, call: LinearCall) -> None:
    if result.dim() < 2 or watch.knows(call.input):
        return
    if watch.knows(call.weight):
        watch.note(LinearUse, call.weight, result, inputs=call.input.detach(), transposed=call.transposed)
    watch.note_broadcast(call.bias, result)


def _convolution(watch: Watch, result: Tensor, call: ConvolutionCall) -> None:
    if not call.batched or watch.knows(call.input) or call.dimensions > 2:
        return
    watch.note_broadcast(call.bias, result, aligned=(1, call.weight.shape[0], *[1] * call.dimensions))
    if watch.knows(call.weight) and call.settings is not None:
        settings = dict(zip(("stride", "padding", "dilation", "groups"), call.settings, strict=True))
        kind = ConvolutionUse if call.dimensions == 2 else FlatConvolutionUse
        watch.note(kind, call.weight, result, inputs=call.input.detach(), settings=settings)


def _embedding(watch: Watch, result: Tensor, call: EmbeddingCall) -> None:
    # Scaling by frequency counts tokens over the whole minibatch: not a sum over examples.
    if watch.knows(call.weight) and not call.scale_grad_by_freq:
        watch.note(EmbeddingUse, call.weight, result, tokens=call.input, padding=call.padding_idx)


def _norm(watch: Watch, result: Tensor, call: NormCall) -> None:
    if call.over_examples or watch.knows(call.input):  # in the first case no example has a gradient of its own
        return
    if watch.knows(call.weight):
        factor = call.normalize(call.input.detach())
        watch.note_broadcast(call.weight, result, aligned=call.aligned, factor=factor)
    watch.note_broadcast(call.bias, result, aligned=call.aligned)


def _sum(watch: Watch, result: Tensor, call: SumCall) -> None:
    watch.note_broadcast(call.parameter, result)


def _product(watch: Watch, result: Tensor, call: ProductCall) -> None:
    watch.note_broadcast(call.parameter, result, factor=call.input.detach())


def _expansion(watch: Watch, result: Tensor, call: ExpansionCall) -> None:
    watch.note_broadcast(call.parameter, result)


_RECORDERS: dict[type, Callable[..., None]] = {
    LinearCall: _linear,
    ConvolutionCall: _convolution,
    EmbeddingCall: _embedding,
    NormCall: _norm,
    SumCall: _sum,
    ProductCall: _product,
    ExpansionCall: _expansion,
}
