"""The lock of a folder of results: one process writes there at a time, and a dead one blocks nobody."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tacit._errors import TacitError
from tacit._files import write_error


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
            holder = os.pread(handle, 100, 0).decode(errors="replace").strip() or "unknown"
            raise TacitError(
                f"{folder} is in use by another process (number {holder}); wait for it to end, stop it, or choose "
                "another folder with --into."
            ) from None
        except OSError as error:  # some network file systems have no locks, or not for this machine
            raise TacitError(
                f"{folder} cannot be locked ({error.strerror}), so two processes could write there at once; "
                "choose a folder on a file system with locks with --into."
            ) from None
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise write_error(folder, error) from None
        yield
    finally:
        os.close(handle)


def is_held(folder: Path) -> bool:
    """Whether some process is writing there now."""
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
