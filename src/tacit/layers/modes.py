"""Our own arithmetic without a look at modes.

A closure runs under modes that see every torch function (`capture`, `second_derivatives`), and so do backward passes,
where a checkpoint runs a part of it again. Each look takes 1 to 2 µs, even at a tensor's shape. So modes are off in
exact methods, but for closures and backward passes, and off again in our own functions inside those: on a small model
(40-64³-10, 256 examples in micro-batches of 16) that makes 30 looks of 350, and a step three quarters as long.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


class _Before(threading.local):
    """How torch functions were handled where this thread entered `ModesOff` first; None outside of it."""

    restore: Callable[[], Any] | None = None


_before = _Before()


class ModesOff:
    """Inside, no mode and no subclass of Tensor sees a torch function."""

    def __enter__(self) -> None:
        self.before = _before.restore
        if self.before is None:
            enabled, disabled = torch._C._is_torch_function_enabled(), torch._C._is_torch_function_all_disabled()
            kept = torch._C.DisableTorchFunction if disabled else torch._C.DisableTorchFunctionSubclass
            _before.restore = torch._C._EnableTorchFunction if enabled else kept
        self.disabled: Any = torch._C.DisableTorchFunction()
        self.disabled.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.disabled.__exit__(*error)
        _before.restore = self.before


def modes_on() -> AbstractContextManager[Any]:
    """Inside, they do as before `ModesOff`: around every call of a closure and every backward pass."""
    return nullcontext() if _before.restore is None else _before.restore()


def overrides_functions(tensor: Tensor) -> bool:
    """Whether the tensor's class has a `__torch_function__` of its own, which may compute anything."""
    handler = type(tensor).__torch_function__
    if handler is torch._C._disabled_torch_function_impl:
        return False
    return getattr(handler, "__func__", handler) is not Tensor.__torch_function__.__func__  # type: ignore[attr-defined]


def without_modes(function: Callable[P, T]) -> Callable[P, T]:
    """The function with modes off inside. It must call no closure and start no backward pass."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return run
