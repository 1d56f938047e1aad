"""A connection to Ray: to a cluster that runs, or to one of this process's own on the loopback address.

Nothing is reported to anyone, no dashboard is started, and what this process started it also stops.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tacit._errors import InputError
from tacit.studies.execute import machine
from tacit.studies.execute.signals import Terminated

INSTALL = 'pip install "ray>=2.50,<3"'  # as in pyproject.toml
LEAST_STORE, MOST_STORE = 128 * 2**20, 2**30  # bytes: data goes there once, checkpoints pass through
PREFIX = "tacit-ray-"
CONNECT_SECONDS = 20.0  # Ray itself tries a silent address for a quarter of an hour
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
LOG = logging.getLogger("tacit.studies")
STARTS = 3  # Ray gives itself 30 seconds to start, which a busy machine may need more than once


class RaySession:
    """Ray for as long as it is open. `address` is HOST:PORT or `auto`; without it RAY_ADDRESS, or a local Ray.

    A process that already uses Ray keeps its connection: it is used, and left as it is.
    """

    def __init__(self, address: str | None = None, *, cpus: int) -> None:
        address = address or os.environ.get("RAY_ADDRESS") or None
        self.ray = import_ray(for_cluster=is_cluster(address))
        self.folder: Path | None = None  # of a Ray of our own
        if address and "://" in address:
            raise InputError(
                f"address {address!r} is for Ray's client; run the study on a machine of the cluster instead, "
                "with HOST:PORT or auto."
            )
        self.ours = not self.ray.is_initialized()
        if not self.ours:
            return
        with _signals_kept():
            if address and is_cluster(address):
                self._connect(address)
            else:
                self._start(cpus)

    @property
    def local(self) -> bool:
        return self.folder is not None

    def _connect(self, address: str) -> None:
        try:
            self._call(address)
            _check_head(address)
            self.ray.init(address=address, **_quiet())
        except Exception as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise InputError(
                f"no Ray cluster answers at {address!r}: {first}. Start one with `ray start --head`, or leave "
                "--address out to use this machine alone."
            ) from None

    def _call(self, address: str) -> None:
        """OSError when nothing at HOST:PORT takes a connection. Other forms of an address are left to Ray."""
        host, _, port = address.rpartition(":")
        if not (host and port.isdigit() and int(port) < 2**16):
            return
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        except OSError:
            if host != "localhost" and not host.startswith("127."):
                raise
            # Ray may listen on this machine's address alone, and takes the loopback's name for it.
            there = self.ray.util.get_node_ip_address()
            socket.create_connection((there, int(port)), timeout=CONNECT_SECONDS).close()

    def _start(self, cpus: int) -> None:
        # A socket's path has at most 107 bytes, and Ray appends about 80: the system's folder may be too long (macOS).
        parent = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())
        remove_leftovers(parent)
        if os.environ.get(LOOPBACK) != "0":
            LOG.warning("Ray was imported before tacit could keep it on the loopback address: others may reach it.")
        for trial in range(STARTS):
            self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
            try:
                self.ray.init(
                    address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=str(self.folder),
                    object_store_memory=store_bytes(), **_quiet(),
                )  # fmt: skip
                return
            except Exception as error:
                self.ray.shutdown()
                shutil.rmtree(self.folder, ignore_errors=True)
                if trial == STARTS - 1:
                    raise InputError(
                        f"Ray did not start on this machine ({str(error).strip()}); try again, or use --executor local."
                    ) from None
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Takes seconds, and signals are ignored meanwhile: a second Ctrl-C would leave processes of Ray behind."""
        with _signals_ignored():
            if self.ours:
                self.ours = False
                self.ray.shutdown()
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder = None


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


def import_ray(*, for_cluster: bool = True) -> ModuleType:
    """The module, or an error that says how to install it.

    With LOOPBACK set to 0 before it is imported, as by default on macOS and Windows, a Ray of this process's own
    listens on the loopback address alone. Such a process cannot connect to a cluster of other machines any more.
    """
    if not for_cluster and "ray" not in sys.modules:
        os.environ.setdefault(LOOPBACK, "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before the import: nothing is sent to anyone
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the behaviour of versions to come; no warning
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 would let every other process go first
    try:
        import ray
    except ImportError:
        raise InputError(f"the executor 'ray' needs Ray, which is not installed: {INSTALL}.") from None
    return ray


def is_cluster(address: str | None) -> bool:
    """Whether an address (or RAY_ADDRESS without one) means a Ray that runs already."""
    return (address or os.environ.get("RAY_ADDRESS") or "local") != "local"


def store_bytes() -> int:
    """Memory for Ray's object store: a twentieth of the machine, from 128 MB to 1 GB (Ray's own rule is a third)."""
    return int(min(max(machine.machine_memory() / 20, LEAST_STORE), MOST_STORE))


def remove_leftovers(parent: Path) -> None:
    """The folders of local Rays whose process was killed, if they are this user's."""
    for folder in parent.glob(f"{PREFIX}*"):
        number = folder.name.removeprefix(PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if number.isdigit() and folder.stat().st_uid == os.getuid() and not folder.is_symlink():
                try:
                    os.kill(int(number), 0)
                except ProcessLookupError:
                    shutil.rmtree(folder, ignore_errors=True)


def _quiet() -> dict[str, Any]:
    return {"log_to_driver": False, "logging_level": logging.ERROR}


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray puts its own handler of SIGTERM in place of the study's, which makes workers send their last checkpoints.

    Until it is put back, SIGTERM is Ray's `sys.exit(SIGTERM)`: turned into the study's own end here.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as ended:
        if ended.code == signal.SIGTERM:
            raise Terminated from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM are ignored; afterwards they are handled as before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
