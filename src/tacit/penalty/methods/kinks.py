"""Which side of its kinks every unit is on, recorded in one forward pass and replayed in the next ones.

Second derivatives ignore kinks: the exact penalty differentiates a ReLU network with the pattern of its units
fixed. A difference of gradients at two points does not, since units switch between the points, and at a kink itself (a
zero-initialised residual branch leaves ReLUs at exactly 0) half of them switch however close the points are. With the
pattern of the first point replayed at the second one the function in between is smooth, and both mean the same.

Piecewise linear functions become f(x) = a x + b with the a and b of the recorded pass, maxima take the recorded
element, comparisons give the recorded result. Nothing is replayed inside checkpoints, compiled code
and custom functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tacit.layers.calls import tensors_in


class Kinks(TorchFunctionMode):
    """The pattern of one forward pass. Where a later pass calls other functions, the rest of it runs as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[tuple[Any, tuple[int, ...], Any]] = []
        self.position: int | None = None  # in `recorded`, while it is replayed; None while it is recorded
        self.precision = 0.0  # the largest rounding unit among the results of the recorded pass

    @contextmanager
    def record(self) -> Iterator[None]:
        with self:
            yield

    @contextmanager
    def replay(self) -> Iterator[None]:
        self.position = 0
        try:
            with self:
                yield
        finally:
            self.position = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kink = _KINKS.get(func)
        if kink is None and self.position is not None:
            return func(*args, **kwargs)
        if not torch.is_grad_enabled() or torch.compiler.is_compiling() or _is_recomputed_or_transformed():
            return func(*args, **kwargs)  # without grad: inside a custom function, whose backward has its own kinks
        if kink is None:
            result = func(*args, **kwargs)
            self._note_precision(result)
            return result
        pattern_of, replay = kink
        if pattern_of is None and self.position is None:
            result = func(*args, **kwargs)
            # What does not depend on the parameters is the same in all passes, and may be changed in place.
            pattern = result.detach() if result.requires_grad else None
            self.recorded.append((func, tuple(result.shape), pattern))
            return result
        shape = next((tuple(tensor.shape) for tensor in tensors_in(args)), ())
        if self.position is None:
            assert pattern_of is not None
            with torch.no_grad():
                pattern = pattern_of(func, *args, **kwargs)
            self.recorded.append((func, shape, pattern))
        else:
            known = self.recorded[self.position] if self.position < len(self.recorded) else (None, (), None)
            if known[:2] != (func, shape):
                self.position = len(self.recorded)
                return func(*args, **kwargs)
            pattern = known[2]
            self.position += 1
        # By the same formula in all passes: torch's own may round differently, and differences would show that.
        return func(*args, **kwargs) if pattern is None else replay(pattern, *args, **kwargs)

    def _note_precision(self, result: Any) -> None:
        if isinstance(result, Tensor) and result.is_floating_point() and result.requires_grad:
            self.precision = max(self.precision, torch.finfo(result.dtype).eps)


def _is_recomputed_or_transformed() -> bool:
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None or torch._C._functorch.peek_interpreter_stack() is not None


# A pattern is read off the arguments of the recorded call; None means that this call has none.
# -- ReLU: its result -------------------------------------------------------------------------------------------


def _replayed_relu(result: Tensor, input: Tensor, inplace: bool = False) -> Tensor:
    """The recorded result is the pattern: autograd keeps it anyway. One kernel, as fast as ReLU in both directions."""
    return _replayed_relu_in_place(result, input) if inplace else torch.ops.aten.threshold_backward(input, result, 0)


def _replayed_relu_in_place(result: Tensor, input: Tensor) -> Tensor:
    return input.masked_fill_(result <= 0, 0)


