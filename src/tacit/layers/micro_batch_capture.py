"""The losses of all micro-batches from one call of the closure, each as if it had been called with that part alone.

The closure runs under `torch.vmap` over the micro-batches: whatever it computes, it computes for each of them, so a
loss that is no mean over examples, or one that compares them, stays right. Tensors of a layer use have a leading axis
of micro-batches; every other parameter of the norm is replaced by one copy per micro-batch, so that it has
one gradient per micro-batch. What vmap cannot do (batch norm's running statistics, `.item()`, checkpointing) raises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._pytree import tree_map

from tacit.layers.calls import EmbeddingCall, layer_call, tensors_in
from tacit.layers.capture import Capture
from tacit.layers.layer_use import LayerUse
from tacit.layers.modes import modes_on, overrides_functions
from tacit.layers.rectify import Rectify

_functorch: Any = torch._C._functorch


class NotInOnePassError(Exception):
    """The closure does something that cannot be done for all micro-batches at once; the message says what."""


class UsesChangedError(Exception):
    """A parameter is used both by known layers and in other ways; the next attempt uses copies of it only."""


class MicroBatchCapture(Capture):
    """A `Capture` inside `torch.vmap`: layer uses work on whole tensors, with the micro-batches along the first axis.

    `penalised` parameters that are used in other ways than by known layers, or are in `never_layers`, are replaced by
    `copies`, one per micro-batch. Buffers may be read and not written: a second micro-batch would see the change.
    """

    def __init__(
        self,
        tracked: Iterable[Tensor],
        *,
        micro_batches: int,
        penalised: Collection[int],
        never_layers: Collection[int],
        buffers: Iterable[Tensor],
    ) -> None:
        super().__init__(tracked)
        self.micro_batches = micro_batches
        self.penalised, self.never_layers = penalised, never_layers
        self.buffers = {_memory(buffer) for buffer in buffers}
        self.copies: dict[int, Tensor] = {}
        self.level = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.buffers and any(self._is_buffer(tensor) for tensor in _written(func, args, kwargs or {})):
            raise NotInOnePassError("the model writes a buffer (batch norm counts its batches)")
        return super().__torch_function__(func, types, args, kwargs)

    def _is_buffer(self, tensor: Tensor) -> bool:
        """Whether the tensor has the memory of a buffer: the buffer, a view or a part of it, its `.data`, detached."""
        return not _functorch.is_functorch_wrapped_tensor(tensor) and _memory(tensor) in self.buffers

    def must_run_as_it_is(self) -> bool:
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            raise NotInOnePassError("the model uses checkpointing or saved-tensor hooks")
        if _functorch.maybe_current_level() != self.level:
            raise NotInOnePassError("the closure uses torch.func")
        if self.other_modes:
            raise NotInOnePassError("a torch function mode is active around the step")
        return False

    def rectify(self, input: Tensor, inplace: bool = False) -> Tensor | None:
        if inplace or not isinstance(input, Tensor) or not input.requires_grad or overrides_functions(input):
            return None
        whole = self._whole(input)
        with temporarily_clear_interpreter_stack():
            return _functorch._add_batch_dim(Rectify.apply(whole), 0, self.level)

    def record(self, use: LayerUse, inputs: Tensor, bias: Tensor | None) -> Tensor:
        if id(use.weight) in self.never_layers or (bias is not None and id(bias) in self.never_layers):
            raise _UsesCopiesError
        use.micro_batches = self.micro_batches
        whole = self._whole(inputs)
        with temporarily_clear_interpreter_stack():
            outputs = super().record(use, whole, bias)
        return _functorch._add_batch_dim(outputs, 0, self.level)

    def _use(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        try:
            return super()._use(func, args, kwargs)
        except _UsesCopiesError:
            return None

    def use_otherwise(self, touched: list[Tensor], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(func, "__name__", "") == "__get__":  # a shape or a dtype, not a use
            return func(*args, **kwargs)
        call = layer_call(func, args, kwargs, self._is_tracked)
        counts = isinstance(call, EmbeddingCall) and (call.scale_grad_by_freq or call.padding_idx is not None)
        if counts or (func is torch.embedding and (len(args) > 2 or kwargs)):
            # torch.vmap counts indices over all micro-batches, and pads in the first one only.
            raise NotInOnePassError("an embedding has scale_grad_by_freq, or padding_idx and another use")
        args, kwargs = tree_map(self._copy, (args, kwargs))
        return super().use_otherwise(touched, func, args, kwargs)

    def _copy(self, value: Any) -> Any:
        """The parameter's copies in place of the parameter, where it is in the norm; anything else as it is."""
        if not isinstance(value, Tensor) or not self._is_tracked(value):
            return value
        parameter = self.parameter_of[id(value)]
        if id(parameter) not in self.penalised:
            return value
        with temporarily_clear_interpreter_stack():
            if id(parameter) not in self.copies:
                self.copies[id(parameter)] = parameter.expand(self.micro_batches, *parameter.shape)
            copies = self.copies[id(parameter)]
            return _functorch._add_batch_dim(copies if value is parameter else copies.mT, 0, self.level)

    def _whole(self, tensor: Tensor) -> Tensor:
        """The tensor with its micro-batches along the first axis; repeated where it is the same for all of them."""
        value, axis = tensor, None
        if _functorch.is_batchedtensor(tensor):
            value, axis = _functorch._unwrap_batched(tensor, self.level)
        with temporarily_clear_interpreter_stack():
            if axis is None:
                return value.expand(self.micro_batches, *value.shape)
            return value if axis == 0 else value.movedim(axis, 0)


