"""The one writer of a folder of results: turns the messages of executors into files, and into a share of work done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tacit._util.plural import counted
from tacit._util.provenance import provenance
from tacit.studies.execute.messages import Message
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.train.packing import Fleet


@dataclass
class StudyWriter:
    """Stores what happens to the fleets that are left of a study. Needs the folder's lock."""

    folder: ResultsFolder
    fleets: Sequence[Fleet]
    advanced: Callable[[float], None]  # receives the share that is done of the work that was left
    warned: Callable[[str], None]
    at_start: Mapping[str, float]  # the share of each fleet that its checkpoint holds
    started: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.done = dict(self.at_start)

    def handle(self, fleet: Fleet, message: Message) -> None:
        """Store one message about a fleet."""
        if fleet.id not in self.started:
            self.started[fleet.id] = _now()
            self.folder.begin(fleet.id)
        if message.kind == "progress":
            self.done[fleet.id] = message.facts["done"]
        elif message.kind == "checkpoint":
            self.folder.write_checkpoint(fleet.id, message.content)
        elif message.kind == "weights":
            self.folder.write_weights(message.facts["run"], message.content)
        elif message.kind == "warning":
            self.warnings[fleet.id] = self.warnings.get(fleet.id, 0) + 1
            self.warned(message.facts["text"])
        elif message.kind == "failed":
            self._give_up(fleet, error=message.facts["text"], attempts=message.facts["attempts"])
        elif message.kind == "rows":
            self.folder.write_rows(fleet.id, message.facts["rows"], meta=self._meta(fleet, message.facts))
            self.done[fleet.id] = 1.0
        self.advanced(self._share())

    def _share(self) -> float:
        """The share that is done of the work that was left when training began."""
        left = sum(fleet.cost * (1 - self.done[fleet.id]) for fleet in self.fleets)
        whole = sum(fleet.cost * (1 - self.at_start[fleet.id]) for fleet in self.fleets)
        return min(max(1 - left / whole, 0.0), 1.0) if whole else 1.0

    def _give_up(self, fleet: Fleet, *, error: str, attempts: int) -> None:
        self.failed.append(fleet.id)
        facts = {"fleet": fleet.id, "runs": len(fleet.runs), "error": error, "attempts": attempts, "ended": _now()}
        self.folder.write_failure(fleet.id, facts)
        last = error.strip().splitlines()[-1].rstrip(".")
        self.warned(f"fleet {fleet.id} failed {counted(attempts, 'time')} and is left out: {last}.")

    def _meta(self, fleet: Fleet, facts: dict[str, Any]) -> dict[str, Any]:
        return {
            "fleet": fleet.id,
            "runs": len(fleet.runs),
            "seconds": facts["seconds"],  # of the last stretch: after a resume, since the checkpoint
            "cpu_seconds": facts.get("cpu_seconds"),  # of all stretches, but for what was lost after a checkpoint
            "started": self.started[fleet.id],
            "ended": _now(),
            "warnings": self.warnings.get(fleet.id, 0),
            **(facts.get("made_by") or provenance()),
        }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
