"""How often a fleet is tried: from its last checkpoint after every failure, until it has failed three times.

A failure is a worker that was lost (killed, out of memory, its machine gone) or an exception in training. Both count
alike, wherever fleets run. A fleet that is given up is reported with its error; the others go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tacit._arguments import whole_number
from tacit._errors import TacitError
from tacit.studies.execute.executor import FleetTask, MessageHandler
from tacit.studies.execute.wire import Message

ATTEMPTS = 3


class FleetsFailedError(TacitError):
    """Fleets that were given up; every other fleet is done."""


@dataclass
class Attempts:
    """The failures of each fleet since this study was started, and what follows from one more."""

    limit: int = ATTEMPTS
    failures: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole_number("attempts", self.limit, at_least=1)

    def again(
        self, task: FleetTask, checkpoint: bytes | None, *, error: str, handle: MessageHandler
    ) -> FleetTask | None:
        """The task to try again, from `checkpoint` if there is one; None when it is given up.

        `error` is what happened; its last line completes a sentence that begins with the fleet.
        """
        count = self.failures[task.fleet.id] = self.failures.get(task.fleet.id, 0) + 1
        if count >= self.limit:
            handle(task.fleet, Message("failed", {"text": error, "attempts": count}))
            return None
        again = replace(task, checkpoint=checkpoint or task.checkpoint)
        what = "goes on from its last checkpoint" if again.checkpoint else "starts over"
        last = error.strip().splitlines()[-1].rstrip(".")
        text = f"fleet {task.fleet.id}: {last}; it {what} (failure {count} of {self.limit})."
        handle(task.fleet, Message("warning", {"text": text}))
        return again
