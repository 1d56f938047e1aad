"""About how long a study takes on this machine: its cost by counting, divided by a rate that was measured here."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from tacit.studies.datasets import cache_folder
from tacit.studies.packing import Fleet, finishing_time

_SEEN: dict[str, float] = {}  # for this process, when the cache cannot be written


def expected_seconds(fleets: Sequence[Fleet], *, workers: int, rate: float) -> float:
    """When the last worker ends; `rate` is millions of operations per second and worker."""
    return finishing_time([fleet.cost for fleet in fleets], workers) / rate


def stored_rate(workers: int) -> float | None:
    """The rate seen in the last study with as many workers on this machine, if there was one."""
    found = _read().get(_key(workers), _SEEN.get(_key(workers)))
    return float(found) if isinstance(found, int | float) and found > 0 else None


def store_rate(workers: int, rate: float) -> None:
    """Best effort: without a writable cache the next study measures again."""
    _SEEN[_key(workers)] = rate
    path = _path()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({**_read(), _key(workers): rate}, indent=1))
        temporary.replace(path)


def in_words(seconds: float) -> str:
    """
    >>> [in_words(s) for s in (0.2, 59.6, 90, 4000)]
    ['a second', '1 min', '1 min 30 s', '1 h 6 min']
    """
    whole = round(seconds)
    if whole < 2:
        return "a second"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _path() -> Path:
    return cache_folder() / "rates.json"


def _key(workers: int) -> str:
    return f"{platform.machine()}-{os.cpu_count()}-{workers}"


def _read() -> dict[str, object]:
    try:
        found = json.loads(_path().read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
