"""A second pass that leaves no trace: same random numbers and buffers, parameters put back bitwise."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit._util.errors import InputError
from tacit.penalty.surroundings.buffers import put_back


@dataclass(frozen=True)
class _NumpyState:
    """The state of numpy's global generator, which takes 0.1 ms to read and to set: here it is read once.

    Whether it has drawn since shows in its memory: the key and the position in it, 2500 bytes of the Mersenne twister.
    They do not hold the second number of a pair of normal ones that is kept for the next call; where there is one, and
    for another generator, `memory` is empty and whole states are compared.
    """

    state: Any
    source: Any
    memory: bytes

    @staticmethod
    def now() -> _NumpyState:
        source = np.random.get_bit_generator()  # type: ignore[attr-defined]
        state: Any = np.random.get_state()
        memory = _memory(source)
        whole = memory and not state[3] and memory == state[1].tobytes() + int(state[2]).to_bytes(4, sys.byteorder)
        return _NumpyState(state, source, memory if whole else b"")

    def has_drawn(self) -> bool:
        source = np.random.get_bit_generator()  # type: ignore[attr-defined]
        if self.memory and source is self.source:
            return _memory(source) != self.memory
        pairs = zip(np.random.get_state(), self.state, strict=True)
        return not all(np.array_equal(one, other) for one, other in pairs)

    def restore(self) -> None:
        if self.has_drawn():
            np.random.set_state(self.state)


def _memory(source: Any) -> bytes:
    twister = type(source) is np.random.MT19937
    return ctypes.string_at(source.ctypes.state_address, 624 * 4 + 4) if twister else b""


@dataclass(frozen=True)
class RandomState:
    """What a forward pass may draw from or write to: generators (torch's on the devices in use, the named ones,
    Python's and numpy's global ones) and the model's buffers."""

    cpu: Tensor
    cuda: dict[int, Tensor]
    named: tuple[tuple[torch.Generator, Tensor], ...]
    python: Any
    numpy: _NumpyState | None
    buffers: tuple[tuple[nn.Module, str, Tensor, Tensor], ...]

    @staticmethod
    def now(
        model: nn.Module, generators: Sequence[torch.Generator] = (), *, buffers: bool = True, python: bool = True
    ) -> RandomState:
        """The state at this moment; without `buffers`, of the generators alone; without `python`, of torch's alone."""
        there = model.parameters() if torch.cuda.is_initialized() else ()
        indices = {parameter.device.index for parameter in there if parameter.device.type == "cuda"}
        return RandomState(
            cpu=torch.get_rng_state(),
            cuda={index: torch.cuda.get_rng_state(index) for index in indices if index is not None},
            named=tuple((generator, generator.get_state()) for generator in generators),
            python=random.getstate() if python else None,
            numpy=_NumpyState.now() if python else None,
            buffers=tuple(
                (module, name, buffer, buffer.detach().clone())
                for module in (model.modules() if buffers else ())
                for name, buffer in module._buffers.items()
                if buffer is not None
            ),
        )

    def torch_has_drawn(self) -> bool:
        """Whether one of torch's generators, or of the named ones, has drawn since."""
        pairs = [(torch.get_rng_state(), self.cpu)]
        pairs += [(torch.cuda.get_rng_state(index), state) for index, state in self.cuda.items()]
        pairs += [(generator.get_state(), state) for generator, state in self.named]
        return not all(torch.equal(now, then) for now, then in pairs)

    def of_written_buffers(self) -> RandomState:
        """The same with only those buffers that hold other values now, or have been replaced; waits for the device.

        Versions would not tell: `buffer.data.add_(1)` leaves no trace in them.
        """
        written = [
            entry
            for entry in self.buffers
            if entry[0]._buffers.get(entry[1]) is not entry[2] or not _equal(entry[2], entry[3])
        ]
        return replace(self, buffers=tuple(written))

    def python_has_drawn(self) -> bool:
        """Whether Python's or numpy's global generator has."""
        return random.getstate() != self.python or (self.numpy is not None and self.numpy.has_drawn())

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        for index, state in self.cuda.items():
            torch.cuda.set_rng_state(state, index)
        for generator, state in self.named:
            generator.set_state(state)
        if self.python is not None and self.numpy is not None:
            random.setstate(self.python)
            self.numpy.restore()
        put_back(self.buffers)


def _equal(left: Tensor, right: Tensor) -> bool:
    """Of one shape, and equal number by number; nan equals nan. Tensors on the meta device have no numbers."""
    if left.shape != right.shape or left.device.type == "meta":
        return left.shape == right.shape
    left, right = left.to_dense(), right.to_dense()
    return bool(((left == right) | ((left != left) & (right != right))).all())


def checked_generators(generators: Iterable[torch.Generator]) -> tuple[torch.Generator, ...]:
    checked = tuple(generators)
    for item in checked:
        if not isinstance(item, torch.Generator):
            raise InputError(f"generators holds a {type(item).__name__}; expected torch.Generator objects.")
    return checked


@contextmanager
def second_pass(model: nn.Module, start: RandomState, generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Inside, random numbers and buffers are those at `start`; outside, those of now, bitwise.

    The second pass must see the same dropout mask and the same spectral norm, or the difference measures those; and
    batch norm must count each minibatch once.
    """
    after = RandomState.now(model, generators)
    start.restore()
    try:
        yield
    finally:
        after.restore()


def moved(
    parameters: Sequence[nn.Parameter], direction: Sequence[Tensor], distance: float
) -> AbstractContextManager[None]:
    """Inside, each parameter holds ω + distance · direction; outside, its own storage again, untouched."""
    pairs = zip(parameters, direction, strict=True)
    return placed(parameters, [torch.add(parameter.data, step, alpha=distance) for parameter, step in pairs])


@contextmanager
def placed(parameters: Sequence[nn.Parameter], points: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the parameters hold `points`; outside, their own storage again, untouched."""
    originals = [parameter.data for parameter in parameters]
    try:
        for parameter, point in zip(parameters, points, strict=True):
            parameter.data = point
        torch.clear_autocast_cache()  # it may hold half-precision copies of the parameters as they were
        yield
    finally:
        for parameter, original in zip(parameters, originals, strict=True):
            parameter.data = original
        torch.clear_autocast_cache()
