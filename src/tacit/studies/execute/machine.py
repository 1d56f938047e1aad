"""What this machine has for fleets: cores, memory, and the kind of device that is asked for."""

from __future__ import annotations

import contextlib
import math
import os
from importlib.metadata import PackageNotFoundError, version

from tacit._util.errors import InputError

DEVICES = ("auto", "cpu", "cuda", "mps")
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_memory() -> float:
    """Bytes of this machine; infinite where the system does not report it."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def named_in_environment() -> str | None:
    """The kind of device that TACIT_DEVICE names, if it does."""
    return os.environ.get("TACIT_DEVICE", "").strip().partition(":")[0] or None


def trains_on(device: str | None) -> str:
    """What local workers train on: cpu, cuda or mps, by the option, TACIT_DEVICE or what is there."""
    wanted = known_device(device) or named_in_environment() or "auto"
    if wanted != "auto":
        return wanted
    with contextlib.suppress(PackageNotFoundError):
        if version("torch").endswith("+cpu"):  # known without importing torch, which takes seconds
            return "cpu"
    from tacit.studies.train import devices

    return devices.automatic()


def known_device(device: str | None) -> str | None:
    if device is not None and device not in DEVICES:
        raise InputError(f"device={device!r} is unknown; use one of {', '.join(DEVICES)}.")
    return device
