"""Fleets on a Ray cluster, or on a Ray of this machine: one actor per worker, with its share of CPUs and GPUs.

Workers never see the study's folder: rows and checkpoints come to this process, which is the one writer. What a lost
machine takes with it is trained again from the last checkpoint that arrived.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit._errors import InputError
from tacit._provenance import provenance
from tacit.studies.execute.attempts import ATTEMPTS
from tacit.studies.execute.executor import FleetTask, MessageHandler
from tacit.studies.execute.machine import ONE_THREAD, cores, known_device, named_in_environment
from tacit.studies.execute.pool import Event, Lost, Worker, WorkerPool
from tacit.studies.execute.ray.session import RaySession
from tacit.studies.execute.wire import Message, decode, encode
from tacit.studies.train.packing import Fleet

FETCH_SECONDS = 30.0  # how long `fetch` waits at a worker that has no message
WARN_AFTER_SECONDS = 60.0  # without a single worker after so long, a warning names what it waits for
SAME = ("tacit", "torch", "numpy", "mnist1d")  # versions that rows may depend on
LOG = logging.getLogger("tacit.studies")


@dataclass(eq=False)
class _Actor(Worker):
    ray: Any = field(kw_only=True)
    handle: Any = field(kw_only=True)
    where: Any = field(kw_only=True)  # a reference to its versions, until they are checked
    fetching: Any = field(kw_only=True)  # a reference to the answer that is awaited

    def send(self, message: Message) -> None:
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.handle.send.remote(encode(message))

    def end(self) -> None:
        with contextlib.suppress(Exception):  # gone already, or Ray is
            self.ray.kill(self.handle, no_restart=True)


class RayExecutor(WorkerPool):
    """At most `workers` actors at a time; without a number as many as the cluster has CPUs, or GPUs on `cuda`.

    `address` is HOST:PORT or `auto`; without it RAY_ADDRESS, or a Ray of this machine's own. `gpus` is the share of a
    GPU that a worker asks for on `cuda`, so 0.5 puts two fleets on each.
    """

    local_cores = False  # rates that were measured on this machine are no estimate for a cluster
    waits_until_ready = True  # Ray starts what it has room for: the rest must not hold fleets
    keeps_idle = False  # others may use the cluster
    progress_seconds = 2.0  # a `fetch` costs milliseconds in several processes
    more_information = "on a cluster see Ray's session_latest/logs on that machine"

    def __init__(
        self,
        workers: int | None = None,
        *,
        address: str | None = None,
        device: str | None = None,
        gpus: float = 1.0,
        attempts: int = ATTEMPTS,
    ) -> None:
        super().__init__(1 if workers is None else workers, attempts=attempts)
        self.device = known_device(device or named_in_environment())
        if isinstance(gpus, bool) or not (0 < gpus <= 1 or (gpus > 0 and float(gpus).is_integer())):
            raise InputError(f"gpus is {gpus!r}; expected a share up to 1, or a whole number.")
        if self.device == "mps":
            raise InputError("device='mps' is not known to Ray; use the executor 'local', or device='cpu'.")
        self.session = RaySession(address, cpus=max(workers or 1, cores()))
        self._ray = self.session.ray
        self._data: dict[str, Any] = {}
        self._warn_at = time.monotonic() + WARN_AFTER_SECONDS
        self._closed = False
        try:
            self.gpus = self._gpus_of_a_worker(gpus)
            if workers is None:
                self.workers = self._room()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, tasks: Sequence[FleetTask], handle: MessageHandler) -> None:
        self._put_data([task.fleet for task in tasks])
        super().run(tasks, handle)

    def calibrate(self, fleets: Sequence[Fleet]) -> float:
        self._put_data(fleets)
        return super().calibrate(fleets)

    def close(self) -> None:
        super().close()
        self._closed = True
        self._data.clear()
        self.session.close()

    # -- resources ------------------------------------------------------------------------------------------------
    def _gpus_of_a_worker(self, share: float) -> float:
        has_gpus = self._ray.cluster_resources().get("GPU", 0) > 0
        if self.device == "cuda" and not has_gpus:
            raise InputError("device='cuda': Ray finds no GPU; start a node with --num-gpus, or use auto.")
        return share if has_gpus and self.device in (None, "auto", "cuda") else 0.0

    def _room(self) -> int:
        have = self._ray.cluster_resources()
        room = have.get("CPU", 1) if not self.gpus else min(have["GPU"] / self.gpus, have.get("CPU", 1))
        return max(int(room), 1)

    def _put_data(self, fleets: Sequence[Fleet]) -> None:
        from tacit.studies.data.load import load

        if self._closed:  # Ray would start another one by itself
            raise InputError("this RayExecutor is closed, as it is after Ctrl-C or an error; make a new one.")
        for name in {fleet.runs[0].dataset for fleet in fleets} - set(self._data):
            self._data[name] = self._ray.put(dict(vars(load(name))))

    # -- workers --------------------------------------------------------------------------------------------------
    def _start(self) -> Worker:
        from tacit.studies.execute.ray.worker import RayWorker

        # Several calls at once: `fetch` may wait while `send` is called.
        actor = self._ray.remote(RayWorker).options(
            num_cpus=1, num_gpus=self.gpus, max_concurrency=3, max_restarts=0, max_task_retries=0,
            scheduling_strategy="SPREAD",
        )  # fmt: skip
        environment = {**ONE_THREAD, **({"TACIT_DEVICE": self.device} if self.device else {})}
        environment |= {name: os.environ[name] for name in ("TACIT_TF32",) if name in os.environ}
        handle = actor.remote(environment, self._data)
        return _Actor(
            ray=self._ray, handle=handle, where=handle.where.remote(), fetching=handle.fetch.remote(FETCH_SECONDS)
        )

    def _receive(self) -> list[tuple[Worker, Event]]:
        pool = {worker.fetching: worker for worker in self._pool if isinstance(worker, _Actor)}
        if not pool:
            return []
        arrived, _ = self._ray.wait([*pool], num_returns=len(pool), timeout=0)
        if not arrived:
            arrived, _ = self._ray.wait([*pool], num_returns=1, timeout=1.0)
        events: list[tuple[Worker, Event]] = []
        for worker in [pool[each] for each in arrived]:
            try:
                self._check_versions(worker)
                frames = self._ray.get(worker.fetching)
                worker.fetching = worker.handle.fetch.remote(FETCH_SECONDS)
            except self._ray.exceptions.RayError as error:
                events.append((worker, Lost(*_ending(error))))
                continue
            for message in map(decode, frames):
                if message.facts.get("start"):
                    events.append((worker, Lost(f"failed ({message.facts['text']})", broken=True)))
                    break
                events.append((worker, message))
        self._warn_of_missing_resources()
        return events

    def _check_versions(self, worker: _Actor) -> None:
        """A machine with another torch or numpy would make other rows: it is refused, not mixed in."""
        if worker.where is None:
            return
        theirs, worker.where = self._ray.get(worker.where)["versions"], None
        ours = provenance()["versions"]
        other = [f"{name} {theirs.get(name)} and not {ours[name]}" for name in SAME if theirs.get(name) != ours[name]]
        if other:
            raise InputError(f"a machine of the cluster has {', '.join(other)}; rows would differ. Install the same.")

    def _warn_of_missing_resources(self) -> None:
        if self._pool and not any(worker.ready for worker in self._pool) and time.monotonic() > self._warn_at:
            self._warn_at = time.monotonic() + 10 * WARN_AFTER_SECONDS
            needed = "1 CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")
            free = {name: n for name, n in self._ray.available_resources().items() if name in ("CPU", "GPU")}
            LOG.warning("no worker yet: each needs %s, free in the cluster: %s; waiting.", needed, free or "nothing")


def _ending(error: Exception) -> tuple[str, bool]:
    """How a worker was lost, and whether another would be lost the same way, from Ray's exception."""
    name, text = type(error).__name__, str(error)
    if "ModuleNotFoundError" in text or "ImportError" in text:
        line = next((line for line in text.splitlines() if "ModuleNotFoundError" in line or "ImportError" in line), "")
        return f"could not be started ({line.strip()}); install the same tacit on every machine, it stopped", True
    if name == "OutOfMemoryError" or "low on memory" in text:
        return "was ended by Ray because its machine ran low on memory", False
    if name == "ActorUnavailableError" or "node has died" in text:
        return "was lost with its machine, or the way to it", False
    if "worker process has died" in text:
        return "was killed, or crashed, on its machine", False
    return f"was lost ({name})", False
