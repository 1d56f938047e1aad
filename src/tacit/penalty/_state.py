"""A second pass that leaves no trace: same random numbers, buffers and parameters put back bitwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class RandomState:
    """The state of torch's default generators on the devices in use, and of the generators that were named."""

    cpu: Tensor
    cuda: dict[int, Tensor]
    named: tuple[tuple[torch.Generator, Tensor], ...]

    @staticmethod
    def now(model: nn.Module, generators: Sequence[torch.Generator] = ()) -> RandomState:
        indices = {parameter.device.index for parameter in model.parameters() if parameter.device.type == "cuda"}
        return RandomState(
            cpu=torch.get_rng_state(),
            cuda={index: torch.cuda.get_rng_state(index) for index in indices if index is not None},
            named=tuple((generator, generator.get_state()) for generator in generators),
        )

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        for index, state in self.cuda.items():
            torch.cuda.set_rng_state(state, index)
        for generator, state in self.named:
            generator.set_state(state)


@contextmanager
def second_pass(model: nn.Module, start: RandomState, generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Inside, random numbers repeat those drawn after `start`; outside, generators and buffers are as they were.

    The second pass must see the same dropout mask, or the difference measures the mask; and batch norm must count
    each minibatch once.
    """
    after = RandomState.now(model, generators)
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    start.restore()
    try:
        yield
    finally:
        after.restore()
        with torch.no_grad():
            for module, name, buffer, saved in buffers:
                module._buffers[name] = buffer
                buffer.copy_(saved)


@contextmanager
def moved(parameters: Sequence[nn.Parameter], direction: Sequence[Tensor], distance: float) -> Iterator[None]:
    """Inside, each parameter holds ω + distance · direction; outside, its own storage again, untouched."""
    originals = [parameter.data for parameter in parameters]
    try:
        for parameter, step in zip(parameters, direction, strict=True):
            parameter.data = torch.add(parameter.data, step, alpha=distance)
        yield
    finally:
        for parameter, original in zip(parameters, originals, strict=True):
            parameter.data = original
