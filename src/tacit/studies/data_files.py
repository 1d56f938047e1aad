"""Where copies of the published datasets lie on this machine, in whose layout, and how one is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tacit._errors import InputError
from tacit.studies import cifar10, fashion_mnist
from tacit.studies.data_streams import Content, UnreadableError, pieces, unpacked
from tacit.studies.datasets import Data, cache_folder

ARCHIVE = "cifar-10-binary.tar.gz"
DEBIAN = Path("/usr/share/datasets")  # of the package dataset-fashion-mnist
CHECKOUT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Copy:
    """One copy of a dataset: its files, whole or not."""

    name: str
    files: tuple[Path, ...]

    @property
    def missing(self) -> list[Path]:
        return [path for path in self.files if not path.exists()]

    def fingerprint(self) -> str:
        """Changes when a file is replaced or written to, without reading it: path, size and time of each."""
        facts = [
            (str(path.resolve()), found.st_size, found.st_mtime_ns) for path in self.files if (found := path.stat())
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def roots(data_dir: Path | None = None) -> list[Path]:
    """Folders that may hold datasets, the one that was named first."""
    named = data_dir or os.environ.get("TACIT_DATA")
    found = [Path(named)] if named else []
    found += [download_folder(), Path("data"), DEBIAN]
    if (CHECKOUT / "pyproject.toml").is_file():  # not an installed package: this project's own tests
        found.append(CHECKOUT.parent / "shared" / "datasets")
    return found


def download_folder(data_dir: Path | None = None) -> Path:
    """Where `tacit data get` puts files: the named folder, TACIT_DATA, or `data` in the user's cache."""
    return data_dir or Path(os.environ.get("TACIT_DATA") or cache_folder() / "data")


def copies(name: str, root: Path) -> Iterator[Copy]:
    """Every copy that has at least one file under a root, in our own layout, torchvision's, or with no folder."""
    for files in _layouts(name, root):
        if any(path.exists() for path in files):
            yield Copy(name, files)


def locate(name: str, data_dir: Path | None = None) -> Copy | None:
    """The first whole copy; None where there is none. Files are not read: a damaged copy is found by reading it."""
    for root in roots(data_dir):
        for copy in copies(name, root):
            if not copy.missing:
                return copy
    return None


def _layouts(name: str, root: Path) -> Iterator[tuple[Path, ...]]:
    if name == "fashion_mnist":
        for folder in (root / "fashion-mnist", root / "FashionMNIST" / "raw", root):
            for ending in (".gz", ""):
                yield tuple(folder / f"{content.name}{ending}" for content in fashion_mnist.CONTENTS)
    else:
        for folder in (root / "cifar-10", root):
            yield (folder / ARCHIVE,)
            for inner in (folder / cifar10.FOLDER, folder):
                yield tuple(inner / content.name for content in cifar10.CONTENTS)


def read(copy: Copy) -> Data:
    """The arrays of a copy, every byte of them checked; a damaged file is refused by name."""
    current = copy.files[0]
    try:
        if copy.name == "fashion_mnist":
            raw = []
            for current, content in zip(copy.files, fashion_mnist.CONTENTS, strict=True):
                raw.append(fashion_mnist.read_content(current, content))
            return fashion_mnist.decode(raw)
        if len(copy.files) == 1:
            return cifar10.decode(archive_members(current))
        batches = []
        for current, content in zip(copy.files, cifar10.CONTENTS, strict=True):
            batches.append((content, fashion_mnist.read_content(current, content)))
        return cifar10.decode(batches)
    except UnreadableError as error:
        raise InputError(
            f"{current} {error}. It was not used: remove it and run `tacit data get {copy.name}`."
        ) from None


def archive_members(path: Path) -> Iterator[tuple[Content, bytes]]:
    """CIFAR-10's six batches from the archive, each checked."""
    return cifar10.members(unpacked(pieces(path), limit=cifar10.LIMIT))
