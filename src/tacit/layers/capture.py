"""Seeing every use of a parameter inside a closure: calls of known layers become layer uses, anything else is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from tacit.layers.calls import (
    ConvolutionCall,
    EmbeddingCall,
    LinearCall,
    ProductCall,
    layer_call,
    tensors_in,
    transposed_parameter,
)
from tacit.layers.kinds import ConvolutionUse, EmbeddingUse, LinearUse, ScalarUse
from tacit.layers.layer_use import LayerUse
from tacit.layers.modes import overrides_functions
from tacit.layers.rectify import Rectify
from tacit.layers.second_derivatives import Replacing


class Capture(TorchFunctionMode):
    """While active, known operations on tracked parameters (linear, convolution, embedding, scalar) become layer uses.

    It works on functions, not modules, so a weight used through `F.linear` or `x @ W` counts like an `nn.Linear`. A
    tracked parameter in any other operation is listed in `used_otherwise`: its gradient is not known by factors.
    Checkpointed blocks (saved-tensor hooks) and `torch.func` transforms run as they are: the first would recompute a
    use without its capture, the second do not take such functions. So does everything under a mode of the user's, and
    what subclasses of Tensor compute by a `__torch_function__` of their own: it would not be called.
    """

    def __init__(self, tracked: Iterable[Tensor]) -> None:
        super().__init__()
        self.tracked = {id(parameter): parameter for parameter in tracked}
        self.transposes: dict[int, Tensor] = {}  # id of W.T → W.T
        self.parameter_of = dict(self.tracked)  # by the id of the parameter, or of its transpose
        self.uses: list[LayerUse] = []
        self.common_leaf = torch.zeros((), requires_grad=True)
        self.open = False
        self.used_otherwise: set[int] = set()
        self.other_modes = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        seen = not self.must_run_as_it_is()
        if func in _IN_PIECES and seen:
            with self:  # its own calls of torch functions are seen one by one
                return _IN_PIECES[func](*args, **kwargs)
        if func in _RECTIFIERS and seen:
            with DisableTorchFunction():  # of our own arithmetic no mode takes note
                made = self.rectify(*args, **kwargs)
            if made is not None:
                return made
        tensors = tensors_in((args, kwargs))
        touched = [self.parameter_of[id(tensor)] for tensor in tensors if id(tensor) in self.parameter_of]
        if not touched:
            return func(*args, **kwargs)
        if seen and not any(type(each) not in _PLAIN_TENSORS and overrides_functions(each) for each in tensors):
            with DisableTorchFunction():
                made = self._use(func, args, kwargs)
            if made is not None:
                return made
        if transposed_parameter(func, args, kwargs, self._is_parameter):
            result = func(*args, **kwargs)
            self.transposes[id(result)] = result
            self.parameter_of[id(result)] = args[0]
            return result
        return self.use_otherwise(touched, func, args, kwargs)

    def must_run_as_it_is(self) -> bool:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return self.other_modes or hooks is not None or torch._C._functorch.peek_interpreter_stack() is not None

    def rectify(self, input: Tensor, inplace: bool = False) -> Tensor | None:
        if inplace or not isinstance(input, Tensor) or not input.requires_grad or input.numel() < _LARGE:
            return None
        if type(input) not in _PLAIN_TENSORS and overrides_functions(input):
            return None
        return Rectify.apply(input)

    def use_otherwise(self, touched: list[Tensor], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation on tracked parameters that makes no layer use."""
        result = func(*args, **kwargs)
        if any(made.requires_grad for made in tensors_in(result)):
            self.used_otherwise |= {id(parameter) for parameter in touched}
        return result

    def __enter__(self) -> Capture:
        self.open = True
        modes = torch.overrides._get_current_function_mode_stack()
        self.other_modes = not all(isinstance(mode, _HARMLESS) for mode in modes)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.open = any(mode is self for mode in torch.overrides._get_current_function_mode_stack())

    def _is_parameter(self, tensor: Any) -> bool:
        return id(tensor) in self.tracked

    def _is_tracked(self, tensor: Any) -> bool:
        return id(tensor) in self.parameter_of

    def _use(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The output of the call as a layer use, where it is one of a tracked weight and a tracked or constant bias."""
        call = layer_call(func, args, kwargs, self._is_tracked)
        if isinstance(call, LinearCall):
            weight = self.parameter_of.get(id(call.weight), call.weight)
            transposed = call.transposed if weight is call.weight else not call.transposed
            if self._knows(weight, call.bias):
                return self.record(
                    LinearUse(weight, call.bias, transposed=transposed),
                    call.input,
                    call.bias,
                )
            if not self._knows(weight, None):
                return None
            assert call.bias is not None  # a part of a parameter, or computed from one: autograd's business
            outputs = self.record(LinearUse(weight, None, transposed=transposed), call.input, None)
            return outputs + call.bias.to(outputs.dtype)
        if isinstance(call, ConvolutionCall):
            if not self._knows(call.weight, call.bias) or call.settings is None or not call.batched:
                return None
            *lists, groups = call.settings
            stride, padding, dilation = ([*each] for each in lists)
            settings = (stride, padding, dilation, groups)
            return self.record(
                ConvolutionUse(call.weight, call.bias, settings),
                call.input,
                call.bias,
            )
        if isinstance(call, EmbeddingCall):
            unusual = call.max_norm is not None or call.scale_grad_by_freq or call.sparse
            if not self._knows(call.weight, None) or unusual:
                return None
            return self.record(EmbeddingUse(call.weight, call.padding_idx), call.input, None)
        if isinstance(call, ProductCall) and self._is_parameter(call.parameter) and call.parameter.numel() == 1:
            scalar, tensor = call.parameter, call.input
            fits = tensor.dim() >= max(1, scalar.dim()) and tensor.dtype == scalar.dtype and not scalar.is_complex()
            if fits and not self._is_tracked(tensor):
                return self.record(ScalarUse(scalar, None), tensor, None)
        return None

    def _knows(self, weight: Any, bias: Any) -> bool:
        if not self._is_parameter(weight) or weight.is_complex():  # the formulas of layers are those of real numbers
            return False
        return bias is None or self._is_parameter(bias) or not bias.requires_grad

    def record(self, use: LayerUse, inputs: Tensor, bias: Tensor | None) -> Tensor:
        use.ordinary = lambda: self.open
        weight, device = use.weight, use.weight.device.type
        enabled = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        if enabled and not isinstance(use, (EmbeddingUse, ScalarUse)):
            dtype = torch.get_autocast_dtype(device)
            inputs, weight, bias = inputs.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        outputs = use.apply(inputs, weight, bias, self.common_leaf)
        if outputs.requires_grad:  # under no_grad nothing is used
            self.uses.append(use)
        return outputs


_HARMLESS = (Capture, Replacing, DeviceContext)  # the last is torch.set_default_device: it handles factories only
_LARGE = 2**16  # below it the two saved passes over memory cost less than the extra Python calls
_PLAIN_TENSORS = (Tensor, nn.Parameter)
_RECTIFIERS = {F.relu, torch.relu, Tensor.relu}


def _in_pieces(function: Any) -> Callable[..., Any]:
    """A Python function of torch without its hand-over to modes, so that a mode sees the functions that it calls."""
    seen = {**function.__globals__, "has_torch_function": lambda tensors: False}
    made = FunctionType(function.__code__, seen, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_IN_PIECES = {F.multi_head_attention_forward: _in_pieces(F.multi_head_attention_forward)}
