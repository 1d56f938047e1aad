"""Where copies of the published datasets lie on this machine, in whose layout, and how one is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tacit._errors import InputError
from tacit.studies.data import cifar10, fashion_mnist
from tacit.studies.data.cache import cache_folder
from tacit.studies.data.facts import Data
from tacit.studies.data.published import ARCHIVE
from tacit.studies.data.streams import Content, UnreadableError, read_content

DEBIAN = Path("/usr/share/datasets")  # of the package dataset-fashion-mnist
CHECKOUT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Copy:
    """One copy of a dataset: its files, in the order of the dataset's contents, or the one archive that holds them."""

    name: str
    files: tuple[Path, ...]

    @property
    def missing(self) -> list[Path]:
        return [path for path in self.files if not os.path.exists(path)]

    def fingerprint(self) -> str:
        """Changes when a file is replaced or written to, without reading it: path, size and time of each."""
        try:
            found = [(os.path.realpath(path), os.stat(path)) for path in self.files]
        except OSError as error:
            raise InputError(f"{error.filename} cannot be read: {error.strerror}.") from None
        facts = [(path, facts.st_size, facts.st_mtime_ns) for path, facts in found]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def roots(data_dir: Path | None = None) -> list[Path]:
    """Folders that may hold datasets: --data-dir or TACIT_DATA, our downloads, ./data, Debian's packages."""
    named = data_dir or os.environ.get("TACIT_DATA")
    found = [Path(named)] if named else []
    found += [cache_folder() / "data", Path("data"), DEBIAN]
    if (CHECKOUT / "pyproject.toml").is_file():  # a checkout, not an installed package: this project's own tests
        found.append(CHECKOUT.parent / "shared" / "datasets")
    return found


def download_folder(data_dir: Path | None = None) -> Path:
    """Where `tacit data get` puts files: the named folder, TACIT_DATA, or `data` in the user's cache folder."""
    return data_dir or Path(os.environ.get("TACIT_DATA") or cache_folder() / "data")


def copies(name: str, root: Path) -> Iterator[Copy]:
    """Copies under a root, whole or not: in our own layout, in torchvision's, or with no folder around them."""
    if name == "fashion_mnist":
        for folder in (root / "fashion-mnist", root / "FashionMNIST" / "raw", root):
            yield from _begun(Copy(name, tuple(_packed_or_not(folder, each) for each in fashion_mnist.CONTENTS)))
    else:
        for folder in (root / "cifar-10", root):
            yield from _begun(Copy(name, (folder / ARCHIVE,)))
        for folder in (root / "cifar-10" / cifar10.FOLDER, root / cifar10.FOLDER, root):
            yield from _begun(Copy(name, tuple(folder / content.name for content in cifar10.CONTENTS)))


def locate(name: str, data_dir: Path | None = None) -> Copy | None:
    """The first whole copy; None where there is none. Files are not read: a damaged copy is found by reading it."""
    found = (copy for root in roots(data_dir) for copy in copies(name, root))
    return next((copy for copy in found if not copy.missing), None)


def incomplete(name: str, data_dir: Path | None = None) -> str:
    """What was found that is no copy, as the end of a sentence; empty where there is nothing."""
    for root in roots(data_dir):
        for copy in copies(name, root):
            return f"{copy.files[0].parent} lacks {', '.join(path.name for path in copy.missing)}"
        if name == "cifar10" and os.path.isdir(root / "cifar-10-batches-py"):
            return f"{root / 'cifar-10-batches-py'} is the pickled version, which is not read"
    return ""


def read(copy: Copy) -> Data:
    """The arrays of a copy, every byte of them checked; a damaged file is refused by name."""
    if copy.name == "fashion_mnist":
        return fashion_mnist.decode([raw for _, raw in _contents(copy, fashion_mnist.CONTENTS)])
    if len(copy.files) > 1:
        return cifar10.decode(_contents(copy, cifar10.CONTENTS))
    try:
        return cifar10.decode(cifar10.read_archive(copy.files[0]))
    except UnreadableError as error:
        raise _refused(copy, copy.files[0], error) from None


def _contents(copy: Copy, contents: Iterable[Content]) -> Iterator[tuple[Content, bytes]]:
    for path, content in zip(copy.files, contents, strict=True):
        try:
            yield content, read_content(path, content, packed=path.suffix == ".gz")
        except UnreadableError as error:
            raise _refused(copy, path, error) from None


def _refused(copy: Copy, path: Path, error: UnreadableError) -> InputError:
    # Removing it comes first: `get` is content with a right copy in a later folder, and this one would still be found.
    return InputError(f"{path} {error}. It was not used: remove it and run `tacit data get {copy.name}`.")


def _begun(copy: Copy) -> Iterator[Copy]:
    if len(copy.missing) < len(copy.files):
        yield copy


def _packed_or_not(folder: Path, content: Content) -> Path:
    packed, plain = folder / f"{content.name}.gz", folder / content.name
    return plain if os.path.exists(plain) and not os.path.exists(packed) else packed
