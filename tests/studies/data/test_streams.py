"""Bytes of data files: bounded whatever they claim, and refused when a single one is missing or wrong."""

from __future__ import annotations

import os
import tracemalloc
import zlib
from pathlib import Path

import pytest
from archives import content, packed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacit.studies.data.streams import UnreadableError, opened, read_content

MESSAGE = bytes(range(256)) * 5
SMALL = packed(MESSAGE)
PUBLISHED = content("message", MESSAGE)


def read(path: Path, raw: bytes) -> bytes:
    path.write_bytes(raw)
    return read_content(path, PUBLISHED, packed=True)


def test_a_gzip_file_gives_what_went_in(tmp_path: Path) -> None:
    assert read(tmp_path / "file", SMALL) == MESSAGE


def test_every_shortened_gzip_file_is_refused(tmp_path: Path) -> None:
    for length in range(len(SMALL)):
        with pytest.raises(UnreadableError):
            read(tmp_path / "file", SMALL[:length])


@pytest.mark.parametrize("behind", [b"more", SMALL])
def test_bytes_behind_a_gzip_stream_are_refused(behind: bytes, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError):
        read(tmp_path / "file", SMALL + behind)


def test_a_gzip_bomb_is_refused_in_little_memory(tmp_path: Path) -> None:
    machine = zlib.compressobj(1, wbits=31)
    zeros = bytes(1 << 20)
    bomb = b"".join(machine.compress(zeros) for _ in range(64)) + machine.flush()  # 64 MB in 0.3 MB
    (tmp_path / "bomb").write_bytes(bomb)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError, match=r"more than the 3,000,000 bytes"):
            read_content(tmp_path / "bomb", content("x", bytes(3_000_000)), packed=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20  # the 3 MB of `content`, what was read, and buffers; the whole would be 64 MB


@pytest.mark.parametrize("raw", [b"", b"abd", b"abcd", b"ab"])
def test_other_bytes_than_were_published_are_refused(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(UnreadableError):
        read_content(tmp_path / "x", content("x", b"abc"), packed=False)


def test_a_pipe_or_folder_in_place_of_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        with pytest.raises(UnreadableError), opened(path) as stream:
            stream.read()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example writes the file anew
@given(st.binary(max_size=300), st.integers(0, len(SMALL)))
def test_no_bytes_make_the_reader_fail_in_another_way(tmp_path: Path, noise: bytes, at: int) -> None:
    for raw in (noise, SMALL[:at] + noise + SMALL[at + len(noise) :]):
        try:
            assert read(tmp_path / "file", raw) == MESSAGE
        except UnreadableError:
            continue
