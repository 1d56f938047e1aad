"""Fleets on Ray: one actor per worker, with its share of CPUs and GPUs.

Which Ray is Ray's own affair: the one at an address, one that it knows on this machine, or one that it starts. Workers
never see the study's folder: rows and checkpoints come to this process, which is the one writer. What a lost machine
takes with it is trained again from the last checkpoint that arrived.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tacit._util.errors import InputError
from tacit._util.provenance import provenance
from tacit.studies.execute.executor import ATTEMPTS, Event, Executor, FleetTask, Lost, MessageHandler, Worker
from tacit.studies.execute.machine import ONE_THREAD, known_device, named_in_environment
from tacit.studies.execute.messages import Message, decode, encode
from tacit.studies.execute.signals import signals_ignored, sigterm_handler_kept
from tacit.studies.train.packing import Fleet

INSTALL = 'pip install "ray>=2.50,<3"'  # as in pyproject.toml
CONNECT_SECONDS = 20.0  # Ray itself tries a silent address for a quarter of an hour
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


class RayExecutor(Executor):
    """At most `workers` actors at a time; without a number as many as the cluster has CPUs, or GPUs on `cuda`.

    `address` is HOST:PORT or `auto`; without it `ray.init` decides. A process that already uses Ray keeps its
    connection: it is used, and left as it is. `gpus` is the share of a GPU that a worker asks for on `cuda`, so 0.5
    puts two fleets on each.
    """

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
        self._ray = import_ray()
        self._connected_here = not self._ray.is_initialized()
        self._data: dict[str, Any] = {}
        self._warn_at = time.monotonic() + WARN_AFTER_SECONDS
        self._closed = False
        try:
            if self._connected_here:
                _connect(self._ray, address or os.environ.get("RAY_ADDRESS") or None)
            self.gpus = self._gpus_of_a_worker(gpus)
            if workers is None:
                self.workers = self._room()
        except BaseException:
            self.close()
            raise

    def run(self, tasks: Sequence[FleetTask], handle: MessageHandler) -> None:
        self._put_data([task.fleet for task in tasks])
        super().run(tasks, handle)

    def close(self) -> None:
        """Takes seconds, and signals are ignored meanwhile: a second Ctrl-C would leave processes of Ray behind."""
        super().close()
        self._closed = True
        self._data.clear()
        with signals_ignored():
            if self._connected_here:
                self._connected_here = False
                self._ray.shutdown()

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
        from tacit.studies.execute.ray_worker import RayWorker

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


def import_ray() -> ModuleType:
    """The module, or an error that says how to install it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before the import: nothing is sent to anyone
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the behaviour of versions to come; no warning
    try:
        import ray
    except ImportError:
        raise InputError(f"the executor 'ray' needs Ray, which is not installed: {INSTALL}.") from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    """`ray.init`; an InputError when nobody answers at the address, or Ray does not start."""
    if address and "://" in address:
        raise InputError(
            f"address {address!r} is for Ray's client; run the study on a machine of the cluster instead, "
            "with HOST:PORT or auto."
        )
    try:
        with sigterm_handler_kept():
            if address not in (None, "local"):
                _check_head(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        if address in (None, "local"):
            raise InputError(f"Ray did not start ({first}); try again, or use --executor local.") from None
        raise InputError(
            f"no Ray cluster answers at {address!r}: {first}. Start one with `ray start --head`, or leave "
            "--address out to use this machine alone."
        ) from None


def _check_head(address: str) -> None:
    """OSError with a few words unless a Ray head answers there within seconds; PermissionError if it refuses us.

    `ray.init` cannot be given up, so the command `ray status`, a process that can be ended, tries first.
    """
    command = [str(Path(sys.executable).with_name("ray")), "status", "--address", address]
    try:
        status = subprocess.run(command, capture_output=True, text=True, timeout=CONNECT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"no answer within {CONNECT_SECONDS:.0f} s") from None
    if status.returncode == 0:
        return
    output = status.stdout + status.stderr
    if "Unauthenticated" in output or "AuthenticationError" in output:
        raise PermissionError(
            "it wants a token; set RAY_AUTH_MODE to token and RAY_AUTH_TOKEN to the cluster's (`ray get-auth-token`)"
        )
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith((" ", "["))]
    raise OSError(lines[-1].partition(": ")[2] or lines[-1] if lines else "no answer")


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
