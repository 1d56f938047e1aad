"""Seeing every use of a parameter in a forward pass: known operations are recorded, anything else is noted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from tacit.layers.calls import (
    ConvolutionCall,
    EmbeddingCall,
    ExpansionCall,
    LayerCall,
    LinearCall,
    NormCall,
    ProductCall,
    SumCall,
    layer_call,
    tensors_in,
)
from tacit.layers.example_uses import BroadcastUse, ExampleUse, WeightUse
from tacit.layers.kinds import ConvolutionUse, EmbeddingUse, LinearUse
from tacit.layers.layer_use import LayerUse


class ExampleWatch(TorchFunctionMode):
    """While active, operations on the given parameters leave an `ExampleUse` each; `count` examples on the first axis.

    It works on functions, not modules, so `F.linear` with a parameter counts like `nn.Linear`. A parameter in any other
    differentiable operation, or in one whose first axis is not a multiple of `count`, is listed in `unrecorded`.
    Outputs are remembered by their place in the autograd graph, so later changes in place do not matter.
    """

    def __init__(self, parameters: Mapping[str, Tensor], count: int) -> None:
        super().__init__()
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self.count = count
        self.uses: list[ExampleUse] = []
        self.unrecorded: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        touched = {self.names[id(tensor)] for tensor in tensors_in((args, kwargs)) if self._knows(tensor)}
        if not touched or not any(made.requires_grad for made in tensors_in(result)):
            return result
        call = layer_call(func, args, kwargs, self._knows)
        if call is not None and isinstance(result, Tensor) and self._has_examples(result):
            made = list(self._uses(call, result))
            self.uses += made
            touched -= {use.name for use in made}
        self.unrecorded |= touched
        return result

    def _has_examples(self, result: Tensor) -> bool:
        return result.dim() > 0 and result.shape[0] > 0 and result.shape[0] % self.count == 0

    def _knows(self, tensor: Any) -> bool:
        return id(tensor) in self.names

    def _uses(self, call: LayerCall, result: Tensor) -> Iterator[ExampleUse]:
        if not isinstance(call, ExpansionCall) and self._knows(call.input):
            return  # of two parameters neither is used example by example
        edge = get_gradient_edge(result)
        layer = _layer(call)
        if layer is not None and self._knows(layer.weight):
            assert not isinstance(call, ExpansionCall)
            yield WeightUse(self.names[id(layer.weight)], layer, edge, self.count, call.input.detach())
        for parameter, aligned, factor in broadcast_parameters(call, result.dim()):
            if parameter is not None and self._knows(parameter) and len(aligned) == result.dim() and aligned[0] == 1:
                yield BroadcastUse(self.names[id(parameter)], parameter, edge, self.count, aligned, factor)


def _layer(call: LayerCall) -> LayerUse | None:
    if isinstance(call, LinearCall) and call.input.dim() > 1:
        return LinearUse(call.weight, call.bias, transposed=call.transposed)
    if isinstance(call, ConvolutionCall) and call.batched and call.settings is not None:
        *lists, groups = call.settings
        stride, padding, dilation = ([*each] for each in lists)
        return ConvolutionUse(call.weight, call.bias, (stride, padding, dilation, groups))
    # Scaling by frequency counts tokens over the whole minibatch: not a sum over examples.
    if isinstance(call, EmbeddingCall) and not call.scale_grad_by_freq:
        return EmbeddingUse(call.weight, call.padding_idx)
    return None


def broadcast_parameters(call: LayerCall, axes: int) -> Iterator[tuple[Tensor | None, tuple[int, ...], Tensor | None]]:
    """Each parameter that is broadcast: its shape with so many axes, and what it is multiplied with."""
    if isinstance(call, LinearCall):
        yield call.bias, _in_front(call.bias, axes), None
    elif isinstance(call, ConvolutionCall) and call.batched:
        yield call.bias, (1, call.weight.shape[0], *[1] * call.dimensions), None
    elif isinstance(call, NormCall) and not call.over_examples:  # or no example has a gradient of its own
        if call.weight is not None:
            yield call.weight, call.aligned, call.normalize(call.input.detach())
        yield call.bias, call.aligned, None
    elif isinstance(call, (SumCall, ExpansionCall)):
        yield call.parameter, _in_front(call.parameter, axes), None
    elif isinstance(call, ProductCall):
        yield call.parameter, _in_front(call.parameter, axes), call.input.detach()


def _in_front(parameter: Tensor | None, axes: int) -> tuple[int, ...]:
    return () if parameter is None else (1,) * (axes - parameter.dim()) + tuple(parameter.shape)
