"""Buffers that a backward pass writes: checkpointed blocks run again in it, and batch norm counts again.

A plain step has one backward pass. An exact penalty has at least two over the same graph, and whatever the passes after
the first write into buffers is taken back, so that they end as in a plain step, bitwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

Place = tuple[nn.Module, str]


class BufferVersions:
    """Which buffers a model has now, and how often each was written."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = modules
        some = [module for module in modules if module._buffers]
        self.seen = {place: (buffer, _version(buffer)) for place, buffer in _buffers(some)} if some else {}

    def changed(self) -> list[tuple[Place, Tensor]]:
        """The buffers of modules of which one was written or replaced since: batch norm's kernels count no versions."""
        now = list(_buffers(self.modules))
        modules = {
            place[0]
            for place, buffer in now
            if place not in self.seen or buffer is not self.seen[place][0] or _version(buffer) != self.seen[place][1]
        }
        return [(place, buffer) for place, buffer in now if place[0] in modules]

    def keep_from_here(self) -> AbstractContextManager[None]:
        """To enter after the first backward pass: buffers that it wrote leave as they entered, whatever happens inside.

        Others may be written: a block that the first pass did not reach, because no parameter of the norm is below it,
        runs in a later one, and only there.
        """
        changed = self.changed() if [module for module in self.modules if module._buffers] else []
        return _kept(changed) if changed else nullcontext()


def buffers_kept(modules: Sequence[nn.Module]) -> AbstractContextManager[None]:
    """Around a pass that a plain step does not have: all buffers leave as they entered."""
    places = list(_buffers(modules))
    return _kept(places) if places else nullcontext()


@contextmanager
def _kept(places: list[tuple[Place, Tensor]]) -> Iterator[None]:
    copies = [(module, name, buffer, buffer.detach().clone()) for (module, name), buffer in places]
    try:
        yield
    finally:
        put_back(copies)


def put_back(copies: Iterable[tuple[nn.Module, str, Tensor, Tensor]]) -> None:
    """The module's buffers of these names again, each with the values of its copy."""
    with torch.no_grad():
        for module, name, buffer, copy in copies:
            module._buffers[name] = buffer
            if buffer.is_inference() or torch._debug_has_internal_overlap(buffer) == 1:
                continue  # torch refuses to write those in place, so nobody has
            # A graph that is still needed may have saved it: as after batch norm, it counts no version. Whether the
            # values differ is not asked, since that waits for the device.
            with torch.autograd._unsafe_preserve_version_counter(buffer):
                buffer.copy_(copy)


def _buffers(modules: Sequence[nn.Module]) -> Iterator[tuple[Place, Tensor]]:
    for module in modules:
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield (module, name), buffer


def _version(buffer: Tensor) -> int:
    return 0 if buffer.is_inference() else buffer._version
