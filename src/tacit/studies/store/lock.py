"""The lock of a folder of results: one process writes there at a time, and a dead one blocks nobody.

The file holds the process that has the lock: its number, its machine and when it started. It is emptied when the lock
is given back, so what is in it says who writes there now, or who was killed; readers need no lock to know.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tacit._errors import TacitError
from tacit._files import write_error

MOST_BYTES = 300  # of the lock file: three short words


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it is absent. The system drops it when the process dies."""
    lock = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # In a folder from an unknown source a link would make us write outside, and a pipe would make us wait.
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(lock.lstat().st_mode):
                raise TacitError(f"{lock} is not a regular file; remove it and run again.")
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        raise write_error(folder, error) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = _parse(os.pread(handle, MOST_BYTES, 0))
            number = found.process if found else "unknown"
            raise TacitError(
                f"{folder} is in use by another process (number {number}); wait for it to end, stop it, or choose "
                "another folder with --into."
            ) from None
        except OSError as error:  # some network file systems have no locks, or not for this machine
            raise TacitError(
                f"{folder} cannot be locked ({error.strerror}), so two processes could write there at once; "
                "choose a folder on a file system with locks with --into."
            ) from None
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()} {_machine()} {_start_of(os.getpid()) or ''}\n".encode(), 0)
        except OSError as error:
            raise write_error(folder, error) from None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, 0)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Holder:
    """The process that a lock file names. `machine` and `started` are empty in files of earlier versions."""

    process: int
    machine: str = ""
    started: str = ""

    @property
    def lives(self) -> bool | None:
        """Whether it still runs; None when it is a process of another machine, which cannot be seen from here.

        A later process that was given the same number started at another time.
        """
        if self.machine not in ("", _machine()):
            return None
        started = _start_of(self.process)
        if started is not None:
            return bool(started) and self.started in ("", started)
        try:
            os.kill(self.process, 0)
        except (ProcessLookupError, OverflowError):  # no process has such a number
            return False
        except OSError:  # a process of another user
            return True
        return True


def holder(folder: Path) -> Holder | None:
    """The process that the lock file names, read without taking any lock; None when it names none."""
    try:
        handle = os.open(folder / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return _parse(os.read(handle, MOST_BYTES))
    except OSError:  # a pipe without a writer, a folder, a lost server
        return None
    finally:
        os.close(handle)


def is_held(folder: Path) -> bool:
    """Whether some process is writing there now. Asks by taking a shared lock for an instant, so not for polling."""
    try:
        handle = os.open(folder / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # no locks here, so no process of ours
        return False
    finally:
        os.close(handle)


def _parse(content: bytes) -> Holder | None:
    words = content.decode(errors="replace").split()
    if not words or not words[0].isdecimal() or len(words[0]) > 10:
        return None
    return Holder(int(words[0]), *words[1:3])


def _machine() -> str:
    return "".join(platform.node().split())


def _start_of(process: int) -> str | None:
    """When the system started a process, in its own units; empty when it has ended, None when the system does not say.

    Systems without /proc say nothing, and some hide the processes of other users.
    """
    try:
        with open(f"/proc/{process}/stat", "rb") as opened:
            words = opened.read(4096).rpartition(b")")[2].split()  # the name before may hold anything
    except OSError:
        return None
    return "" if len(words) < 20 or words[0] in (b"Z", b"X") else words[19].decode()  # Z: ended, not yet waited for
