"""How far the studies of a folder are, from its files alone: for `tacit status` and for the live page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tacit._util.errors import TacitError
from tacit._util.plural import counted
from tacit.studies.describe.spec import RunSpec
from tacit.studies.describe.study import Study
from tacit.studies.store.folder import Contents, ResultsFolder, results_folders
from tacit.studies.store.rows import Row
from tacit.studies.train import checkpoint
from tacit.studies.train.packing import Fleet

GO_ON = "run the same command again to go on."


@dataclass(frozen=True)
class FleetStatus:
    """How far an unfinished fleet is."""

    fleet: Fleet
    state: str  # waiting, under way, stopped, failed, unreadable
    checkpoint: dict[str, Any] = field(default_factory=dict)  # the state of the last one, unchecked; empty without one
    failure: dict[str, Any] | None = None
    problem: str = ""  # why the checkpoint cannot be read now

    @property
    def done(self) -> float:
        return checkpoint.share_in(self.checkpoint)


@dataclass(frozen=True)
class StudyStatus:
    """The rows of a study so far, and its fleets that are left."""

    study: Study
    rows: tuple[Row, ...]
    left: tuple[FleetStatus, ...]

    @cached_property
    def done(self) -> float:
        """The share of the study's work that is done."""
        if not self.left:
            return len(self.rows) / len(self.study.runs)
        left = sum((1 - each.done) * _work(each.fleet.runs) for each in self.left)
        return max(0.0, 1 - left / _work(self.study.runs))  # sums of the same runs differ in the last digit

    @property
    def fleets(self) -> Counter[str]:
        """The fleets that are left, by state."""
        return Counter(each.state for each in self.left)

    def __str__(self) -> str:
        by_status = Counter(row["status"] for row in self.rows)
        lines = [
            f"{self.study.name}: {self.done:.0%} done",
            *([f"  {self.study.question}"] if self.study.question else []),
            f"  runs:   {len(self.rows)} of {len(self.study.runs)} have a row ({_listed(by_status) or 'none yet'})",
            *([f"  fleets: {_listed(self.fleets)}"] if self.left else []),
        ]
        for each in self.left:
            if each.failure is not None:
                last = _last_line(each.failure)
                lines.append(f"  failed: fleet {each.fleet.id}, {last}; `tacit run` tries it again")
        return "\n".join(lines)


@dataclass(frozen=True)
class FolderStatus:
    """The studies of one folder of results, its rows, and what cannot be used of it."""

    path: Path
    running: bool  # whether a process trains here
    studies: tuple[StudyStatus, ...]
    contents: Contents
    broken: tuple[str, ...]  # a sentence for every study that cannot be read

    @property
    def damaged(self) -> tuple[str, ...]:
        """Files of rows that are not trusted."""
        return tuple(map(str, self.contents.damaged))

    @property
    def unreadable(self) -> tuple[str, ...]:
        """A sentence for every file that cannot be read now."""
        checkpoints = [each.problem for study in self.studies for each in study.left if each.problem]
        return (*map(str, self.contents.unreadable.values()), *checkpoints)

    @property
    def problems(self) -> list[str]:
        """A sentence for everything that cannot be used."""
        damaged = [f"{path} {why}; `tacit run` trains its runs again" for path, why in self.contents.damaged.items()]
        return [*self.broken, *damaged, *self.unreadable]

    def __str__(self) -> str:
        work = "a process is at work" if self.running else "no process is at work"
        number = "1 study" if len(self.studies) == 1 else f"{len(self.studies)} studies"
        lines = [f"{self.path}: {number}, {work}", *map(str, self.studies)]
        lines += [f"problem: {text}" for text in self.problems]
        if not self.running and not self.broken and all(study.done == 1 for study in self.studies):
            lines.append(f"next: tacit report {self.path}")
        return "\n".join(lines)


def folder_status(path: str | Path) -> list[FolderStatus]:
    """The status of a folder of results, or of those directly inside. Nothing is changed."""
    return [status_of(folder) for folder in results_folders(path)]


def status_of(folder: ResultsFolder) -> FolderStatus:
    """The status of one folder. A second call reads only files that have changed since the first."""
    contents, running = folder.contents(), folder.is_locked()
    studies, broken = {}, []
    for path in folder.study_files():
        try:
            study = folder.study(path)
            # Where rows cannot be read, what is finished is not known.
            fleets = [] if contents.unreadable else folder.unfinished(study, contents)
        except TacitError as error:  # the others can still be counted
            broken.append(str(error))
            continue
        rows = tuple(contents.rows[run.hash] for run in study.runs if run.hash in contents.rows)
        left = tuple(_fleet_status(folder, fleet, running=running) for fleet in fleets)
        studies[study.name] = StudyStatus(study, rows, left)
    in_order = tuple(studies[name] for name in sorted(studies))
    return FolderStatus(folder.path, running, in_order, contents, tuple(broken))


def _fleet_status(folder: ResultsFolder, fleet: Fleet, *, running: bool) -> FleetStatus:
    try:
        state, failure = folder.checkpoint_state(fleet.id), folder.failure(fleet.id)
    except TacitError as error:
        return FleetStatus(fleet, "unreadable", problem=str(error))
    if failure is not None:
        word = "failed"
    elif running:
        word = "under way" if state is not None or folder.has_begun(fleet.id) else "waiting"
    else:
        word = "stopped" if state is not None else "waiting"
    return FleetStatus(fleet, word, state or {}, failure)


def _work(runs: Sequence[RunSpec]) -> float:
    """The work of runs in millions of operations, however they are packed."""
    return sum(Fleet((run,)).cost for run in runs)


def _last_line(failure: dict[str, Any]) -> str:
    """How often a fleet failed, and the last line of its error."""
    lines = str(failure.get("error", "")).strip().splitlines()
    return f"{failure.get('attempts', '?')} failures, the last: {lines[-1] if lines else 'unknown'}"


def stopped_message(path: str | Path) -> str:
    """What a folder of results holds after it was stopped, and how to go on."""
    folder = ResultsFolder(Path(path))
    try:
        finished = len(folder.contents().rows)
        under_way = len(list(folder.path.glob("fleets/*/checkpoint.safetensors")))
    except (TacitError, OSError) as unreadable:  # the study was stopped all the same, and its exit code says so
        return f"stopped; {unreadable} Then {GO_ON}"
    kept = [counted(finished, "finished run")] if finished else []
    kept += [counted(under_way, "checkpoint")] if under_way else []
    if not kept:
        return f"stopped before the first checkpoint: nothing is stored yet; {GO_ON}"
    return f"stopped; {' and '.join(kept)} stored: {GO_ON}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())
