"""Bytes of data files, in pieces: read, unpacked and measured with bounded memory, whatever the file holds."""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PIECE = 1 << 20  # bytes: large enough for zlib's speed, small enough to be nothing


class UnreadableError(Exception):
    """What is wrong with some bytes, as the end of a sentence that begins with the file's name."""


@dataclass(frozen=True)
class Content:
    """Bytes that were published under a name: what counts, whatever is wrapped around them."""

    name: str
    size: int
    sha256: str


def pieces(path: Path) -> Iterator[bytes]:
    """The bytes of an ordinary file, piece by piece."""
    try:
        with open(path, "rb", opener=_without_waiting) as handle:
            if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
                raise UnreadableError("is not an ordinary file")
            while piece := handle.read(PIECE):
                yield piece
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}") from None


def unpacked(packed: Iterable[bytes], *, limit: int) -> Iterator[bytes]:
    """What a gzip stream holds, piece by piece: one stream, checked by its own CRC, of at most `limit` bytes.

    Stops with UnreadableError at the first byte too many, so a small file cannot fill memory or time.
    """
    machine = zlib.decompressobj(wbits=31)  # 31: a gzip header and trailer are demanded and checked
    total, begun = 0, False
    for piece in packed:
        begun = True
        if machine.eof:
            raise UnreadableError("has more bytes after the end of its gzip stream")
        rest = piece
        while rest and not machine.eof:
            try:
                made = machine.decompress(rest, PIECE)
            except zlib.error:
                where = f"is damaged after {total:,} unpacked bytes" if total else "is not a gzip file"
                raise UnreadableError(where) from None
            rest = machine.unconsumed_tail
            total += len(made)
            if total > limit:
                raise UnreadableError(f"unpacks to more than {limit:,} bytes")
            if made:
                yield made
        if machine.unused_data:
            raise UnreadableError("has more bytes after the end of its gzip stream")
    if not machine.eof:
        raise UnreadableError(f"ends too early, after {total:,} unpacked bytes" if begun else "is empty")


def whole(parts: Iterable[bytes], content: Content) -> bytes:
    """The parts as one value, if they are the published bytes, of which no more than the published number are held."""
    held = bytearray()
    for part in parts:
        if len(held) + len(part) > content.size:
            raise UnreadableError(f"holds more than the {content.size:,} bytes of {content.name}")
        held += part
    if len(held) < content.size:
        raise UnreadableError(f"holds {len(held):,} bytes; {content.name} has {content.size:,}")
    found = hashlib.sha256(held).hexdigest()
    if found != content.sha256:
        raise UnreadableError(
            f"holds other bytes: SHA-256 {found[:12]}… where {content.name} has {content.sha256[:12]}…"
        )
    return bytes(held)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file as it lies on the disk."""
    digest = hashlib.sha256()
    for piece in pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def _without_waiting(path: str, flags: int) -> int:
    # A named pipe where a file is expected must not hang the reader.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
