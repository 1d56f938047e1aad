"""About how long a study takes on this machine: its cost by counting, divided by a rate that was measured here."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

from tacit._errors import InputError, TacitError
from tacit._files import write_atomically
from tacit._parsing import MEGABYTE, parse_json, read_bounded
from tacit.studies.data.cache import cache_folder
from tacit.studies.execute import machine
from tacit.studies.train import operations
from tacit.studies.train.packing import Fleet, finishing_time

KEPT = 5  # rates of the last studies; their median is used, so one odd study does not spoil the estimates after it
# Before anything was measured: a core of 2020's servers; estimates by it are called rough. Convolutions of images do
# more operations per second than the small products of MLPs and signals: half of WRN-10-1's on a core of 2026, 144,000.
DEFAULT_RATES = {"wide_resnet": 72_000.0}
DEFAULT_RATE = 15_000.0
# A rate beyond this is a mistake of a clock or of an earlier version: no core multiplies a million times as fast as
# it ticks. One such rate would call a study of a year an affair of seconds.
LARGEST_RATE = 1e7
YEAR = 365.25 * 24 * 3600.0
_SEEN: dict[str, list[float]] = {}  # for this process, when the cache cannot be written


def expected_seconds(fleets: Sequence[Fleet], *, workers: int, rate: float) -> float:
    """When the last worker ends; `rate` is millions of operations per second and worker."""
    return finishing_time([fleet.cost for fleet in fleets], workers) / rate


def stored_rate(workers: int, model: str) -> float | None:
    """The median rate of the last studies of this model with as many workers on this machine, if there were any.

    Not of other models: operations per second of a Wide-ResNet are up to ten times those of a small MLP.
    """
    rates = _rates(workers, model)
    return statistics.median(rates) if rates else None


def default_rate(model: str) -> float:
    """A guess for a model that was never trained on this machine."""
    return DEFAULT_RATES.get(model, DEFAULT_RATE)


def store_rate(workers: int, model: str, rate: float) -> None:
    """Keep a measured rate. Best effort: without a writable cache the next process measures again."""
    if not 0 < rate <= LARGEST_RATE:
        return
    key = _key(workers, model)
    _SEEN[key] = [*_rates(workers, model), rate][-KEPT:]
    with contextlib.suppress(TacitError):
        write_atomically(_path(), json.dumps({**_read(), key: _SEEN[key]}, indent=1))


def memory(fleet: Fleet) -> float:
    """Bytes that training a fleet needs at the very least: parameters and gradients, activations of a minibatch."""
    counted, rows = operations.count(fleet.runs[0]), fleet.runs[0].batch_size
    return 4.0 * len(fleet.runs) * (2 * counted.parameters + rows * counted.activations)


def refuse_too_big(fleets: Sequence[Fleet], *, name: str) -> None:
    """InputError for a study that cannot fit into the memory of this machine."""
    most = max(map(memory, fleets), default=0.0)
    if most > machine.machine_memory():
        raise InputError(
            f"a fleet of the study {name} needs at least {most / 1e9:,.0f} GB and this machine has "
            f"{machine.machine_memory() / 1e9:,.0f} GB; use a smaller width, depth or batch_size."
        )


def refuse_absurd(fleets: Sequence[Fleet], *, name: str, workers: int) -> None:
    """InputError for a study that cannot fit into this machine, or that would take longer than a year on it."""
    refuse_too_big(fleets, name=name)
    rate = stored_rate(workers, fleets[0].model) or default_rate(fleets[0].model) if fleets else DEFAULT_RATE
    seconds = expected_seconds(fleets, workers=workers, rate=rate)
    if seconds > YEAR:
        raise InputError(
            f"the study {name} would take about {in_words(seconds)} on {workers} workers of this machine; expected "
            "less than a year: use a GPU (--device cuda), a cluster (--executor ray), or fewer runs, epochs or "
            "evaluations."
        )


def in_words(seconds: float) -> str:
    """
    >>> [in_words(s) for s in (0.2, 59.6, 90, 4000, 1e6, 1e11)]
    ['a second', '1 min', '1 min 30 s', '1 h 6 min', '12 days', '3,169 years']
    """
    whole = round(seconds)
    if whole < 2:
        return "a second"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    if whole < 100 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{seconds / 86400:.0f} days" if seconds < 2 * YEAR else f"{seconds / YEAR:,.0f} years"


def _path() -> Path:
    return cache_folder() / "rates.json"


def _key(workers: int, model: str) -> str:
    return f"{platform.machine()}-{os.cpu_count()}-{workers}-{model}"


def _rates(workers: int, model: str) -> list[float]:
    key = _key(workers, model)
    found = _read().get(key, _SEEN.get(key, []))
    listed = found if isinstance(found, list) else [found]  # one number: a cache of an earlier version
    return [float(rate) for rate in listed if isinstance(rate, int | float) and 0 < rate <= LARGEST_RATE][-KEPT:]


def _read() -> dict[str, object]:
    try:
        found = parse_json(read_bounded(_path(), most=MEGABYTE))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
