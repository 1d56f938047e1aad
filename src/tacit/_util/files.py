"""Writing files: a reader sees the old file or the new one, never a part, and a failure is one sentence."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from tacit._util.errors import TacitError


def write_atomically(path: Path, content: bytes | str, *, sync: bool = False) -> Path:
    """Write to a temporary name in the same folder, then rename; `sync` also waits until the disk has the bytes."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as temporary, open(temporary, "xb") as handle:
        handle.write(data)
        if sync:
            handle.flush()
            os.fsync(handle.fileno())
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name in the same folder; what is written there takes the place of `path` at the end, or never.

    The temporary name holds the process number, so two processes that write the same file do not mix their bytes.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # left by a crash, or a link that somebody put there
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise write_error(path, error) from None
        raise


def write_error(path: Path, error: OSError) -> TacitError:
    """The sentence for a file that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return TacitError(f"the disk is full: {path} was not written; free some space and run again.")
    return TacitError(f"{path} cannot be written ({error.strerror}); choose another place.")
