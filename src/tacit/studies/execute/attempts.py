"""How often a fleet is tried: from its last checkpoint after every failure, until three in a row brought it no further.

A failure is a worker that was lost (killed, out of memory, its machine gone) or an exception in training. Both count
alike, wherever fleets run. A new checkpoint since the last failure starts the count again: a run of days on machines
that come and go loses many workers and still ends, while an error that repeats itself lies between two checkpoints and
is met three times in a row. A fleet that is given up is reported with its error; the others go on.
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
    """The failures of each fleet since its last checkpoint, and what follows from one more."""

    limit: int = ATTEMPTS
    failures: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole_number("attempts", self.limit, at_least=1)

    def again(
        self, task: FleetTask, checkpoint: bytes | None, *, error: str, handle: MessageHandler
    ) -> FleetTask | None:
        """The task to try again, from `checkpoint`, the last one since it was handed out; None when it is given up.

        `error` is what happened; its last line completes a sentence that begins with the fleet.
        """
        before = 0 if checkpoint is not None else self.failures.get(task.fleet.id, 0)
        count = self.failures[task.fleet.id] = before + 1
        if count >= self.limit:
            handle(task.fleet, Message("failed", {"text": error, "attempts": count}))
            return None
        again = replace(task, checkpoint=checkpoint or task.checkpoint)
        what = "goes on from its last checkpoint" if again.checkpoint else "starts over"
        last = error.strip().splitlines()[-1].rstrip(".")
        text = f"fleet {task.fleet.id}: {last}; it {what} (failure {count} of {self.limit})."
        handle(task.fleet, Message("warning", {"text": text}))
        return again
