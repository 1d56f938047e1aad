"""Writing what a report consists of: complete or not at all, and a failure is one sentence."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

from tacit._errors import InputError


def write_file(path: Path, content: bytes) -> Path:
    """Write to a temporary name, then rename: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(f"the disk is full: {path} was not written; free some space and run again.") from None
        raise InputError(f"{path} cannot be written ({error.strerror}); choose another place.") from None
    return path
