"""Autocast that the caller is in, kept to the closure: the penalty's own passes run without it.

A trainer may call the whole training step under `torch.autocast`. The closure's forward pass belongs inside, but
products of gradients in a second backward pass do not: they would be rounded to half precision once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AmbientAutocast:
    """The autocast state at the time of the call, for each device that has one: (device type, dtype, cache)."""

    states: tuple[tuple[str, torch.dtype, bool], ...]

    @staticmethod
    def now(device: torch.device) -> AmbientAutocast:
        """That of the CPU and of this device."""
        devices = ("cpu",) if device.type == "cpu" else ("cpu", device.type)
        return AmbientAutocast(
            tuple(
                (device, torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled())
                for device in devices
                if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
            )
        )

    def switched_off(self) -> AbstractContextManager[None]:
        return self._switched(False) if self.states else nullcontext()

    def around(self, closure: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """The closure, with the remembered state."""
        if not self.states:
            return closure

        def inside() -> Tensor:
            with self._switched(True):
                return closure()

        return inside

    @contextmanager
    def _switched(self, on: bool) -> Iterator[None]:
        with ExitStack() as stack:
            for device, dtype, cache in self.states:
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=on, cache_enabled=cache))
            yield
