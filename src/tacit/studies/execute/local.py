"""Where fleets run. An executor takes fleets and tells what happens; it knows nothing of files.

A fleet is a task: a pure function of its runs, the data and perhaps a checkpoint, returning rows. `LocalExecutor` runs
tasks in processes of this machine, one core and one thread each; `ray.executor.RayExecutor` in workers of a cluster.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Protocol

from tacit._errors import InputError
from tacit.studies.execute.attempts import ATTEMPTS, Task, Watch
from tacit.studies.execute.pool import Lost, Worker, WorkerPool
from tacit.studies.execute.wire import Message, receive, send
from tacit.studies.train.packing import Fleet

DEVICES = ("auto", "cpu", "cuda", "mps")
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


class Executor(Protocol):
    """What a study needs: train all tasks, telling `watch` of progress, checkpoints, warnings, rows and failures."""

    def run(self, tasks: Sequence[Task], watch: Watch) -> None: ...

    def calibrate(self, fleets: Sequence[Fleet]) -> float: ...

    def close(self) -> None: ...


@dataclass(eq=False)
class _Process(Worker):
    process: subprocess.Popen[bytes] = field(kw_only=True)
    pipe: Connection = field(kw_only=True)

    def send(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # it died: listening will tell
            send(self.pipe, message)

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.wait()


class LocalExecutor(WorkerPool):
    """`workers` processes on this machine, on the `device` that Training picks or that is named here."""

    def __init__(self, workers: int = 2, *, device: str | None = None, attempts: int = ATTEMPTS) -> None:
        super().__init__(workers, attempts=attempts)
        self.device = known_device(device)

    @property
    def elsewhere(self) -> bool:
        """Whether fleets train on something else than cores, so that their rates say nothing about cores."""
        return trains_on(self.device) != "cpu"

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> Worker:
        return _start(self.device)

    def _listen(self) -> list[tuple[Worker, Message | Lost]]:
        pool = [worker for worker in self._pool if isinstance(worker, _Process)]
        arrived = wait([worker.pipe for worker in pool], timeout=1.0)
        heard: list[tuple[Worker, Message | Lost]] = []
        for worker in [worker for worker in pool if worker.pipe in arrived]:
            try:
                heard.append((worker, receive(worker.pipe)))
            except (EOFError, OSError):
                code = worker.process.wait()
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                heard.append((worker, Lost(how, broken=code not in (-signal.SIGKILL, -signal.SIGTERM))))
        return heard


def named_in_environment() -> str | None:
    """The kind of device that TACIT_DEVICE names, if it does."""
    return os.environ.get("TACIT_DEVICE", "").strip().partition(":")[0] or None


def trains_on(device: str | None) -> str:
    """What local workers train on: cpu, cuda or mps, by the option, TACIT_DEVICE or what is there."""
    wanted = known_device(device) or named_in_environment() or "auto"
    if wanted != "auto":
        return wanted
    with contextlib.suppress(PackageNotFoundError):
        if version("torch").endswith("+cpu"):  # known without importing torch, which takes seconds
            return "cpu"
    from tacit.studies.train import devices

    return devices.automatic()


def known_device(device: str | None) -> str | None:
    if device is not None and device not in DEVICES:
        raise InputError(f"device={device!r} is unknown; use one of {', '.join(DEVICES)}.")
    return device


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
