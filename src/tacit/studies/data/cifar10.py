"""CIFAR-10 from its binary version: six members read straight from the tar.gz, nothing extracted, nothing unpickled."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tacit.studies.data.facts import Data
from tacit.studies.data.streams import Content, UnreadableError

if TYPE_CHECKING:
    import numpy as np

FOLDER = "cifar-10-batches-bin"
RECORD = 1 + 3 * 32 * 32  # a class number, then 1,024 red, 1,024 green, 1,024 blue
BATCH_SIZE = 10_000 * RECORD
CONTENTS = tuple(
    Content(name, BATCH_SIZE, sha256)
    for name, sha256 in {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    }.items()
)
BLOCK = 512  # of tar
OTHERS = 1 << 20  # bytes that members we don't read (names of classes, a readme) may have together


def largest(contents: Sequence[Content] = CONTENTS) -> int:
    """Bytes that a tar archive of these contents may have: with headers, padding, other members, and zeros behind."""
    return sum(content.size + 2 * BLOCK for content in contents) + 2 * OTHERS


class _Reader:
    """Exact numbers of bytes from pieces of any length, holding one request and one piece at most."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self.parts = iter(parts)
        self.held = b""

    def take(self, size: int) -> bytes:
        """`size` bytes; fewer where the stream ends."""
        found, missing = [], size
        while missing:
            if not self.held:
                self.held = next(self.parts, b"")
                if not self.held:
                    break
            part, self.held = self.held[:missing], self.held[missing:]
            found.append(part)
            missing -= len(part)
        return b"".join(found)


def members(tar: Iterable[bytes], contents: Sequence[Content] = CONTENTS) -> Iterator[tuple[Content, bytes]]:
    """The published members of a tar stream, each whole and checked, in the stream's order; read to its very end.

    Only the exact names FOLDER/NAME count. Other members are skipped, up to OTHERS bytes together: their names are
    never used as paths, so it doesn't matter where they point.
    """
    reader, wanted = _Reader(tar), {f"{FOLDER}/{content.name}": content for content in contents}
    seen: set[str] = set()
    left = OTHERS
    while True:
        header = reader.take(BLOCK)
        if not header.strip(b"\0"):
            if len(header) < BLOCK:
                raise UnreadableError("ends before the end of its tar archive")
            break
        name, size, kind = _parse_header(header)
        content = wanted.get(name)
        if content is None:
            left -= size + BLOCK
            if left < 0:
                raise UnreadableError(f"holds {name[:80]!r}, which does not belong to CIFAR-10")
            reader.take(-(-size // BLOCK) * BLOCK)
            continue
        if name in seen:
            raise UnreadableError(f"holds {content.name} twice")
        if kind not in (b"0", b"\0") or size != content.size:
            raise UnreadableError(f"holds {content.name} with {size:,} bytes; expected a file of {content.size:,}")
        seen.add(name)
        yield content, _checked(reader, content)
    while rest := reader.take(1 << 16):
        if rest.strip(b"\0"):
            raise UnreadableError("has other bytes after the end of its tar archive")
    missing = [content.name for name, content in wanted.items() if name not in seen]
    if missing:
        raise UnreadableError(f"lacks {', '.join(missing)}")


def _parse_header(header: bytes) -> tuple[str, int, bytes]:
    """Name, size and kind of a tar member, after the header's own checksum."""
    try:
        if len(header) < BLOCK:
            raise ValueError
        stated = int(header[148:156].strip(b"\0 "), 8)
        size = int(header[124:136].strip(b"\0 ") or b"0", 8)
        if stated != sum(header[:148]) + 8 * ord(" ") + sum(header[156:]) or size < 0:
            raise ValueError
    except ValueError:
        raise UnreadableError("is not a tar archive, or a header in it is damaged") from None
    name = header[:100].split(b"\0")[0]
    prefix = header[345:500].split(b"\0")[0] if header[257:262] == b"ustar" else b""
    full = prefix + b"/" + name if prefix else name
    return full.decode("ascii", errors="backslashreplace"), size, header[156:157]


def _checked(reader: _Reader, content: Content) -> bytes:
    try:
        raw = reader.take(content.size)
        padding = reader.take(-content.size % BLOCK)
    except UnreadableError as error:
        raise UnreadableError(f"{error}, in {content.name}") from None
    if len(raw) < content.size:
        raise UnreadableError(f"ends in {content.name}")
    found = hashlib.sha256(raw).hexdigest()
    if found != content.sha256:
        raise UnreadableError(f"holds a changed {content.name}: SHA-256 {found[:12]}…, expected {content.sha256[:12]}…")
    if padding.strip(b"\0"):
        raise UnreadableError(f"has other bytes behind {content.name}")
    return raw


def parse_records(raw: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, 32, 32) in uint8, and class numbers below 10, of one batch."""
    import numpy as np

    if len(raw) % RECORD:
        raise UnreadableError(f"has {len(raw):,} bytes, which is no multiple of {RECORD:,}")
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, RECORD)
    if len(records) and records[:, 0].max() > 9:
        raise UnreadableError(f"has a class number {records[:, 0].max()}; expected 0 to 9")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype("int64")


def decode(batches: Iterable[tuple[Content, bytes]]) -> Data:
    """The six batches, in any order, as 50,000 training and 10,000 test images.

    One batch at a time is held beside the result.
    """
    import numpy as np

    count = BATCH_SIZE // RECORD
    order = [content.name for content in CONTENTS]
    images = np.empty((len(order) * count, 3, 32, 32), dtype=np.uint8)
    labels = np.empty(len(order) * count, dtype=np.int64)
    for content, raw in batches:
        here = slice(order.index(content.name) * count, (order.index(content.name) + 1) * count)
        images[here], labels[here] = parse_records(raw)
    train = (len(order) - 1) * count
    return Data(images[:train], labels[:train], images[train:], labels[train:])
