"""How far the studies of a folder are, from its files alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit._counted import counted
from tacit._errors import TacitError
from tacit.studies.describe.spec import RunSpec
from tacit.studies.describe.study import Study
from tacit.studies.store.folder import ResultsFolder, results_folders
from tacit.studies.train import checkpoint
from tacit.studies.train.packing import Fleet

GO_ON = "run the same command again to go on."


@dataclass(frozen=True)
class Status:
    """Counts of a study's runs and of the fleets that are left; `done` is the share of its work."""

    name: str
    question: str
    runs: int
    rows: Counter[str]  # by status
    fleets: Counter[str]  # that are left, by state
    done: float
    failed: tuple[str, ...] = ()  # a sentence for each fleet that was given up

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.done:.0%} done",
            f"  runs:   {sum(self.rows.values())} of {self.runs} have a row ({_listed(self.rows) or 'none yet'})",
            *([f"  fleets: {_listed(self.fleets)}"] if self.fleets else []),
            *[f"  failed: {text}" for text in self.failed],
        ]
        return "\n".join([lines[0], f"  {self.question}", *lines[1:]] if self.question else lines)


@dataclass(frozen=True)
class FolderStatus:
    """The studies of one folder of results, and the files that cannot be used."""

    path: Path
    running: bool
    studies: tuple[Status, ...]
    damaged: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def __str__(self) -> str:
        work = "a process is at work" if self.running else "no process is at work"
        lines = [
            f"{self.path}: {_studies(len(self.studies))}, {work}",
            *map(str, self.studies),
            *[f"damaged: {path}; `tacit run` trains its runs again" for path in self.damaged],
            *[f"unreadable: {text}" for text in self.unreadable],
        ]
        if not self.running and all(study.done == 1 for study in self.studies):
            lines.append(f"next: tacit report {self.path}")
        return "\n".join(lines)


def folder_status(folder: str | Path) -> list[FolderStatus]:
    """The status of a folder of results, or of those directly inside. Nothing is changed and no lock is taken."""
    return [_status(found) for found in results_folders(folder)]


def _status(folder: ResultsFolder) -> FolderStatus:
    contents = folder.contents()
    unreadable = [str(error) for error in contents.unreadable.values()]
    studies = []
    for study in folder.studies():
        rows = Counter(contents.rows[run.hash]["status"] for run in study.runs if run.hash in contents.rows)
        fleets: list[Fleet] = [] if contents.unreadable else folder.unfinished(study)
        studies.append(_study_status(folder, study, rows=rows, fleets=fleets, unreadable=unreadable))
    damaged = tuple(map(str, contents.damaged))
    return FolderStatus(folder.path, folder.is_locked(), tuple(studies), damaged, tuple(unreadable))


def _study_status(
    folder: ResultsFolder, study: Study, *, rows: Counter[str], fleets: Sequence[Fleet], unreadable: list[str]
) -> Status:
    """`unreadable` gets a sentence for each checkpoint that cannot be read now."""
    states: Counter[str] = Counter()
    failed, left, running = [], 0.0, folder.is_locked()
    for fleet in fleets:
        found = fleet_progress(folder, fleet.id, running=running)
        states[found.state] += 1
        if found.unreadable:
            unreadable.append(found.unreadable)
        if found.failure is not None:
            failed.append(f"fleet {fleet.id}, {last_line(found.failure)}; `tacit run` tries it again")
        left += (1 - found.done) * work_of(fleet.runs)
    done = 1 - left / work_of(study.runs) if fleets else sum(rows.values()) / len(study.runs)
    return Status(study.name, study.question, len(study.runs), rows, states, done, tuple(failed))


def work_of(runs: Sequence[RunSpec]) -> float:
    """The work of runs in millions of operations, however they are packed."""
    return sum(Fleet((run,)).cost for run in runs)


@dataclass(frozen=True)
class FleetProgress:
    """How far an unfinished fleet is. `checkpoint` is the state of its last one, unchecked, empty without one."""

    state: str  # waiting, under way, failed, unreadable
    checkpoint: dict[str, Any] = field(default_factory=dict)
    failure: dict[str, Any] | None = None
    unreadable: str = ""

    @property
    def done(self) -> float:
        return checkpoint.share_in(self.checkpoint)


def fleet_progress(folder: ResultsFolder, fleet: str, *, running: bool) -> FleetProgress:
    """The progress of an unfinished fleet from its files; `running` says whether a process trains in this folder."""
    try:
        state = folder.checkpoint_state(fleet)
    except TacitError as error:  # the others can still be counted
        return FleetProgress("unreadable", unreadable=str(error))
    failure = folder.failure(fleet)
    begun = state is not None or (running and folder.has_begun(fleet))
    return FleetProgress("failed" if failure else "under way" if begun else "waiting", state or {}, failure)


def last_line(failure: dict[str, Any]) -> str:
    """How often a fleet failed, and the last line of its error."""
    lines = str(failure.get("error", "")).strip().splitlines()
    return f"{failure.get('attempts', '?')} failures, the last: {lines[-1] if lines else 'unknown'}"


def stopped_message(path: str | Path) -> str:
    """What a folder of results holds after it was stopped, and how to go on."""
    try:
        folder = ResultsFolder(Path(path))
        finished = len(folder.contents().rows)
        under_way = sum(1 for root in folder.roots for _ in root.glob("fleets/*/checkpoint.safetensors"))
    except (TacitError, OSError) as unreadable:  # the study was stopped all the same, and its exit code says so
        return f"stopped; {unreadable} Then {GO_ON}"
    kept = [counted(finished, "finished run")] if finished else []
    kept += [counted(under_way, "checkpoint")] if under_way else []
    if not kept:
        return f"stopped before the first checkpoint: nothing is stored yet; {GO_ON}"
    return f"stopped; {' and '.join(kept)} stored: {GO_ON}"


def _studies(number: int) -> str:
    return "1 study" if number == 1 else f"{number} studies"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())
