"""How far a study is, from its folder alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit._counted import counted
from tacit._errors import InputError
from tacit.studies.store.folder import Damage, StudyFolder
from tacit.studies.train import checkpoint
from tacit.studies.train.packing import pack

GO_ON = "run the same command again to go on."


@dataclass(frozen=True)
class Status:
    """Counts of a study's fleets and runs; `done` is the share of its work."""

    name: str
    question: str
    running: bool
    runs: int
    rows: Counter[str]
    fleets: Counter[str]
    done: float
    damaged: tuple[str, ...]
    failed: tuple[str, ...] = ()  # a sentence for each fleet that was given up
    unreadable: tuple[str, ...] = ()  # a sentence for each fleet with a file that cannot be read now

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.done:.0%} done, {'a process is at work' if self.running else 'no process is at work'}",
            f"runs:   {sum(self.rows.values())} of {self.runs} have a row ({_listed(self.rows) or 'none yet'})",
            f"fleets: {_listed(self.fleets)}",
            *[f"damaged: {path}; `tacit run` trains that fleet again" for path in self.damaged],
            *[f"failed: {text}" for text in self.failed],
            *[f"unreadable: {text}" for text in self.unreadable],
        ]
        return "\n".join([self.question, *lines] if self.question else lines)


def study_status(folder: str | Path) -> Status:
    """Read the folder of a study; nothing is changed and no lock is taken."""
    store = StudyFolder(Path(folder))
    study, running = store.study(), store.is_locked()
    rows: Counter[str] = Counter()
    fleets: Counter[str] = Counter()
    damaged, failed, unreadable, done, total = [], [], [], 0.0, 0.0
    for fleet in pack(study.runs):
        total += fleet.cost
        try:
            found = store.rows(fleet.id)
            content = None if isinstance(found, list) else store.read_checkpoint(fleet.id)
        except InputError as error:  # the others can still be counted
            fleets["unreadable"] += 1
            unreadable.append(str(error))
            continue
        if isinstance(found, list):
            fleets["finished"] += 1
            rows.update(row["status"] for row in found)
            done += fleet.cost
            continue
        if isinstance(found, Damage):
            damaged.append(str(store.rows_path(fleet.id)))
        share = checkpoint.share_done(content) if content else 0.0
        failure = store.failure(fleet.id)
        if failure is not None:
            fleets["failed"] += 1
            failed.append(f"fleet {fleet.id}, {last_line(failure)}; `tacit run` tries it again")
        else:
            fleets["under way" if content or (running and store.has_begun(fleet.id)) else "waiting"] += 1
        done += fleet.cost * share
    return Status(
        name=study.name, question=study.question, running=running, runs=len(study.runs), rows=rows,
        fleets=fleets, done=done / total, damaged=tuple(damaged), failed=tuple(failed),
        unreadable=tuple(unreadable),
    )  # fmt: skip


def last_line(failure: dict[str, Any]) -> str:
    """How often a fleet failed, and the last line of its error."""
    lines = str(failure.get("error", "")).strip().splitlines()
    return f"{failure.get('attempts', '?')} failures, the last: {lines[-1] if lines else 'unknown'}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


def stopped_message(folders: Sequence[str | Path]) -> str:
    """What these study folders hold now that the study has stopped, and how to go on."""
    stores = [StudyFolder(Path(folder)) for folder in folders]
    try:
        fleets = [(store, fleet) for store in stores for fleet in store.fleets_on_disk()]
        finished = sum(not isinstance(store.rows(fleet), Damage | None) for store, fleet in fleets)
        under_way = sum(store.checkpoint_path(fleet).exists() for store, fleet in fleets)
    except InputError as unreadable:  # the study was stopped all the same, and its exit code says so
        return f"stopped; {unreadable} Then {GO_ON}"
    kept = [counted(finished, "finished fleet")] if finished else []
    kept += [counted(under_way, "checkpoint")] if under_way else []
    if not kept:
        return f"stopped before the first checkpoint: nothing is stored yet; {GO_ON}"
    return f"stopped; {' and '.join(kept)} stored: {GO_ON}"
