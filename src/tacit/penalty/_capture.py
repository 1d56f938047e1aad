"""Seeing every use of a parameter inside a closure: known layers become sites, anything else is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tacit._calls import EmbeddingCall, convolution_call, tensors_in
from tacit.penalty._sites import ConvolutionSite, EmbeddingSite, LinearSite, Rectify, ScalarSite, Site


class Capture(TorchFunctionMode):
    """While active, known operations on tracked parameters (linear, convolution, embedding, scalar) become sites.

    It works on functions, not modules, so a weight used through `F.linear` counts like an `nn.Linear`. A tracked
    parameter that takes part in any other operation is listed in `elsewhere`: its gradient is not known by factors.
    Checkpointed blocks (saved-tensor hooks) and `torch.func` transforms run as they are: the first would recompute a
    site without its capture, the second do not take such functions.
    """

    def __init__(self, tracked: Iterable[Tensor]) -> None:
        super().__init__()
        self.tracked = {id(parameter) for parameter in tracked}
        self.sites: list[Site] = []
        self.anchor = torch.zeros((), requires_grad=True)
        self.open = False
        self.elsewhere: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        make_site = _SITES.get(func)
        if make_site is not None and not _must_run_as_it_is():
            made = make_site(self, *args, **kwargs)
            if made is not None:
                return made
        result = func(*args, **kwargs)
        for tensor in tensors_in((args, kwargs)):
            if id(tensor) in self.tracked and any(made.requires_grad for made in tensors_in(result)):
                self.elsewhere.add(id(tensor))
        return result

    def __enter__(self) -> Capture:
        self.open = True
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.open = False
        super().__exit__(*error)

    def record(self, site: Site, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        site.ordinary = lambda: self.open
        device = weight.device.type
        if torch.is_autocast_enabled(device) and not isinstance(site, (EmbeddingSite, ScalarSite)):
            dtype = torch.get_autocast_dtype(device)
            inputs, weight, bias = inputs.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        outputs = site.apply(inputs, weight, bias, self.anchor)
        if outputs.requires_grad:  # under no_grad nothing is used
            self.sites.append(site)
        return outputs

    def knows(self, weight: Any, bias: Any) -> bool:
        """Whether this call is on a tracked weight with, if any, a tracked or constant bias."""
        if id(weight) not in self.tracked:
            return False
        return bias is None or id(bias) in self.tracked or not bias.requires_grad


def _linear(capture: Capture, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    if not capture.knows(weight, bias):
        return None
    return capture.record(LinearSite(weight, bias), input, weight, bias)


def _convolution(dimensions: int) -> Callable[..., Tensor | None]:
    def convolution(capture: Capture, *args: Any, **kwargs: Any) -> Tensor | None:
        call = convolution_call(dimensions, *args, **kwargs)
        if not capture.knows(call.weight, call.bias) or call.settings is None or not call.batched:
            return None
        stride, padding, dilation, groups = call.settings
        site = ConvolutionSite(call.weight, call.bias, ([*stride], [*padding], [*dilation], groups))
        return capture.record(site, call.input, call.weight, call.bias)

    return convolution


def _embedding(capture: Capture, *args: Any, **kwargs: Any) -> Tensor | None:
    call = EmbeddingCall(*args, **kwargs)
    unusual = call.max_norm is not None or call.scale_grad_by_freq or call.sparse
    if not capture.knows(call.weight, None) or unusual:
        return None
    return capture.record(EmbeddingSite(call.weight, call.padding_idx), call.input, call.weight, None)


def _multiplication(capture: Capture, input: Any, other: Any, **kwargs: Any) -> Tensor | None:
    for scalar, tensor in ((input, other), (other, input)):
        if id(scalar) in capture.tracked and scalar.numel() == 1 and isinstance(tensor, Tensor) and not kwargs:
            whole = tensor.dim() >= max(1, scalar.dim()) and tensor.dtype == scalar.dtype
            if whole and id(tensor) not in capture.tracked:
                return capture.record(ScalarSite(scalar, None), tensor, scalar, None)
    return None


_LARGE = 2**16  # below it the two saved passes over memory cost less than the extra Python calls


def _rectify(capture: Capture, input: Tensor, inplace: bool = False) -> Tensor | None:
    if inplace or not isinstance(input, Tensor) or not input.requires_grad or input.numel() < _LARGE:
        return None
    return Rectify.apply(input)


_SITES: dict[Any, Callable[..., Tensor | None]] = {
    F.linear: _linear,
    F.conv1d: _convolution(1),
    F.conv2d: _convolution(2),
    F.conv3d: _convolution(3),
    F.embedding: _embedding,
    torch.mul: _multiplication,
    Tensor.mul: _multiplication,
    F.relu: _rectify,
    torch.relu: _rectify,
    Tensor.relu: _rectify,
}


def _must_run_as_it_is() -> bool:
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None or torch._C._functorch.peek_interpreter_stack() is not None
