"""Published bytes out of files: plain, packed with gzip, or inside a tar archive, with bounded memory in all cases."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PIECE = 1 << 20  # bytes


class UnreadableError(Exception):
    """What is wrong with some bytes, as the end of a sentence that begins with the file's name."""


@dataclass(frozen=True)
class Content:
    """Bytes that were published under a name. Only they count: gzip headers and tar archives around them differ."""

    name: str
    size: int
    sha256: str


@contextlib.contextmanager
def opened(path: Path, *, packed: bool = False) -> Iterator[IO[bytes]]:
    """The bytes of an ordinary file, or what its gzip stream holds. Whatever reading raises is an UnreadableError."""
    try:
        with open(path, "rb", opener=_without_waiting) as handle:
            if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
                raise UnreadableError("is not an ordinary file")
            if not packed:
                yield handle
                return
            with gzip.GzipFile(fileobj=handle) as unpacked:
                yield unpacked  # type: ignore[misc]  # it reads as any binary file does
    except gzip.BadGzipFile as error:
        raise UnreadableError(f"is damaged, or not a gzip file: {error}") from None
    except zlib.error:
        raise UnreadableError("is a damaged gzip file") from None
    except EOFError:
        raise UnreadableError("ends too early") from None
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}") from None


def read_content(path: Path, content: Content, *, packed: bool) -> bytes:
    """The published bytes of a file, packed with gzip or not."""
    with opened(path, packed=packed) as stream:
        return _checked(stream, content)


def read_members(
    path: Path, contents: Sequence[Content], *, folder: str, others: int
) -> Iterator[tuple[Content, bytes]]:
    """The published members FOLDER/NAME of a tar.gz, each whole and checked, in the archive's order.

    Nothing is extracted and no name is used as a path. At most `others` bytes are unpacked beside the members.
    """
    wanted = {f"{folder}/{content.name}": content for content in contents}
    with opened(path, packed=True) as unpacked:
        stream = _Bounded(unpacked, limit=sum(content.size for content in contents) + others)
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]  # `read` is enough
                for member in archive:
                    if member.size > stream.left:  # skipping it would take tarfile hours, also where there are no bytes
                        raise UnreadableError(f"unpacks to more than {stream.limit:,} bytes")
                    content = wanted.pop(member.name, None)
                    if content is None:
                        continue
                    held = archive.extractfile(member) if member.isreg() else None
                    if held is None:
                        raise UnreadableError(f"holds {content.name} as something else than a file")
                    yield content, _checked(held, content)
        except (tarfile.TarError, ValueError, OverflowError):
            raise UnreadableError("is not a tar archive, or a header in it is damaged") from None
        while stream.read(PIECE):  # to the end, where gzip checks its own sum
            pass
    if wanted:
        raise UnreadableError(f"lacks {', '.join(content.name for content in wanted.values())}")


def file_sha256(path: Path) -> str:
    """SHA-256 of a file as it lies on the disk."""
    with opened(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def _checked(stream: IO[bytes], content: Content) -> bytes:
    """All bytes of a stream, if they are the published ones. No more than one byte beyond their number is read."""
    raw = stream.read(content.size + 1)
    if len(raw) > content.size:
        raise UnreadableError(f"holds more than the {content.size:,} bytes of {content.name}")
    if len(raw) < content.size:
        raise UnreadableError(f"holds {len(raw):,} bytes; {content.name} has {content.size:,}")
    found = hashlib.sha256(raw).hexdigest()
    if found != content.sha256:
        raise UnreadableError(f"holds a changed {content.name}: SHA-256 {found[:12]}…, expected {content.sha256[:12]}…")
    return raw


class _Bounded:
    """A stream that ends with UnreadableError at the first byte too many: a small file may unpack to terabytes."""

    def __init__(self, stream: IO[bytes], *, limit: int) -> None:
        self.stream, self.limit, self.left = stream, limit, limit

    def read(self, size: int) -> bytes:
        piece = self.stream.read(min(size, self.left + 1))
        self.left -= len(piece)
        if self.left < 0:
            raise UnreadableError(f"unpacks to more than {self.limit:,} bytes")
        return piece


def _without_waiting(path: str, flags: int) -> int:
    # A named pipe where a file is expected must not hang the reader.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
