"""Our own arithmetic without a look at modes.

A closure runs under modes that see every torch function (`_capture`, `_second_derivatives`), and so do backward passes,
where a checkpoint runs a part of it again. Each look takes 1 to 2 µs, even at a tensor's shape. So modes are off in
exact methods, but for closures and backward passes, and off again in our own functions inside those: on a small model
(40-64³-10, 256 examples in micro-batches of 16) that makes 30 looks of 350, and a step three quarters as long.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def modes_off() -> Any:
    """Inside, no mode and no subclass of Tensor sees a torch function."""
    return torch._C.DisableTorchFunction()


def modes_on() -> Any:
    """Inside, they do again: around every call of a closure and every backward pass."""
    return torch._C._EnableTorchFunction()


def without_modes(function: Callable[P, T]) -> Callable[P, T]:
    """The function with modes off inside. It must call no closure and start no backward pass."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with modes_off():
            return function(*args, **kwargs)

    return run
