"""The atomic writer leaves the old file or the new one, and no temporary file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tacit._util.errors import InputError, TacitError
from tacit._util.files import write_atomically


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_atomically(tmp_path / "rows.jsonl", "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(TacitError, match=r"disk is full: .*rows\.jsonl") as raised:
        write_atomically(path, "new")
    assert not isinstance(raised.value, InputError)  # nobody gave a wrong argument
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.jsonl"]


def test_folders_are_made_and_bytes_arrive(tmp_path: Path) -> None:
    assert write_atomically(tmp_path / "a" / "b.bin", b"\x00\x01", sync=True).read_bytes() == b"\x00\x01"


def test_a_folder_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(TacitError, match="cannot be written"):
        write_atomically(tmp_path / "a" / "b.txt", "x")
