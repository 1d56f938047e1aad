"""Files that a command writes at its end, checked at its start: minutes of work must not end in a refusal."""

from __future__ import annotations

import os
from pathlib import Path

from tacit._util.errors import InputError


def check_output_file(option: str, target: Path | None, *, endings: tuple[str, ...] = ()) -> None:
    """Refuse a target that is a folder, has another ending, or lies where nothing can be written."""
    if target is None:
        return
    if target.is_dir():
        raise InputError(f"{option} {str(target)!r} is a folder; expected the name of a file.")
    if endings and target.suffix not in endings:
        raise InputError(f"{option} {str(target)!r} ends in {target.suffix!r}; expected {' or '.join(endings)}.")
    folder = target.resolve().parent
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{option} {str(target)!r}: the folder {str(folder)!r} {problem}; make it, or name another.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{option} {str(target)!r}: files cannot be written to {str(folder)!r}; name another folder.")


def check_output_folder(option: str, folder: Path | None) -> None:
    """Refuse a folder of results that is a file, or lies below one."""
    if folder is None:
        return
    found = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if found is not None and not found.is_dir():
        raise InputError(f"{option} {str(folder)!r}: {str(found)!r} is a file; expected a folder, or a new name.")