def _is_off(func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return input <= 0


def _replayed_leaky_relu(off: Tensor, input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    slope = torch.ones_like(input).masked_fill_(off, negative_slope)
    return input.mul_(slope) if inplace else input * slope


def _replayed_prelu(off: Tensor, input: Tensor, weight: Tensor) -> Tensor:
    if weight.numel() > 1:
        weight = weight.reshape(1, -1, *[1] * (input.dim() - 2))
    return torch.where(off, weight * input, input)


# -- any other function of one tensor that is linear between kinks ----------------------------------------------------


def _line(func: Any, input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor] | None:
    """a = f′(x) and b = f(x) − a x, on a copy: the function may work in place."""
    if not input.is_floating_point():
        return None
    with torch.enable_grad():
        point = input.detach().clone().requires_grad_()
        value = func(point.clone(), *args, **kwargs)
        (slope,) = torch.autograd.grad(value.sum(), point)
    return slope, value.detach() - slope * input


def _replayed_line(
    line: tuple[Tensor, Tensor], input: Tensor, *args: Any, inplace: bool = False, **kwargs: Any
) -> Tensor:
    slope, offset = line
    return input.mul_(slope).add_(offset) if inplace else input * slope + offset


def _replayed_line_in_place(line: tuple[Tensor, Tensor], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _replayed_line(line, input, inplace=True)


def _hardswish_line(func: Any, input: Tensor, inplace: bool = False) -> tuple[Tensor, Tensor] | None:
    return _line(F.hardsigmoid, input)


def _replayed_hardswish(line: tuple[Tensor, Tensor], input: Tensor, inplace: bool = False) -> Tensor:
    gate = _replayed_line(line, input)
    return input.mul_(gate) if inplace else input * gate


# -- the larger of several --------------------------------------------------------------------------------------------


def _share_of_first(func: Any, input: Any, other: Any) -> Tensor | None:
    """1 where the first argument is taken, 0 where the second is, ½ at ties, as torch differentiates."""
    if not isinstance(input, Tensor) or not isinstance(other, Tensor) or not input.is_floating_point():
        return None
    ahead = input > other if func in (torch.maximum, Tensor.maximum) else input < other
    return ahead.to(input.dtype) + 0.5 * (input == other)


def _replayed_choice(share: Tensor, input: Tensor, other: Tensor) -> Tensor:
    return share * input + (1 - share) * other


def _pool_indices(func: Any, *args: Any, **kwargs: Any) -> Tensor:
    return func(*args, **{**kwargs, "return_indices": True})[1]


def _replayed_pool(axes: int) -> Callable[..., Any]:
    def replay(indices: Tensor, input: Tensor, *args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
        picked = input.flatten(-axes).gather(-1, indices.flatten(-axes)).view(indices.shape)
        for rank, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):  # as torch's own leaves it
            if picked.dim() == rank and indices.is_contiguous(memory_format=layout):
                picked = picked.contiguous(memory_format=layout)
        return (picked, indices) if return_indices else picked

    return replay


def _comparison(func: Any, *args: Any, **kwargs: Any) -> Tensor | None:
    numeric = any(tensor.is_floating_point() for tensor in tensors_in(args))
    return func(*args, **kwargs) if numeric and "out" not in kwargs else None


def _replayed_result(result: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return result


_THRESHOLD: Any = F._threshold  # type: ignore[attr-defined]  # what F.threshold and nn.Threshold call
_LINES = (
    F.relu6, F.hardtanh, _THRESHOLD, F.hardshrink, F.softshrink, F.hardsigmoid, torch.abs, Tensor.abs, Tensor.__abs__,
    torch.clamp, Tensor.clamp, torch.clip, Tensor.clip, torch.clamp_min, Tensor.clamp_min, torch.clamp_max,
    Tensor.clamp_max,
)  # fmt: skip
_LINES_IN_PLACE = (Tensor.clamp_, Tensor.clip_, Tensor.clamp_min_, Tensor.clamp_max_, Tensor.abs_, F.hardtanh_)
_COMPARISONS = tuple(
    function
    for name in ("gt", "lt", "ge", "le", "eq", "ne")
    for function in (getattr(torch, name), getattr(Tensor, name), getattr(Tensor, f"__{name}__"))
)

# Function → (its pattern, None where that is its result; what it is with that pattern replayed).
_KINKS: dict[Any, tuple[Callable[..., Any] | None, Callable[..., Any]]] = {
    **dict.fromkeys((F.relu, torch.relu, Tensor.relu), (None, _replayed_relu)),
    **dict.fromkeys((F.relu_, torch.relu_, Tensor.relu_), (None, _replayed_relu_in_place)),
    **dict.fromkeys((F.leaky_relu, torch._C._nn.leaky_relu), (_is_off, _replayed_leaky_relu)),
    **dict.fromkeys((F.prelu, torch.prelu, Tensor.prelu), (_is_off, _replayed_prelu)),
    **dict.fromkeys(_LINES, (_line, _replayed_line)),
    **dict.fromkeys(_LINES_IN_PLACE, (_line, _replayed_line_in_place)),
    F.hardswish: (_hardswish_line, _replayed_hardswish),
    **dict.fromkeys(
        (torch.maximum, Tensor.maximum, torch.minimum, Tensor.minimum), (_share_of_first, _replayed_choice)
    ),
    **{
        pool: (_pool_indices, _replayed_pool(axes))
        for axes, pools in (
            (1, (F.max_pool1d, F.max_pool1d_with_indices, F.adaptive_max_pool1d)),
            (2, (F.max_pool2d, F.max_pool2d_with_indices, F.adaptive_max_pool2d)),
            (3, (F.max_pool3d, F.max_pool3d_with_indices, F.adaptive_max_pool3d)),
        )
        for pool in pools
    },
    **dict.fromkeys(_COMPARISONS, (_comparison, _replayed_result)),
}  # fmt: skip
