"""The loop of an executor with workers: hand out fleets, hear what workers say, try again what failed.

The same for processes of this machine and for a cluster: what differs is how a worker is started, spoken to and heard.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tacit._arguments import whole_number
from tacit._errors import InputError, TacitError
from tacit.studies.execute.attempts import ATTEMPTS, Attempts
from tacit.studies.execute.executor import Task, Watch
from tacit.studies.execute.signals import uninterrupted
from tacit.studies.execute.wire import Message
from tacit.studies.train.packing import Fleet

LAST_WORDS_SECONDS = 15.0  # how long stopping waits for the workers' last checkpoints
PROGRESS_SECONDS = 0.3  # between two reports of a worker; more when there are many workers
FALSE_STARTS = 10  # workers in a row that were gone before they were ready: then something is wrong for all of them
LOST_AT_ONCE = 3  # times all workers: machines that are lost while many workers start there are no such sign


@dataclass(frozen=True)
class Lost:
    """A worker is gone. `how` ends a sentence; `broken` says that another one would end the same way."""

    how: str
    broken: bool = False


class RateUnknownError(TacitError):
    """No worker lived to measure a rate. Training may still go on: it knows how often a fleet is tried."""


class _LostWhileCalibratingError(Exception):
    def __init__(self, lost: Lost) -> None:
        self.lost = lost


@dataclass(eq=False)
class Worker(ABC):
    """One worker as its executor sees it."""

    task: Task | None = None
    ready: bool = False
    checkpoint: bytes | None = None  # the last one of its task

    @abstractmethod
    def send(self, message: Message) -> None:
        """Never raises: that a worker is gone is heard by listening."""

    @abstractmethod
    def end(self) -> None:
        """End it now. Nothing is lost that a checkpoint does not hold."""


class WorkerPool(ABC):
    """Up to `workers` workers. They start when first needed and serve several studies until closed."""

    waits_until_ready = False  # whether a fleet is handed only to a worker that is known to run
    keeps_idle = True  # whether workers without a fleet stay for the next study
    progress_seconds = PROGRESS_SECONDS
    last_words = "see above"  # where to read more about a worker that was lost

    def __init__(self, workers: int, *, attempts: int = ATTEMPTS) -> None:
        self.workers = whole_number("workers", workers, at_least=1)
        self.attempts = Attempts(attempts).limit  # checked now, not when the first fleet fails
        self._pool: list[Worker] = []
        self._false_starts = 0

    @abstractmethod
    def _start(self) -> Worker: ...

    @abstractmethod
    def _listen(self) -> list[tuple[Worker, Message | Lost]]:
        """What arrived within about a second."""

    def run(self, tasks: Sequence[Task], watch: Watch) -> None:
        """Train every task; one that fails is tried again from its last checkpoint, as `Attempts` says."""
        waiting, attempts = list(tasks), Attempts(self.attempts)
        try:
            while waiting or any(worker.task for worker in self._pool):
                with uninterrupted():  # half a frame read, or rows heard and not stored, would be lost
                    self._hand_out(waiting)
                    for worker, heard in self._listen():
                        again = self._heard(worker, heard, attempts, watch)
                        if again is not None:
                            waiting.insert(0, again)
            if not self.keeps_idle:
                for worker in [*self._pool]:
                    self._forget(worker)
        except KeyboardInterrupt:
            self._collect_last_words(watch)
            raise
        except BaseException:
            self.close()  # rows that cannot be stored need no workers
            raise

    def calibrate(self, fleets: Sequence[Fleet]) -> float:
        """Millions of operations per second and worker, measured now; tried as often as a fleet when workers die."""
        for attempt in range(1, self.attempts + 1):
            try:
                return self._calibrate(fleets)
            except _LostWhileCalibratingError as lost:
                if lost.lost.broken or attempt == self.attempts:
                    kind = TacitError if lost.lost.broken else RateUnknownError
                    raise kind(f"a worker {lost.lost.how} while starting; {self.last_words}.") from None
        raise AssertionError("a number of attempts is at least 1")

    def _calibrate(self, fleets: Sequence[Fleet]) -> float:
        self._start_missing(1)
        asked = self._pool[0]
        asked.send(Message("calibrate", {"runs": [run.model_dump() for run in fleets[0].runs]}))
        while True:
            for worker, heard in self._listen():
                if isinstance(heard, Lost):
                    self._forget(worker)
                    if worker is asked:
                        raise _LostWhileCalibratingError(heard)
                elif heard.kind == "ready":
                    worker.ready = True
                elif heard.kind == "rate":
                    return float(heard.facts["rate"])
                elif heard.kind == "failed":
                    self._forget(worker)
                    text = heard.facts["text"]
                    if heard.facts["input"]:
                        raise InputError(text)
                    raise _LostWhileCalibratingError(Lost(f"failed ({text.strip().splitlines()[-1]})"))

    def close(self) -> None:
        """End the workers. Nothing is lost that a checkpoint does not hold."""
        while self._pool:
            self._pool.pop().end()

    # -- the loop -------------------------------------------------------------------------------------------------
    def _hand_out(self, waiting: list[Task]) -> None:
        busy = sum(worker.task is not None for worker in self._pool)
        self._start_missing(min(self.workers, busy + len(waiting)))
        for worker in [worker for worker in self._pool if worker.task is None]:
            if waiting and (worker.ready or not self.waits_until_ready):
                worker.task, worker.checkpoint = waiting.pop(0), None
                facts = {
                    "runs": [run.model_dump() for run in worker.task.fleet.runs],
                    "checkpoint_seconds": worker.task.checkpoint_seconds,
                    "progress_seconds": max(self.progress_seconds, self.workers / 100),
                }
                worker.send(Message("train", facts, worker.task.checkpoint or b""))
            elif not waiting and not self.keeps_idle:
                self._forget(worker)

    def _start_missing(self, wanted: int) -> None:
        while len(self._pool) < wanted:
            self._pool.append(self._start())

    def _forget(self, worker: Worker) -> None:
        self._pool.remove(worker)
        worker.end()

    def _heard(self, worker: Worker, heard: Message | Lost, attempts: Attempts, watch: Watch) -> Task | None:
        """Pass on what a worker said; the task to try again if it failed."""
        task, error = worker.task, ""
        if isinstance(heard, Lost):
            self._forget(worker)
            self._count_false_start(worker, heard)
            error = f"its worker {heard.how}"
        elif heard.kind == "ready":
            worker.ready, self._false_starts = True, 0
            return None
        elif heard.kind == "failed":
            self._forget(worker)  # after an exception a device may be unusable for the whole process
            error = heard.facts["text"]
        if task is None:
            return None
        if error:
            worker.task = None
            return attempts.again(task, worker.checkpoint, error=error, watch=watch)
        assert isinstance(heard, Message)
        if heard.kind == "checkpoint":
            worker.checkpoint = heard.content
        watch(task.fleet, heard)
        if heard.kind == "checkpoint":
            worker.task = replace(task, checkpoint=None)  # the older one is not needed any more
        elif heard.kind in ("rows", "stopped"):
            worker.task = None
        return None

    def _count_false_start(self, worker: Worker, lost: Lost) -> None:
        if worker.ready:
            return
        self._false_starts += 1
        if lost.broken or self._false_starts >= max(FALSE_STARTS, LOST_AT_ONCE * self.workers):
            raise TacitError(f"a worker {lost.how} while starting; {self.last_words}.")

    def _collect_last_words(self, watch: Watch) -> None:
        """Ask every busy worker for a checkpoint, hand those on, and end them all."""
        try:
            for worker in self._pool:
                worker.send(Message("stop"))
            end = time.monotonic() + LAST_WORDS_SECONDS
            while any(worker.task and worker.ready for worker in self._pool) and time.monotonic() < end:
                for worker, heard in self._listen():
                    if isinstance(heard, Lost) or heard.kind == "failed":
                        self._forget(worker)
                    else:
                        self._heard(worker, heard, Attempts(), watch)
        finally:
            self.close()
