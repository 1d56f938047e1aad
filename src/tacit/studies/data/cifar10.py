"""CIFAR-10 from its binary version: six batches of records in a tar.gz, or unpacked. Nothing is unpickled."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tacit.studies.data.facts import Data, Dataset, Facts

ARCHIVE = "cifar-10-binary.tar.gz"
FOLDER = "cifar-10-batches-bin"
BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
BATCH_SIZE = 10_000
RECORD = 1 + 3 * 32 * 32  # a class number, then 1,024 red, 1,024 green, 1,024 blue


def decode(paths: Sequence[Path]) -> Data:
    """50,000 training and 10,000 test images (N, 3, 32, 32) in uint8 and their class numbers.

    One batch at a time is held beside the result.
    """
    import numpy as np

    records = np.empty((len(BATCHES), BATCH_SIZE, RECORD), dtype=np.uint8)
    missing = set(BATCHES)
    for name, raw in _batches(paths):
        records[BATCHES.index(name)] = np.frombuffer(raw, dtype=np.uint8).reshape(BATCH_SIZE, RECORD)
        missing.discard(name)
    if missing:
        raise ValueError(f"lacks {', '.join(sorted(missing))}")
    labels = records[..., 0].reshape(-1).astype("int64")
    images = np.ascontiguousarray(records[..., 1:]).reshape(-1, 3, 32, 32)
    train = BATCH_SIZE * (len(BATCHES) - 1)
    return Data(images[:train], labels[:train], images[train:], labels[train:])


def _batches(paths: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the batches. Nothing is extracted, and no name in an archive is used as a path."""
    if len(paths) == len(BATCHES):
        yield from ((path.name, path.read_bytes()) for path in paths)
        return
    with tarfile.open(paths[0], mode="r|gz") as archive:
        for member in archive:
            name = member.name.removeprefix(f"{FOLDER}/")
            content = archive.extractfile(member) if name in BATCHES else None
            if content is not None:
                yield name, content.read(BATCH_SIZE * RECORD + 1)


CIFAR10 = Dataset(
    "cifar10",
    Facts(
        *((3, 32, 32), 10, 50_000, 10_000, "per_channel"),
        mean=(0.49139968, 0.48215841, 0.44653091),
        deviation=(0.24703223, 0.24348513, 0.26158784),
    ),
    decode,
    arrays_sha256="ff821c75bcf52214a9d04a3f966b43d155f53e09cbaa395bfb4ae57bb866e137",
    urls=(
        "https://www.cs.toronto.edu/~kriz/",
        # Two public copies of the same archive: Swift for TensorFlow's, and MindSpore's tutorials'.
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
        "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/",
    ),
    size=170_052_171,
    folders=("cifar-10", ""),
    layouts=((ARCHIVE,), tuple(f"{FOLDER}/{name}" for name in BATCHES), BATCHES),
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    terms="no formal licence; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
)
