"""Where fleets run. An executor takes fleets and tells what happens; it knows nothing of files.

A fleet is a task: a pure function of its runs, the data and perhaps a checkpoint, returning rows. `LocalExecutor` runs
tasks in processes of this machine, one core and one thread each; another executor needs the same two methods.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Protocol

from tacit._errors import InputError
from tacit.studies.packing import Fleet
from tacit.studies.wire import Message, receive, send

ATTEMPTS = 4  # the first, and three more after lost workers
LAST_WORDS_SECONDS = 15.0  # how long stopping waits for the workers' last checkpoints


@dataclass(frozen=True)
class Task:
    """One fleet to train, from a checkpoint if there is one."""

    fleet: Fleet
    checkpoint: bytes | None = None
    checkpoint_seconds: float = 10.0


Watch = Callable[[Fleet, Message], None]


class Executor(Protocol):
    """What a study needs: train all tasks, telling `watch` of progress, checkpoints, warnings and rows."""

    def run(self, tasks: Sequence[Task], watch: Watch) -> None: ...

    def calibrate(self, fleets: Sequence[Fleet]) -> float: ...

    def close(self) -> None: ...


class WorkersLostError(InputError):
    """Fleets whose workers died again and again; every other fleet is done."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection
    task: Task | None = None
    ready: bool = False
    checkpoint: bytes | None = None


@dataclass
class LocalExecutor:
    """`workers` processes on this machine. They start when first needed and serve several studies until closed."""

    workers: int = 2
    _pool: list[_Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers < 1:
            raise InputError(f"workers is {self.workers!r}; expected a whole number, at least 1.")

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, tasks: Sequence[Task], watch: Watch) -> None:
        """Train every task. A worker that dies is reported and its fleet retried from its last checkpoint."""
        waiting, attempts, lost = list(tasks), dict.fromkeys([task.fleet.id for task in tasks], 0), []
        try:
            while waiting or any(worker.task for worker in self._pool):
                self._hand_out(waiting)
                for worker, message in self._listen():
                    if worker.task is None:
                        continue
                    task = worker.task
                    if message is not None:
                        self._heard(worker, message, watch)
                        continue
                    again = Task(task.fleet, worker.checkpoint or task.checkpoint, task.checkpoint_seconds)
                    attempts[task.fleet.id] += 1
                    how = _ending(worker.process)
                    if attempts[task.fleet.id] < ATTEMPTS:
                        waiting.insert(0, again)
                        text = f"the worker of fleet {task.fleet.id} {how}; the fleet goes on from its last checkpoint."
                    else:
                        lost.append(task.fleet.id)
                        text = f"the worker of fleet {task.fleet.id} {how} for the {ATTEMPTS}th time; it is left out."
                    watch(task.fleet, Message("warning", {"text": text}))
        except KeyboardInterrupt:
            self._collect_last_words(watch)
            raise
        except BaseException:
            self.close()  # rows that cannot be stored need no workers
            raise
        if lost:
            raise WorkersLostError(
                f"{len(lost)} of {len(tasks)} fleets lost their worker {ATTEMPTS} times ({', '.join(lost)}); "
                "the others are finished. Too little memory is the usual reason; run again to go on."
            )

    def calibrate(self, fleets: Sequence[Fleet]) -> float:
        """Millions of operations per second and worker, measured now."""
        self._start_missing(1)
        worker = self._pool[0]
        send(worker.pipe, Message("calibrate", {"runs": [run.model_dump() for run in fleets[0].runs]}))
        while True:
            try:
                message = receive(worker.pipe)
            except (EOFError, OSError):
                raise InputError(f"a worker process {_ending(worker.process)} while starting; see above.") from None
            worker.ready = True
            if message.kind == "rate":
                return float(message.facts["rate"])
            if message.kind == "failed":
                raise _failure(message)

    def close(self) -> None:
        """End the workers. Nothing is lost that a checkpoint does not hold."""
        for worker in self._pool:
            worker.pipe.close()
            worker.process.kill()
            worker.process.wait()
        self._pool.clear()

    # -- the loop -------------------------------------------------------------------------------------------------
    def _hand_out(self, waiting: list[Task]) -> None:
        busy = sum(worker.task is not None for worker in self._pool)
        self._start_missing(min(self.workers, busy + len(waiting)))
        for worker in self._pool:
            if waiting and worker.task is None:
                worker.task, worker.checkpoint = waiting.pop(0), None
                facts = {
                    "runs": [run.model_dump() for run in worker.task.fleet.runs],
                    "checkpoint_seconds": worker.task.checkpoint_seconds,
                }
                with contextlib.suppress(OSError):  # it died: listening will tell
                    send(worker.pipe, Message("train", facts, worker.task.checkpoint or b""))

    def _start_missing(self, wanted: int) -> None:
        while len(self._pool) < wanted:
            self._pool.append(_start())

    def _listen(self) -> list[tuple[_Worker, Message | None]]:
        """What arrived; None from a worker that is gone."""
        arrived = wait([worker.pipe for worker in self._pool], timeout=1.0)
        heard: list[tuple[_Worker, Message | None]] = []
        for worker in [worker for worker in self._pool if worker.pipe in arrived]:
            try:
                heard.append((worker, receive(worker.pipe)))
            except (EOFError, OSError):
                worker.pipe.close()
                worker.process.wait()
                self._pool.remove(worker)
                heard.append((worker, None))
                if not worker.ready and worker.process.returncode not in (-signal.SIGKILL, -signal.SIGTERM):
                    raise InputError(f"a worker process {_ending(worker.process)} while starting; see above.") from None
        return heard

    def _heard(self, worker: _Worker, message: Message, watch: Watch) -> None:
        assert worker.task is not None
        task = worker.task
        if message.kind == "ready":
            worker.ready = True
            return
        if message.kind == "failed":
            raise _failure(message)
        if message.kind == "checkpoint":
            worker.checkpoint = message.content
        if message.kind in ("rows", "stopped"):
            worker.task = None
        watch(task.fleet, message)

    def _collect_last_words(self, watch: Watch) -> None:
        """Ask every busy worker for a checkpoint, hand those on, and end them all."""
        try:
            for worker in self._pool:
                try:
                    send(worker.pipe, Message("stop"))
                except OSError:
                    worker.task = None
            end = time.monotonic() + LAST_WORDS_SECONDS
            while any(worker.task and worker.ready for worker in self._pool) and time.monotonic() < end:
                for worker, message in self._listen():
                    if worker.task is not None and message is not None and message.kind != "failed":
                        self._heard(worker, message, watch)
        finally:
            self.close()


def _start() -> _Worker:
    ours, theirs = Pipe()
    one_thread = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tacit.studies.worker", str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        env={**os.environ, **one_thread},
        start_new_session=True,  # Ctrl-C is for the study's process, which then asks for last checkpoints
    )
    theirs.close()
    return _Worker(process, ours)


def _ending(process: subprocess.Popen[bytes]) -> str:
    code = process.wait()
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


def _failure(message: Message) -> Exception:
    text = message.facts["text"]
    return InputError(text) if message.facts["input"] else RuntimeError(f"a worker failed:\n{text}")
