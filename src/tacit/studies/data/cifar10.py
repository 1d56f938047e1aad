"""CIFAR-10 from its binary version: six batches of records in a tar.gz. Nothing is unpickled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.studies.data.facts import Data
from tacit.studies.data.streams import Content, UnreadableError, read_members

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
OTHERS = 2 << 20  # bytes beside the batches: headers, padding, names of classes, a readme


def read_archive(path: Path, contents: Sequence[Content] = CONTENTS) -> Iterator[tuple[Content, bytes]]:
    """The six batches of the published archive, each checked."""
    return read_members(path, contents, folder=FOLDER, others=OTHERS)


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
