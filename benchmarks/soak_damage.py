"""Disks in the soak: one that is full for a while, and files that a bad disk, a power cut or a careless hand changed.

Damage needs a crash first: the driver is killed, the file is changed, and the next driver must notice. Each function
returns whether it found something to hit.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

from soak_life import Life

Draws = random.Random
Fault = Callable[[Life, Draws], bool]
CHECKPOINT, ROWS = "fleets/*/checkpoint.safetensors", "fleets/*/rows.jsonl"


# -- a full disk -------------------------------------------------------------------------------------------------------
def _flag(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.full")


def hook_disk(folder: Path) -> None:
    """In a driver: while the flag file exists, no file of the folder can be made durable."""
    real = os.fsync

    def fsync(handle: int) -> None:
        if _flag(folder).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    os.fsync = fsync


def full_disk(life: Life, draws: Draws) -> bool:
    flag = _flag(life.folder)
    flag.touch()
    try:
        life.process.wait(timeout=draws.uniform(1.0, 4.0))
    except subprocess.TimeoutExpired:
        pass
    finally:
        flag.unlink()
    return True


# -- damage to files, after a crash -----------------------------------------------------------------------------------
def _change(pattern: str, change: Callable[[bytes, Draws], bytes | None]) -> Callable[[Life, Draws], bool]:
    """A fault that kills the driver and changes one file of those that match; None removes it."""

    def fault(life: Life, draws: Draws) -> bool:
        if not sorted(life.folder.glob(pattern)):
            return False
        life.kill()
        found = sorted(life.folder.glob(pattern))
        if not found:
            return False
        path = draws.choice(found)
        content = change(path.read_bytes(), draws)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        return True

    return fault


def _cut(content: bytes, draws: Draws) -> bytes:
    return content[: draws.randrange(len(content))] if content else content


def _flip(content: bytes, draws: Draws) -> bytes:
    changed = bytearray(content)
    if changed:
        changed[draws.randrange(len(changed))] ^= 1 << draws.randrange(8)
    return bytes(changed)


def _zero_tail(content: bytes, draws: Draws) -> bytes:
    """The length was stored, the blocks were not: what some file systems leave after a power cut."""
    at = draws.randrange(len(content)) if content else 0
    return content[:at] + bytes(len(content) - at)


def _half_line(content: bytes, draws: Draws) -> bytes:
    line = content.splitlines(keepends=True)[0] if content else b'{"run": "'
    return content + line[: draws.randrange(1, len(line))]


def _twice(content: bytes, draws: Draws) -> bytes:
    return content + content


def _gone(content: bytes, draws: Draws) -> None:
    return None


def orphan_rows(life: Life, draws: Draws) -> bool:
    """A half line in the rows file of a fleet that is unfinished."""
    if not (life.folder / "fleets").is_dir():
        return False
    life.kill()
    open_fleets = [path for path in sorted(life.folder.glob("fleets/*")) if not (path / "rows.jsonl").exists()]
    if not open_fleets:
        return False
    (draws.choice(open_fleets) / "rows.jsonl").write_bytes(b'{"best_test_accuracy":0.5,"run":"0123456789abcdef","sp')
    return True


def stray_temporary(life: Life, draws: Draws) -> bool:
    """What a crash between writing and renaming leaves."""
    found = sorted(life.folder.glob("fleets/*"))
    if not found:
        return False
    life.kill()
    (draws.choice(found) / draws.choice([".rows.jsonl.tmp", ".checkpoint.safetensors.tmp"])).write_bytes(b"half")
    return True


def swapped_checkpoints(life: Life, draws: Draws) -> bool:
    """A whole checkpoint, of another fleet."""
    if len(sorted(life.folder.glob(CHECKPOINT))) < 2:
        return False
    life.kill()
    one, two, *_ = sorted(life.folder.glob(CHECKPOINT))
    content = one.read_bytes(), two.read_bytes()
    one.write_bytes(content[1])
    two.write_bytes(content[0])
    return True


DAMAGES: dict[str, Fault] = {
    "checkpoint_cut": _change(CHECKPOINT, _cut),
    "checkpoint_flipped_bit": _change(CHECKPOINT, _flip),
    "checkpoint_zero_tail": _change(CHECKPOINT, _zero_tail),
    "checkpoint_swapped": swapped_checkpoints,
    "checkpoint_gone": _change(CHECKPOINT, _gone),
    "rows_cut": _change(ROWS, _cut),
    "rows_flipped_bit": _change(ROWS, _flip),
    "rows_half_line": _change(ROWS, _half_line),
    "rows_twice": _change(ROWS, _twice),
    "rows_zero_tail": _change(ROWS, _zero_tail),
    "rows_of_unfinished_fleet": orphan_rows,
    "meta_cut": _change("fleets/*/meta.json", _cut),
    "meta_gone": _change("fleets/*/meta.json", _gone),
    "study_json_cut": _change("studies/*.json", _cut),
    "study_json_gone": _change("studies/*.json", _gone),
    "temporary_left": stray_temporary,
}
