"""Code that went through `torch.compile`, whose backward pass PyTorch cannot differentiate."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_log = logging.getLogger("tacit")


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


@contextmanager
def uncompiled(notice: CompiledNotice | None = None) -> Iterator[None]:
    """Inside, compiled models, modules and functions run as they were written: as slow, and twice differentiable."""
    if not _anything_is_compiled():
        yield
        return
    with torch.compiler.set_stance("force_eager"), _noticing(notice):
        yield


@contextmanager
def _noticing(notice: CompiledNotice | None) -> Iterator[None]:
    """Inside, the first call of compiled code gives the notice: each call asks dynamo what the stance makes of it."""
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


def _anything_is_compiled() -> bool:
    """Entering the stance costs 40 µs, so it is left out of programs that never called `torch.compile`."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return False
    backends = getattr(dynamo, "cached_backends", None)
    # Without a call of torch.compile there is one entry, None; after torch._dynamo.reset() there is none at all.
    return not backends or any(backend is not None for backend in backends.values())
