"""Run a study, or go on with it: pack, skip what is finished, train the rest, store the rows."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tacit._counted import counted
from tacit._errors import InputError
from tacit.studies import estimate
from tacit.studies.cost import DEVICE_TFLOPS, UTILISATION, Cost, cost, in_digits
from tacit.studies.data.load import load
from tacit.studies.describe.study import Study, load_study
from tacit.studies.execute.attempts import ATTEMPTS
from tacit.studies.execute.local import Executor, LocalExecutor, known_device, named_in_environment, trains_on
from tacit.studies.execute.pool import RateUnknownError
from tacit.studies.execute.signals import terminable
from tacit.studies.store.folder import Damage, Row, StudyFolder, read_rows
from tacit.studies.store.writer import Recorder
from tacit.studies.train.packing import Fleet, pack

if TYPE_CHECKING:
    from tacit.studies.execute.ray.executor import RayExecutor

CHECKPOINT_SECONDS = 10.0
EXECUTORS = ("local", "ray")
DAY = 24 * 3600.0
LOG = logging.getLogger("tacit.studies")


@dataclass(frozen=True)
class Plan:
    """What is to be done: all fleets, those already finished, and about how long the rest takes."""

    study: Study
    fleets: tuple[Fleet, ...]
    finished: frozenset[str]
    workers: int
    seconds: float
    rough: bool = False  # the rate is a guess: nothing was measured yet, or could be
    guessed: bool = False  # nobody asked the workers: each is taken to be as fast as a core of this machine
    here: bool = False  # the time is for cores of this machine, which begin nothing that takes more than a year

    @property
    def remaining(self) -> list[Fleet]:
        return [fleet for fleet in self.fleets if fleet.id not in self.finished]

    def __str__(self) -> str:
        text = f"{self.study.name}: {counted(len(self.study.runs), 'run')} in {counted(len(self.fleets), 'fleet')}"
        if not self.remaining:
            return f"{text}, all finished"
        if self.finished:
            text += f", {len(self.finished)} finished"
        about = "roughly" if self.rough else "about"
        text += f", {about} {estimate.in_words(self.seconds)} on {counted(self.workers, 'worker')}"
        text += ", each as fast as a core of this machine" if self.guessed else ""
        return f"{text}\n{self._elsewhere()}" if self.seconds > DAY else text

    @property
    def cost(self) -> Cost:
        """What is left to do, in numbers that mean the same on every machine."""
        return cost(run for fleet in self.remaining for run in fleet.runs)

    def _elsewhere(self) -> str:
        """For a study of more than a day: what another machine would need, and whether this one would train it."""
        left = self.cost
        text = (
            f"{in_digits(left.updates)} updates, {in_digits(left.operations)} floating-point operations: about "
            f"{estimate.in_words(left.device_seconds())} on one device of {DEVICE_TFLOPS:g} TFLOP/s used to "
            f"{UTILISATION:.0%}"
        )
        if not self.here or self.seconds <= estimate.YEAR:
            return f"{text}."
        return (
            f"{text}.\nMore than a year is not begun on cores of this machine: use a GPU (--device cuda) or a cluster "
            "(--executor ray)."
        )


class Watcher:
    """What a study tells while it runs. This one logs; the command line draws."""

    def planned(self, plan: Plan) -> None:
        LOG.info("%s", plan)

    def advanced(self, done: float) -> None:
        """`done` is the share of the whole study's work, from 0 to 1."""

    def said(self, text: str) -> None:
        LOG.warning("%s", text)

    def ended(self) -> None:
        """Called once, however it ends."""


