"""Fleets in processes of this machine: one core and one thread each."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from tacit.studies.execute.executor import ATTEMPTS, Event, Executor, Lost, Worker
from tacit.studies.execute.machine import ONE_THREAD, known_device
from tacit.studies.execute.messages import Message, receive, send


@dataclass(eq=False)
class _Process(Worker):
    process: subprocess.Popen[bytes] = field(kw_only=True)
    pipe: Connection = field(kw_only=True)

    def send(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # it died: `_receive` will report it
            send(self.pipe, message)

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.wait()


class LocalExecutor(Executor):
    """`workers` processes on this machine, on the `device` that Training picks or that is named here."""

    def __init__(self, workers: int = 2, *, device: str | None = None, attempts: int = ATTEMPTS) -> None:
        super().__init__(workers, attempts=attempts)
        self.device = known_device(device)

    def _start(self) -> Worker:
        return _start(self.device)

    def _receive(self) -> list[tuple[Worker, Event]]:
        pool = [worker for worker in self._pool if isinstance(worker, _Process)]
        arrived = wait([worker.pipe for worker in pool], timeout=1.0)
        events: list[tuple[Worker, Event]] = []
        for worker in [worker for worker in pool if worker.pipe in arrived]:
            try:
                events.append((worker, receive(worker.pipe)))
            except (EOFError, OSError):
                code = worker.process.wait()
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                events.append((worker, Lost(how, broken=code not in (-signal.SIGKILL, -signal.SIGTERM))))
        return events


def _start(device: str | None = None) -> _Process:
    ours, theirs = Pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "tacit.studies.execute.worker", str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        env={**os.environ, **ONE_THREAD, **({"TACIT_DEVICE": device} if device else {})},
        start_new_session=True,  # Ctrl-C is for the study's process, which then asks for last checkpoints
    )
    theirs.close()
    return _Process(process=process, pipe=ours)
