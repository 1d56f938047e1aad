"""What running a study would do: its fleets, those already finished, and what the rest costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit._util.errors import InputError
from tacit._util.plural import counted
from tacit.studies.cost import Cost, cost, refuse_too_big
from tacit.studies.describe.study import Study, load_study
from tacit.studies.execute.machine import known_device, named_in_environment
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.train.packing import Fleet

EXECUTORS = ("local", "ray")


@dataclass(frozen=True)
class Plan:
    """What is to be done: the fleets that are left to train."""

    study: Study
    fleets: tuple[Fleet, ...]

    @property
    def finished(self) -> int:
        """Runs that have a row."""
        return len(self.study.runs) - sum(len(fleet.runs) for fleet in self.fleets)

    @property
    def cost(self) -> Cost:
        """What is left to do, in numbers that mean the same on every machine."""
        return cost(run for fleet in self.fleets for run in fleet.runs)

    def __str__(self) -> str:
        text = f"{self.study.name}: {counted(len(self.study.runs), 'run')}"
        if not self.fleets:
            return f"{text}, all finished"
        if self.finished:
            text += f", {self.finished} finished, {len(self.study.runs) - self.finished} left"
        return f"{text} in {counted(len(self.fleets), 'fleet')}, {self.cost}"


def make_plan(
    source: str | Path | Study,
    into: str | Path | ResultsFolder | None = None,
    *,
    executor: str = "local",
    device: str | None = None,
    overrides: Sequence[str] = (),
) -> Plan:
    """What `run` would do, without doing it: nothing is written, torch is not imported."""
    known_executor(executor)
    wanted = known_device(device) or named_in_environment() or "cpu"
    study = load_study(source, overrides=overrides)
    fleets = results_folder(study, into).unfinished(study)
    if executor == "local" and wanted in ("auto", "cpu"):
        refuse_too_big(fleets, name=study.name)
    return Plan(study, tuple(fleets))


def results_folder(study: Study, into: str | Path | ResultsFolder | None) -> ResultsFolder:
    """The folder for the rows of a study: the one given, or runs/NAME."""
    if isinstance(into, ResultsFolder):
        return into
    return ResultsFolder(Path(into) if into is not None else Path("runs") / study.name)


def known_executor(name: str) -> None:
    if name not in EXECUTORS:
        raise InputError(f"executor={name!r} is unknown; use {' or '.join(EXECUTORS)}.")
