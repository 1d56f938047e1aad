"""Small datasets in the published formats, for tests that move, damage and serve their files."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tacit._util.tensor_file import arrays_sha256
from tacit.studies.data import files as data_files
from tacit.studies.data.cifar10 import BATCHES, FOLDER, RECORD
from tacit.studies.data.facts import Data, Dataset, Facts
from tacit.studies.data.fashion_mnist import FASHION_MNIST

IDX = {  # two training images and one test image
    "train-images-idx3-ubyte": bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(2 * 784),
    "train-labels-idx1-ubyte": bytes([0, 0, 8, 1, 0, 0, 0, 2, 3, 4]),
    "t10k-images-idx3-ubyte": bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes([7]) * 784,
    "t10k-labels-idx1-ubyte": bytes([0, 0, 8, 1, 0, 0, 0, 1, 5]),
}
RECORDS = {name: (bytes([number]) + bytes(range(256)) * 12) * 2 for number, name in enumerate(BATCHES)}  # two each
assert {len(raw) for raw in RECORDS.values()} == {2 * RECORD}


def no_copies(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """No copies but those that a test makes in a folder, and no network."""
    monkeypatch.setenv("TACIT_CACHE", str(folder / "cache"))
    monkeypatch.setenv("TACIT_OFFLINE", "1")
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.setattr(data_files, "DEBIAN", folder / "debian")
    monkeypatch.setattr(data_files, "CHECKOUT", folder / "installed")


def packed(raw: bytes, *, level: int = 9) -> bytes:
    return gzip.compress(raw, level, mtime=1)


def lay(folder: Path, *, ending: str = ".gz", level: int = 9) -> Path:
    """The four files of the small Fashion-MNIST in a folder."""
    folder.mkdir(parents=True)
    for name, raw in IDX.items():
        (folder / f"{name}{ending}").write_bytes(packed(raw, level=level) if ending else raw)
    return folder


def small_fashion(folder: Path) -> Dataset:
    """Fashion-MNIST of three images; `folder` is where its files are written to learn the hash of its arrays."""
    lay(folder, ending="")
    data = FASHION_MNIST.decode([folder / name for name in IDX])
    return replace(FASHION_MNIST, arrays_sha256=arrays_sha256(data.arrays))


def tar(members: Sequence[tuple[str, bytes]], *, kinds: dict[str, bytes] | None = None) -> bytes:
    """A tar archive with these names and bytes; `kinds` gives some of them another type than a file's."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, raw in members:
            facts = tarfile.TarInfo(name)
            facts.size = len(raw)
            facts.type = (kinds or {}).get(name, tarfile.REGTYPE)
            archive.addfile(facts, io.BytesIO(raw))
    return out.getvalue()


def own_members() -> list[tuple[str, bytes]]:
    return [(f"{FOLDER}/{name}", raw) for name, raw in RECORDS.items()]


def one_file(raw: bytes, urls: tuple[str, ...]) -> Dataset:
    """A dataset in one gzip file: all arrays are its bytes."""

    def decode(paths: Sequence[Path]) -> Data:
        with gzip.open(paths[0]) as stream:
            array = np.frombuffer(stream.read(), dtype=np.uint8)
        return Data(array, array, array, array)

    array = np.frombuffer(raw, dtype=np.uint8)
    sha256 = arrays_sha256(Data(array, array, array, array).arrays)
    facts = Facts((1,), 2, len(raw), len(raw))
    layouts = (("file.gz",),)
    return Dataset("one", facts, decode, sha256, urls=urls, size=len(raw), folders=("one", ""), layouts=layouts)
