"""Steps timed in turns: the one timer of the package, and the words for what was timed on."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import torch

Name = TypeVar("Name")


def time_interleaved(
    steps: Mapping[Name, Callable[[], object]],
    *,
    rounds: int,
    synchronise: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, list[float]]:
    """The seconds of every step in every round: what two steps took in the same round is a pair.

    Steps are measured in turns so that a slow moment of the machine hits all of them, and every round begins with
    another one: of the same step entered three times, the first after the naive one was measured dearest, by 0.1 ms.

    In each round every step runs twice and the second run counts: the first one frees what another step left behind
    (gradients above all), which in a loop of its own the step would not meet. The number of rounds is fixed before the
    first: nothing that is seen on the way can end the measurement. `synchronise` waits for the device.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in steps}
    collecting = gc.isenabled()
    gc.disable()  # a collection inside one step would be charged to that step
    try:
        names = list(steps)
        for number in range(rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                step = steps[name]
                step()
                synchronise()
                begun = clock()
                step()
                synchronise()
                seconds[name].append(clock() - begun)
            gc.collect()
    finally:
        if collecting:
            gc.enable()
    return seconds


def waits_for(device: torch.device) -> Callable[[], None]:
    """A function that returns when the device has done what it was given; at once on the CPU."""
    return partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None


def device_words(device: torch.device) -> str:
    """What a time was measured on, for the line that prints it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores = torch.get_num_threads()
    return f"{cores} CPU core{'s' * (cores > 1)}; GPU not measured"
