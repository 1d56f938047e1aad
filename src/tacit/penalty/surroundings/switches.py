"""Switches of torch that are set around the user's code: autocast, and whether compiled code runs compiled.

A trainer may call the whole training step under `torch.autocast`. The closure's forward pass belongs inside, but
products of gradients in a second backward pass do not: they would be rounded to half precision once more. Code that
went through `torch.compile` has a backward pass that PyTorch cannot differentiate, so exact steps run it as written.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger("tacit")


@dataclass(frozen=True)
class AmbientAutocast:
    """The autocast state at the time of the call, for each device that has one: (device type, dtype, cache)."""

    states: tuple[tuple[str, torch.dtype, bool], ...]

    @staticmethod
    def now(device: torch.device) -> AmbientAutocast | None:
        """That of the CPU and of this device; None where it is off on both."""
        devices = ["cpu"] if device.type == "cpu" else ["cpu", device.type]
        on = [each for each in devices if torch.amp.is_autocast_available(each) and torch.is_autocast_enabled(each)]
        if not on:
            return None
        cache = torch.is_autocast_cache_enabled()
        return AmbientAutocast(tuple((each, torch.get_autocast_dtype(each), cache) for each in on))

    def switched_off(self) -> AbstractContextManager[None]:
        return self._switched(False)

    def around(self, closure: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The closure, with the remembered state."""

        def inside(*batch: Any) -> Tensor:
            with self._switched(True):
                return closure(*batch)

        return inside

    @contextmanager
    def _switched(self, on: bool) -> Iterator[None]:
        with ExitStack() as stack:
            for device, dtype, cache in self.states:
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=on, cache_enabled=cache))
            yield


class CompiledNotice:
    """Says once per penalty that compiled code runs as it was written."""

    def __init__(self) -> None:
        self.given = False

    def give(self) -> None:
        if not self.given:
            self.given = True
            _log.warning(
                "code that went through torch.compile runs uncompiled in penalised steps, because compiled code has no "
                "second derivative: the penalty is exact, at the speed of the model as it was written. Steps without a "
                "penalty (every=k) stay compiled, and so does GradientPenalty(…, method='finite_difference')."
            )


def uncompiled(notice: CompiledNotice | None = None) -> AbstractContextManager[Any]:
    """Inside, compiled models, modules and functions run as they were written: as slow, and twice differentiable.

    Entering the stance costs 40 µs, so it is left out of programs that never called `torch.compile`.
    """
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return nullcontext()
    backends = getattr(dynamo, "cached_backends", None)
    # Without a call of torch.compile there is one entry, None; after torch._dynamo.reset() there is none at all.
    if backends and all(backend is None for backend in backends.values()):
        return nullcontext()
    return _uncompiled(notice)


@contextmanager
def _uncompiled(notice: CompiledNotice | None) -> Iterator[None]:
    """The first call of compiled code gives the notice: each call asks dynamo what the stance makes of it."""
    with torch.compiler.set_stance("force_eager"):
        dynamo: Any = sys.modules["torch._dynamo.eval_frame"]
        ask = getattr(dynamo, "_callback_from_stance", None)
        if notice is None or notice.given or ask is None:
            yield
            return

        def answer(callback: Any) -> Any:
            if callback not in (None, False):
                notice.give()
            return ask(callback)

        dynamo._callback_from_stance = answer
        try:
            yield
        finally:
            dynamo._callback_from_stance = ask
