"""Buffers that a backward pass writes: checkpointed blocks run again in it, and batch norm counts again.

A plain step has one backward pass. An exact penalty has at least two over the same graph, and whatever the passes after
the first write into buffers is taken back, so that they end as in a plain step, bitwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Place = tuple[nn.Module, str]


class BufferVersions:
    """Which buffers a model has now, and how often each was written."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.seen = {place: (buffer, _version(buffer)) for place, buffer in _buffers(model)}

    def changed(self) -> bool:
        return any(
            place not in self.seen or buffer is not self.seen[place][0] or _version(buffer) != self.seen[place][1]
            for place, buffer in _buffers(self.model)
        )

    @contextmanager
    def keep_from_here(self) -> Iterator[None]:
        """To enter after the first backward pass: whatever happens inside, the buffers leave as they entered.

        Nothing is copied where the first pass wrote no buffer: the passes that follow run the same blocks.
        """
        if not self.changed():
            yield
            return
        copies = [(module, name, buffer, buffer.detach().clone()) for (module, name), buffer in _buffers(self.model)]
        try:
            yield
        finally:
            with torch.no_grad():
                for module, name, buffer, copy in copies:
                    module._buffers[name] = buffer
                    if not torch.equal(buffer, copy):
                        buffer.copy_(copy)


def _buffers(model: nn.Module) -> Iterator[tuple[Place, Tensor]]:
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield (module, name), buffer


def _version(buffer: Tensor) -> int:
    return 0 if buffer.is_inference() else buffer._version
