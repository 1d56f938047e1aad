"""The peak memory of one training step, counted in torch's own allocations."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

from tacit.bench.models import Workload
from tacit.bench.steps import Step


def state_bytes(workload: Workload) -> int:
    """What is there before a step begins: parameters, buffers, momentum and the minibatch."""
    held = [*workload.model.parameters(), *workload.model.buffers(), workload.inputs, workload.targets]
    if workload.momentum:
        held += workload.model.parameters()  # one buffer of the same size for each
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


def peak_bytes(workload: Workload, step: Step) -> int:
    """The largest number of bytes alive at once during one step: the state and everything allocated on top of it."""
    workload.model.zero_grad()
    return state_bytes(workload) + allocated_bytes(step, workload.inputs.device)


def allocated_bytes(step: Callable[[], object], device: torch.device) -> int:
    """The largest number of bytes alive at once that one step allocates, on top of what was there before.

    Torch's profiler reports every allocation and release of the CPU allocator; the peak is the largest running sum.
    It repeats to the byte, which resident memory does not: on the 4096-wide MLP both agree to 1 %, on a small
    convolutional network the heap keeps freed pages and resident memory is off by a factor of three either way.
    Scratch memory inside oneDNN is not seen. The step must have run before: a first one may build what later ones keep.
    On CUDA it is the largest number that the caching allocator counts, above what it counted before the step.
    """
    if device.type == "cuda":
        return _allocated_on_cuda(step, device)
    with _quiet_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    alive = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.device_type() == torch.autograd.DeviceType.CPU:
            alive += event.nbytes()
            peak = max(peak, alive)
    return peak


def _allocated_on_cuda(step: Callable[[], object], device: torch.device) -> int:
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """The profiler's C++ side writes two lines of its own to the error stream whenever it starts and stops."""
    sys.stderr.flush()
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
