"""What running a study would do: its fleets, those already finished, and what the rest costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit._counted import counted
from tacit._errors import InputError
from tacit.studies import estimate
from tacit.studies.cost import DEVICE_TFLOPS, UTILISATION, Cost, cost, in_digits
from tacit.studies.describe.study import Study, load_study
from tacit.studies.execute.machine import cores, known_device, named_in_environment
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.train.checkpoint import share_done
from tacit.studies.train.packing import Fleet, finishing_time

EXECUTORS = ("local", "ray")
DAY = 24 * 3600.0


@dataclass(frozen=True)
class Plan:
    """What is to be done: the fleets that are left to train, and about how long they take."""

    study: Study
    fleets: tuple[Fleet, ...]
    workers: int
    seconds: float
    rough: bool = False  # the rate is a guess: nothing was measured yet, or could be
    guessed: bool = False  # the workers were not measured: each is taken to be as fast as a core of this machine
    here: bool = False  # the time is for cores of this machine, which begin nothing that takes more than a year

    @property
    def finished(self) -> int:
        """Runs that have a row."""
        return len(self.study.runs) - sum(len(fleet.runs) for fleet in self.fleets)

    def __str__(self) -> str:
        text = f"{self.study.name}: {counted(len(self.study.runs), 'run')}"
        if not self.fleets:
            return f"{text}, all finished"
        if self.finished:
            text += f", {self.finished} finished, {len(self.study.runs) - self.finished} left"
        about = "roughly" if self.rough else "about"
        text += f" in {counted(len(self.fleets), 'fleet')}, {about} {estimate.in_words(self.seconds)}"
        text += f" on {counted(self.workers, 'worker')}"
        text += ", each as fast as a core of this machine" if self.guessed else ""
        return f"{text}\n{self._on_other_machines()}" if self.seconds > DAY else text

    @property
    def cost(self) -> Cost:
        """What is left to do, in numbers that mean the same on every machine."""
        return cost(run for fleet in self.fleets for run in fleet.runs)

    def _on_other_machines(self) -> str:
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


def make_plan(
    source: str | Path | Study,
    into: str | Path | ResultsFolder | None = None,
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
    known_executor(executor)
    here = executor == "local" and (known_device(device) or named_in_environment() or "cpu") in ("auto", "cpu")
    study = load_study(source, overrides=overrides)
    folder = results_folder(study, into)
    fleets = folder.unfinished(study)
    count = workers or cores()
    if here:
        estimate.refuse_too_big(fleets, name=study.name)
    rate = estimate.stored_rate(count, fleets[0].model) if fleets else None
    seconds = seconds_left(folder, fleets, workers=count, rate=rate)
    return Plan(study, tuple(fleets), count, seconds, rough=rate is None or not here, guessed=not here, here=here)


def results_folder(study: Study, into: str | Path | ResultsFolder | None) -> ResultsFolder:
    """The folder for the rows of a study: the one given, or runs/NAME."""
    if isinstance(into, ResultsFolder):
        return into
    return ResultsFolder(Path(into) if into is not None else Path("runs") / study.name)


def seconds_left(folder: ResultsFolder, fleets: Sequence[Fleet], *, workers: int, rate: float | None) -> float:
    """About how long the fleets take from their checkpoints on, when the last worker ends."""
    left = [fleet.cost * (1 - share_done(folder.read_checkpoint(fleet.id) or b"")) for fleet in fleets]
    return finishing_time(left, workers) / (rate or estimate.default_rate(fleets[0].model)) if fleets else 0.0


def known_executor(name: str) -> None:
    if name not in EXECUTORS:
        raise InputError(f"executor={name!r} is unknown; use {' or '.join(EXECUTORS)}.")