class _UsesCopiesError(Exception):
    pass


def micro_batch_losses(
    closure: Callable[..., Tensor],
    batch: Sequence[Tensor],
    capture: MicroBatchCapture,
    model: nn.Module,
    *,
    may_overflow: bool = False,
) -> Tensor:
    """The loss of each micro-batch; `batch` has them along the first axis. Finite, unless it `may_overflow`."""

    def one(*part: Tensor) -> Tensor:
        capture.level = _functorch.current_level()
        with capture, modes_on():
            loss = closure(*part)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise NotInOnePassError("the closure does not return a scalar tensor")
        return loss.reshape(())

    registered = [(module, dict(module._buffers)) for module in model.modules() if module._buffers]
    try:
        with _no_hidden_loops():
            losses = torch.vmap(one, randomness="different")(*batch)
    finally:
        changed = [(module, buffers) for module, buffers in registered if not _same(module._buffers, buffers)]
        for module, buffers in changed:
            module._buffers.clear()
            module._buffers.update(buffers)
    if changed:
        raise NotInOnePassError("the model replaces a buffer")
    if not losses.requires_grad or not (may_overflow or bool(losses.isfinite().all())):
        raise NotInOnePassError("a loss has no graph or is not finite")
    return losses


@contextmanager
def _no_hidden_loops() -> Iterator[None]:
    """Inside, vmap raises where it would loop over micro-batches, one small operation at a time."""
    enabled = _functorch._is_vmap_fallback_enabled()
    _functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        _functorch._set_vmap_fallback_enabled(enabled)


def _same(now: Mapping[str, Tensor | None], before: Mapping[str, Tensor | None]) -> bool:
    return now.keys() == before.keys() and all(now[name] is before[name] for name in now)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that a torch function writes into."""
    name = getattr(func, "__name__", "")
    special = name in ("__setitem__", "__set__") or (name.startswith("__i") and name not in _READING)
    in_place = special or (name.endswith("_") and not name.endswith("__"))
    return tensors_in((args[:1] if in_place else (), kwargs.get("out")))


def _memory(tensor: Tensor) -> int:
    """What views of one tensor have in common."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


_READING = ("__index__", "__int__", "__invert__")
