"""The lock of a folder of results: one process writes there at a time, and a dead one blocks nobody."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tacit._util.errors import TacitError
from tacit._util.files import write_error

# `is_held` has the lock for an instant: whoever begins to write tries again before it gives up.
PATIENCE_SECONDS = 0.5
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # some network file systems have none


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it is absent. The system drops it when the process dies."""
    from filelock import Timeout, UnixFileLock  # `FileLock` is none of the system's where fcntl is missing

    lock = UnixFileLock(folder / "lock", timeout=PATIENCE_SECONDS, fallback_to_soft=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise TacitError(
            f"{folder} is in use by another process; wait for it to end, stop it, or choose another folder with --into."
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise write_error(folder, error) from None
        raise TacitError(
            f"{folder} cannot be locked ({error.strerror}), so two processes could write there at once; "
            "choose a folder on a file system with locks with --into."
        ) from None
    try:
        yield
    finally:
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether some process writes there now. Nothing is written, so it can be asked of a read-only folder too."""
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
