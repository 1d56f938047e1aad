"""What trains the fleets of a study: workers that are sent fleets, and how often a fleet is tried when one is lost.

A fleet is a task: a pure function of its runs, the data and perhaps a checkpoint, returning rows. An executor trains
tasks and passes on messages; it knows nothing of files. `local.LocalExecutor` has processes of this machine for
workers, `ray_executor.RayExecutor` actors on a cluster: they differ in how a worker is started and how messages are
sent and received.

A failure is a worker that was lost (killed, out of memory, its machine gone) or an exception in training. Both count
alike. A fleet is tried from its last checkpoint after every failure, until three in a row brought it no further: a new
checkpoint starts the count again. So a run of days on machines that come and go loses many workers and still ends,
while an error that repeats itself lies between two checkpoints and is met three times in a row. A fleet that is given
up is reported with its error; the others go on.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from tacit._util.arguments import whole_number
from tacit._util.errors import InputError, TacitError
from tacit.studies.execute.messages import Message
from tacit.studies.execute.signals import uninterrupted
from tacit.studies.train.packing import Fleet

ATTEMPTS = 3
LAST_CHECKPOINT_SECONDS = 15.0  # how long stopping waits for the workers' last checkpoints
PROGRESS_SECONDS = 0.3  # between two reports of a worker; more when there are many workers
FALSE_STARTS = 10  # workers in a row that were gone before they were ready: then something is wrong for all of them
LOST_AT_ONCE = 3  # times all workers: machines that are lost while many workers start there are no such sign


class FleetsFailedError(TacitError):
    """Fleets that were given up; every other fleet is done."""


@dataclass(frozen=True)
class FleetTask:
    """One fleet to train, from a checkpoint if there is one."""

    fleet: Fleet
    checkpoint: bytes | None = None
    checkpoint_seconds: float = 10.0
    keep_weights: bool = False  # whether the worker also sends the final parameters of each run


@dataclass(frozen=True)
class Lost:
    """A worker is gone. `how` ends a sentence; `broken` says that another one would end the same way."""

    how: str
    broken: bool = False


Event = Message | Lost  # what an executor receives from a worker
MessageHandler = Callable[[Fleet, Message], None]


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


@dataclass(eq=False)
class Worker(ABC):
    """One worker as its executor sees it."""

    task: FleetTask | None = None
    ready: bool = False
    checkpoint: bytes | None = None  # the last one of its task

    @abstractmethod
    def send(self, message: Message) -> None:
        """Never raises: that a worker is gone is an event of `_receive`."""

    @abstractmethod
    def end(self) -> None:
        """End it now. Nothing is lost that a checkpoint does not hold."""


class Executor(ABC):
    """Up to `workers` workers. They start when first needed and serve several studies until closed."""

    waits_until_ready = False  # whether a fleet is handed only to a worker that is known to run
    keeps_idle = True  # whether workers without a fleet stay for the next study
    progress_seconds = PROGRESS_SECONDS
    more_information = "see above"  # where to read more about a worker that was lost

    def __init__(self, workers: int, *, attempts: int = ATTEMPTS) -> None:
        self.workers = whole_number("workers", workers, at_least=1)
        self.attempts = Attempts(attempts).limit  # checked now, not when the first fleet fails
        self._pool: list[Worker] = []
        self._false_starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _start(self) -> Worker: ...

    @abstractmethod
    def _receive(self) -> list[tuple[Worker, Event]]:
        """What arrived within about a second."""

    def run(self, tasks: Sequence[FleetTask], handle: MessageHandler) -> None:
        """Train every task; `handle` gets progress, checkpoints, warnings, rows and failures as they come."""
        waiting, attempts = list(tasks), Attempts(self.attempts)
        try:
            while waiting or any(worker.task for worker in self._pool):
                with uninterrupted():  # half a frame, or rows that were received and not stored, would be lost
                    self._hand_out(waiting)
                    for worker, event in self._receive():
                        again = self._handle(worker, event, attempts, handle)
                        if again is not None:
                            waiting.insert(0, again)
            if not self.keeps_idle:
                for worker in [*self._pool]:
                    self._forget(worker)
        except KeyboardInterrupt:
            self._collect_last_checkpoints(handle)
            raise
        except BaseException:
            self.close()  # rows that cannot be stored need no workers
            raise

    def close(self) -> None:
        """End the workers. Nothing is lost that a checkpoint does not hold."""
        while self._pool:
            self._pool.pop().end()

    # -- the loop -------------------------------------------------------------------------------------------------
    def _hand_out(self, waiting: list[FleetTask]) -> None:
        busy = sum(worker.task is not None for worker in self._pool)
        while len(self._pool) < min(self.workers, busy + len(waiting)):
            self._pool.append(self._start())
        for worker in [worker for worker in self._pool if worker.task is None]:
            if waiting and (worker.ready or not self.waits_until_ready):
                worker.task, worker.checkpoint = waiting.pop(0), None
                facts = {
                    "runs": [run.model_dump() for run in worker.task.fleet.runs],
                    "checkpoint_seconds": worker.task.checkpoint_seconds,
                    "progress_seconds": max(self.progress_seconds, self.workers / 100),
                    "keep_weights": worker.task.keep_weights,
                }
                worker.send(Message("train", facts, worker.task.checkpoint or b""))
            elif not waiting and not self.keeps_idle:
                self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        self._pool.remove(worker)
        worker.end()

    def _handle(self, worker: Worker, event: Event, attempts: Attempts, handle: MessageHandler) -> FleetTask | None:
        """Pass on an event of a worker; returns the task to try again if it failed."""
        task, error = worker.task, ""
        if isinstance(event, Lost):
            self._forget(worker)
            self._count_false_start(worker, event)
            error = f"its worker {event.how}"
        elif event.kind == "ready":
            worker.ready, self._false_starts = True, 0
            return None
        elif event.kind == "failed":
            self._forget(worker)  # after an exception a device may be unusable for the whole process
            error = event.facts["text"]
            if event.facts["input"]:  # such as a device that is not there: every other attempt would end the same way
                raise InputError(error)
        if task is None:
            return None
        if error:
            worker.task = None
            return attempts.again(task, worker.checkpoint, error=error, handle=handle)
        assert isinstance(event, Message)
        if event.kind == "checkpoint":
            worker.checkpoint = event.content
        handle(task.fleet, event)
        if event.kind == "checkpoint":
            worker.task = replace(task, checkpoint=None)  # the older one is not needed any more
        elif event.kind in ("rows", "stopped"):
            worker.task = None
        return None

    def _count_false_start(self, worker: Worker, lost: Lost) -> None:
        if worker.ready:
            return
        self._false_starts += 1
        if lost.broken or self._false_starts >= max(FALSE_STARTS, LOST_AT_ONCE * self.workers):
            raise TacitError(f"a worker {lost.how} while starting; {self.more_information}.")

    def _collect_last_checkpoints(self, handle: MessageHandler) -> None:
        """Ask every busy worker for a checkpoint, hand those on, and end them all."""
        try:
            for worker in self._pool:
                worker.send(Message("stop"))
            end = time.monotonic() + LAST_CHECKPOINT_SECONDS
            while any(worker.task and worker.ready for worker in self._pool) and time.monotonic() < end:
                for worker, event in self._receive():
                    if isinstance(event, Lost) or event.kind == "failed":
                        self._forget(worker)
                    else:
                        self._handle(worker, event, Attempts(), handle)
        finally:
            self.close()
