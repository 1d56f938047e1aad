"""Bytes of data files: bounded whatever they claim, and refused when a single one is missing or wrong."""

from __future__ import annotations

import os
import tracemalloc
import zlib
from pathlib import Path

import pytest
from archives import content, packed
from hypothesis import given
from hypothesis import strategies as st

from tacit.studies.data.streams import UnreadableError, pieces, unpacked, whole

MESSAGE = bytes(range(256)) * 5
SMALL = packed(MESSAGE)


def test_a_gzip_stream_gives_what_went_in_however_it_is_cut_into_pieces() -> None:
    for length in (1, 7, len(SMALL)):
        parts = [SMALL[at : at + length] for at in range(0, len(SMALL), length)]
        assert b"".join(unpacked(parts, limit=len(MESSAGE))) == MESSAGE


def test_every_shortened_gzip_stream_is_refused() -> None:
    for length in range(len(SMALL)):
        with pytest.raises(UnreadableError):
            b"".join(unpacked([SMALL[:length]] if length else [], limit=len(MESSAGE)))


@pytest.mark.parametrize("behind", [[SMALL + b"\0"], [SMALL, b"more"], [SMALL + SMALL]])
def test_bytes_behind_a_gzip_stream_are_refused(behind: list[bytes]) -> None:
    with pytest.raises(UnreadableError, match="more bytes"):
        b"".join(unpacked(behind, limit=10_000))


def test_a_gzip_bomb_is_refused_in_little_memory() -> None:
    machine = zlib.compressobj(1, wbits=31)
    zeros = bytes(1 << 20)
    bomb = b"".join(machine.compress(zeros) for _ in range(64)) + machine.flush()  # 64 MB in 0.3 MB
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError, match=r"more than 3,000,000 bytes"):
            for _ in unpacked([bomb], limit=3_000_000):
                pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20  # the limit and a few pieces of 1 MB; the whole would be 64 MB


def test_more_bytes_than_were_published_are_not_held() -> None:
    def endless() -> object:
        while True:
            yield bytes(1000)

    with pytest.raises(UnreadableError, match="more than the 5,000 bytes"):
        whole(endless(), content("x", bytes(5000)))  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", [b"", b"abd", b"abcd", b"ab"])
def test_other_bytes_than_were_published_are_refused(raw: bytes) -> None:
    with pytest.raises(UnreadableError):
        whole([raw], content("x", b"abc"))


def test_a_pipe_or_folder_in_place_of_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        with pytest.raises(UnreadableError):
            list(pieces(path))


@given(st.binary(max_size=300), st.integers(0, len(SMALL)))
def test_no_bytes_make_the_reader_fail_in_another_way(noise: bytes, at: int) -> None:
    for raw in (noise, SMALL[:at] + noise + SMALL[at + len(noise) :]):
        try:
            found = b"".join(unpacked([raw], limit=2000))
        except UnreadableError:
            continue
        assert len(found) <= 2000