def run(
    source: str | Path | Study,
    into: str | Path | None = None,
    *,
    executor: str | Executor = "local",
    address: str | None = None,
    device: str | None = None,
    workers: int | None = None,
    attempts: int = ATTEMPTS,
    overrides: Sequence[str] = (),
    watcher: Watcher | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> list[Row]:
    """Train every run of a study that has no row yet, and return all rows, in the order of the study.

    `source` is a study file or a Study; `into` is the study's folder (`runs/NAME` without it). A folder that was
    killed, at any moment, goes on from its last checkpoints, and ends with the same bytes of rows. Rows don't depend
    on `workers` or `executor`: `local` processes, `ray` (at `address`, or on this machine), or an object of your own,
    which then has its own device and attempts. A fleet that fails `attempts` times is left out, and FleetsFailedError
    is raised when the others are done. On Ctrl-C, and on SIGTERM in the main thread, the last checkpoints are stored;
    then KeyboardInterrupt is raised (after SIGTERM its subclass `signals.Terminated`).
    """
    study = load_study(source, overrides=overrides)
    folder = StudyFolder(Path(into) if into is not None else Path("runs") / study.name)
    watcher = watcher or Watcher()
    elsewhere = _is_elsewhere(executor, device)  # what was measured on this machine says nothing then
    try:
        fleets = tuple(pack(study.runs))
        if not elsewhere:
            estimate.refuse_absurd(_unfinished(folder, fleets), name=study.name, workers=workers or cores())
        with terminable(), folder.locked(), contextlib.ExitStack() as opened:
            folder.open_for(study)
            finished = frozenset(fleet.id for fleet in fleets if _is_finished(folder, fleet, watcher))
            remaining = [fleet for fleet in fleets if fleet.id not in finished]
            if not remaining:
                watcher.planned(Plan(study, fleets, finished, workers or cores(), 0.0))
                return read_rows(folder.path)
            for name in sorted({fleet.runs[0].dataset for fleet in remaining}):
                load(name)  # made once here, so that workers find it in the cache
            if isinstance(executor, str):
                executor = make_executor(executor, workers, address=address, device=device, attempts=attempts)
                opened.callback(executor.close)
            count = workers or getattr(executor, "workers", None) or cores()
            rate = _rate(remaining, executor, workers=count, elsewhere=elsewhere)
            seconds = estimate.expected_seconds(remaining, workers=count, rate=rate or estimate.DEFAULT_RATE)
            watcher.planned(Plan(study, fleets, finished, count, seconds, rough=rate is None))
            recorder = Recorder(folder, fleets, finished, watcher, checkpoint_seconds)
            recorder.train(remaining, executor, rate_for=None if elsewhere else count)
    finally:
        watcher.ended()
    return read_rows(folder.path)


def plan(
    source: str | Path | Study,
    into: str | Path | None = None,
    *,
    executor: str = "local",
    device: str | None = None,
    workers: int | None = None,
    overrides: Sequence[str] = (),
) -> Plan:
    """What `run` would do, without doing it: nothing is written, nothing measured, torch is not imported.

    A study that would take years on this machine has a plan too, because its cost is what one wants to know. The time
    is for cores of this machine unless `executor` and `device` name something else.
    """
    _known_executor(executor)
    here = executor == "local" and (known_device(device) or named_in_environment() or "cpu") in ("auto", "cpu")
    study = load_study(source, overrides=overrides)
    folder = StudyFolder(Path(into) if into is not None else Path("runs") / study.name)
    fleets = tuple(pack(study.runs))
    remaining = _unfinished(folder, fleets)
    finished = frozenset(fleet.id for fleet in fleets) - {fleet.id for fleet in remaining}
    count = workers or cores()
    if here:
        estimate.refuse_too_big(remaining, name=study.name)
    rate = estimate.stored_rate(count)
    seconds = estimate.expected_seconds(remaining, workers=count, rate=rate or estimate.DEFAULT_RATE)
    return Plan(study, fleets, finished, count, seconds, rough=rate is None or not here, guessed=not here, here=here)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_elsewhere(executor: str | Executor, device: str | None) -> bool:
    """Whether fleets train on something else than cores of this machine; a wrong name is refused here, before all."""
    if not isinstance(executor, str):
        return bool(getattr(executor, "elsewhere", False))
    _known_executor(executor)
    known_device(device)
    if executor == "ray":
        from tacit.studies.execute.ray.session import import_ray

        import_ray()
    return executor == "ray" or trains_on(device) != "cpu"


def _known_executor(name: str) -> None:
    if name not in EXECUTORS:
        raise InputError(f"executor={name!r} is unknown; use {' or '.join(EXECUTORS)}.")


def make_executor(
    name: str,
    workers: int | None = None,
    *,
    address: str | None = None,
    device: str | None = None,
    attempts: int = ATTEMPTS,
) -> LocalExecutor | RayExecutor:
    """An executor by its name. Without `workers`: one per core, one on a GPU, or as many as a cluster has room for."""
    _known_executor(name)
    if name == "ray":
        from tacit.studies.execute.ray.executor import RayExecutor

        return RayExecutor(workers, address=address, device=device, attempts=attempts)
    if workers is None:
        workers = cores() if trains_on(device) == "cpu" else 1
    return LocalExecutor(workers, device=device, attempts=attempts)


def _rate(fleets: Sequence[Fleet], executor: Executor, *, workers: int, elsewhere: bool) -> float | None:
    """The rate of earlier studies, or measured now; None when the first fleet fails at it, which stops no other."""
    rate = None if elsewhere else estimate.stored_rate(workers)
    if rate is not None:
        return rate
    try:
        rate = executor.calibrate(fleets)
    except RateUnknownError:
        return None
    if not elsewhere:
        estimate.store_rate(workers, rate)
    return rate


def _unfinished(folder: StudyFolder, fleets: Sequence[Fleet]) -> list[Fleet]:
    return [fleet for fleet in fleets if not isinstance(folder.rows(fleet.id), list)]


def _is_finished(folder: StudyFolder, fleet: Fleet, watcher: Watcher) -> bool:
    """Finished means: rows that the store trusts. Others are told of and moved aside."""
    rows = folder.rows(fleet.id)
    if isinstance(rows, Damage):
        kept = "that fleet is trained again, and the file is kept as rows.damaged.jsonl"
        watcher.said(f"{folder.rows_path(fleet.id)} {rows}; {kept}.")
        folder.discard_rows(fleet.id)
    elif rows is not None:
        folder.tidy(fleet.id)  # a process may have been killed between its last two files
    return isinstance(rows, list)
