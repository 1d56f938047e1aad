"""Code that went through `torch.compile`, whose backward pass PyTorch cannot differentiate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def uncompiled() -> Iterator[None]:
    """Inside, compiled models, modules and functions run as they were written: as slow, and twice differentiable."""
    if not _anything_is_compiled():
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _anything_is_compiled() -> bool:
    """Entering the stance costs 40 µs, so it is left out of programs that never called `torch.compile`."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return False
    backends = getattr(dynamo, "cached_backends", None)
    # Without a call of torch.compile there is one entry, None; after torch._dynamo.reset() there is none at all.
    return not backends or any(backend is not None for backend in backends.values())
