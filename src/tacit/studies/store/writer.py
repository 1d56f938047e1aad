"""The one writer of a study's folder: turns what executors tell into files, and into the share of work that is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from tacit._counted import counted
from tacit._provenance import provenance
from tacit.studies.execute.attempts import FleetsFailedError
from tacit.studies.execute.executor import Executor, Task
from tacit.studies.execute.wire import Message
from tacit.studies.store.folder import StudyFolder
from tacit.studies.train.packing import Fleet


class Listener(Protocol):
    """Who is told: a `runner.Watcher`."""

    def advanced(self, done: float) -> None: ...

    def said(self, text: str) -> None: ...


@dataclass
class Recorder:
    """What happens to the fleets of one study, as it happens. Needs the folder's lock."""

    folder: StudyFolder
    fleets: Sequence[Fleet]
    finished: frozenset[str]
    watcher: Listener
    checkpoint_seconds: float
    done: dict[str, float] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)
    busy_seconds: float = 0.0
    warnings: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def train(
        self, remaining: Sequence[Fleet], executor: Executor, *, keep_rate: Callable[[float], None] | None
    ) -> None:
        """Train what remains. `keep_rate` is told the rate if it is one of whole fleets on this machine."""
        self.done = {fleet.id: float(fleet.id in self.finished) for fleet in self.fleets}
        began_fresh = all(not self.folder.checkpoint_path(fleet.id).exists() for fleet in remaining)
        tasks = [Task(fleet, self.folder.read_checkpoint(fleet.id), self.checkpoint_seconds) for fleet in remaining]
        executor.run(tasks, self.heard)
        self._refuse_failed()
        # A rate worth keeping: of whole fleets, not of a few steps.
        if keep_rate is not None and began_fresh and not self.warnings and self.busy_seconds > 5:
            keep_rate(sum(fleet.cost for fleet in remaining) / self.busy_seconds)

    def heard(self, fleet: Fleet, message: Message) -> None:
        if fleet.id not in self.started:
            self.started[fleet.id] = _now()
            self.folder.begin(fleet.id)
        if message.kind == "progress":
            self.done[fleet.id] = message.facts["done"]
        elif message.kind == "checkpoint":
            self.folder.write_checkpoint(fleet.id, message.content)
        elif message.kind == "warning":
            self.warnings[fleet.id] = self.warnings.get(fleet.id, 0) + 1
            self.watcher.said(message.facts["text"])
        elif message.kind == "failed":
            self._give_up(fleet, error=message.facts["text"], attempts=message.facts["attempts"])
        elif message.kind == "rows":
            self.busy_seconds += message.facts["seconds"]
            self.folder.write_rows(fleet.id, message.facts["rows"], meta=self._meta(fleet, message.facts))
            self.done[fleet.id] = 1.0
        total = sum(each.cost for each in self.fleets)
        self.watcher.advanced(sum(each.cost * self.done[each.id] for each in self.fleets) / total)

    def _give_up(self, fleet: Fleet, *, error: str, attempts: int) -> None:
        self.failed.append(fleet.id)
        facts = {"fleet": fleet.id, "runs": len(fleet.runs), "error": error, "attempts": attempts, "ended": _now()}
        self.folder.write_failure(fleet.id, facts)
        last = error.strip().splitlines()[-1].rstrip(".")
        self.watcher.said(f"fleet {fleet.id} failed {counted(attempts, 'time')} and is left out: {last}.")

    def _refuse_failed(self) -> None:
        if self.failed:
            raise FleetsFailedError(
                f"{len(self.failed)} of {counted(len(self.fleets), 'fleet')} failed ({', '.join(self.failed)}) and the "
                f"others are finished; the errors are in {self.folder.path / 'fleets'}/ID/failed.json. "
                "Run again to try them again."
            )

    def _meta(self, fleet: Fleet, facts: dict[str, Any]) -> dict[str, Any]:
        return {
            "fleet": fleet.id,
            "runs": len(fleet.runs),
            "seconds": facts["seconds"],  # of the last stretch: after a resume, since the checkpoint
            "started": self.started[fleet.id],
            "ended": _now(),
            "warnings": self.warnings.get(fleet.id, 0),
            **(facts.get("made_by") or provenance()),
        }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
