"""Whether data files are what was published: the name of every file, and what is wrong with it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tacit._parsing import read_bounded
from tacit.studies.data import cifar10, fashion_mnist
from tacit.studies.data.files import copies
from tacit.studies.data.published import PUBLISHED_DATASETS, Published
from tacit.studies.data.streams import Content, UnreadableError, file_sha256, read_content

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")
LONGEST = 1 << 20  # bytes of a SHA256SUMS that are read


@dataclass(frozen=True)
class FileCheck:
    """What was found out about one file."""

    path: Path
    right: bool
    words: str  # the end of a sentence that begins with the file


def check_published(path: Path, published: Published) -> FileCheck:
    """A packed file: contents, then the wrapper around them."""
    try:
        if len(published.contents) == 1:
            read_content(path, published.contents[0], packed=True)
        else:
            for _ in cifar10.read_archive(path, published.contents):
                pass
        sha256 = file_sha256(path)
    except UnreadableError as error:
        return FileCheck(path, False, str(error))
    return _wrapper(path, sha256, published)


def check_content(path: Path, content: Content) -> FileCheck:
    """A file that was published inside another one, and lies here unpacked."""
    try:
        read_content(path, content, packed=False)
    except UnreadableError as error:
        return FileCheck(path, False, str(error))
    return FileCheck(path, True, "is as published, unpacked")


def check_root(name: str, root: Path) -> Iterator[FileCheck]:
    """Every file of a dataset under a folder, in any known layout, and those that a copy there lacks."""
    done: set[Path] = set()
    for copy in copies(name, root):
        for path in copy.missing:
            yield FileCheck(path, False, "is missing")
        for path in _files(name, copy.files):
            if path not in done:
                done.add(path)
                yield check_file(name, path)


def check_sums(root: Path) -> Iterator[FileCheck]:
    """A folder's SHA256SUMS, if there is one: each file it lists. It knows wrappers that were not published."""
    path = root / SUMS
    if not os.path.exists(path):
        return
    try:
        raw = read_bounded(path, most=LONGEST)
    except (OSError, ValueError) as error:
        yield FileCheck(path, False, f"cannot be read: {error}")
        return
    wrong = []
    for number, line in enumerate(raw.decode(errors="replace").splitlines(), 1):
        found = LINE.fullmatch(line)
        if found is None:
            wrong.append(f"cannot be read in line {number}")
            continue
        try:
            if file_sha256(root / found[2]) != found[1]:
                wrong.append(f"has another SHA-256 for {found[2]} than that file has")
        except (UnreadableError, ValueError):
            wrong.append(f"lists {found[2]}, which is not there")
    yield FileCheck(path, not wrong, "; ".join(wrong) or "agrees with the files it lists")


def check_file(name: str, path: Path) -> FileCheck:
    """A file of a dataset, packed or not, known by its name."""
    for published in PUBLISHED_DATASETS[name].files:
        if path.name == published.name:
            return check_published(path, published)
    contents = fashion_mnist.CONTENTS if name == "fashion_mnist" else cifar10.CONTENTS
    return check_content(path, next(content for content in contents if content.name == path.name))


def _files(name: str, files: Iterable[Path]) -> Iterator[Path]:
    """Those that exist, and a packed file's unpacked neighbour: torchvision leaves both."""
    for path in files:
        neighbours = [path, path.with_suffix("")] if name == "fashion_mnist" and path.suffix == ".gz" else [path]
        yield from (each for each in neighbours if os.path.exists(each))


def _wrapper(path: Path, sha256: str, published: Published) -> FileCheck:
    """The contents are right: say how they are packed. A byte changed in a wrapper keeps its length."""
    inside = ", ".join(content.name for content in published.contents) if len(published.contents) > 1 else ""
    holds = f", with {inside}" if inside else ""
    for wrapper in published.wrappers:
        if sha256 == wrapper.sha256:
            return FileCheck(path, True, f"is as published, packed {wrapper.origin}{holds}")
    if path.stat().st_size in {wrapper.size for wrapper in published.wrappers if wrapper.fixed}:
        return FileCheck(path, False, f"has a changed byte in the wrapper around its contents, which are right{holds}")
    return FileCheck(path, True, f"has the published contents, packed in another way{holds}")
