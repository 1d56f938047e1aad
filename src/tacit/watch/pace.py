"""How fast the fleets of one model train, from what was seen of them, and how long the rest takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tacit.studies.train.packing import finishing_time

LAST = 20  # finished fleets whose rates count
# A guess before anything was seen, of a core of 2020's servers; convolutions of images do more than small products.
DEFAULT_RATES = {"wide_resnet": 72_000.0}
DEFAULT_RATE = 15_000.0
FEWEST_SECONDS = 5.0  # of watching, before a fleet under way has a rate


@dataclass
class Pace:
    """Rates in millions of operations per second and worker: of finished fleets, else of those that are under way."""

    model: str  # rates of other models say nothing
    finished: dict[str, float] = field(default_factory=dict)  # by fleet, in the order they were found
    _first: dict[str, tuple[float, float]] = field(default_factory=dict)  # by fleet: when, and the share done then
    _last: dict[str, tuple[float, float]] = field(default_factory=dict)

    def ended(self, fleet: str, *, cost: float, seconds: float | None) -> None:
        if seconds is not None and seconds > 0:
            self.finished[fleet] = cost / seconds

    def seen(self, fleet: str, done: float, *, now: float | None = None) -> None:
        """Note the share done of a fleet under way, as its last checkpoint says."""
        now = time.monotonic() if now is None else now
        if fleet not in self._first or done < self._last[fleet][1]:  # it began again
            self._first[fleet] = self._last[fleet] = (now, done)
        elif done > self._last[fleet][1]:
            self._last[fleet] = (now, done)

    def _under_way(self, costs: dict[str, float]) -> list[float]:
        found = []
        for fleet, cost in costs.items():
            if fleet in self._first:
                (began, before), (now, done) = self._first[fleet], self._last[fleet]
                if now - began >= FEWEST_SECONDS and done > before:
                    found.append(cost * (done - before) / (now - began))
        return found

    def seconds_left(self, left: Sequence[float], *, workers: int, under_way: dict[str, float]) -> tuple[float, bool]:
        """How long `left` (costs of fleets) takes on so many workers, and whether that is a rough guess.

        `under_way` are the whole costs of fleets that train now.
        """
        rates = list(self.finished.values())[-LAST:] or self._under_way(under_way)
        rate = statistics.median(rates) if rates else DEFAULT_RATES.get(self.model, DEFAULT_RATE)
        return finishing_time(left, workers) / rate, not rates
