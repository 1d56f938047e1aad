"""Whether data files are what was published: every file named, and whatever is wrong with it said."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tacit.studies.data import cifar10, fashion_mnist
from tacit.studies.data.files import archive_members, copies, read_content
from tacit.studies.data.published import SOURCES, Published
from tacit.studies.data.streams import Content, UnreadableError, file_sha256, pieces

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")
LONGEST = 1 << 20  # bytes of a SHA256SUMS that are read


@dataclass(frozen=True)
class Finding:
    """What was found out about one file."""

    path: Path
    right: bool
    words: str


class _Measured:
    """Pieces on their way to a reader, counted and hashed."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self.parts, self.size, self.digest = parts, 0, hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            self.size += len(part)
            self.digest.update(part)
            yield part


def check_published(path: Path, published: Published) -> Finding:
    """A packed file: contents, then the wrapper around them."""
    measured = _Measured(pieces(path))
    try:
        if len(published.contents) == 1:
            read_content(measured, published.contents[0], packed=True)
        else:
            for _ in archive_members(measured, published.contents):
                pass
    except UnreadableError as error:
        return Finding(path, False, str(error))
    return _wrapper(path, measured.size, measured.digest.hexdigest(), published)


def check_content(path: Path, content: Content) -> Finding:
    """A file that was published inside another one, and lies here unpacked."""
    try:
        read_content(pieces(path), content, packed=False)
    except UnreadableError as error:
        return Finding(path, False, str(error))
    return Finding(path, True, "is as published, unpacked")


def check_root(name: str, root: Path) -> Iterator[Finding]:
    """Every file of a dataset under a folder, in any known layout, and those that a copy there lacks."""
    done: set[Path] = set()
    for copy in copies(name, root):
        for path in copy.missing:
            yield Finding(path, False, "is missing")
        for path in _files(name, copy.files):
            if path not in done:
                done.add(path)
                yield check_file(name, path)


def check_sums(root: Path) -> Iterator[Finding]:
    """A folder's SHA256SUMS, if there is one: each file it lists. It knows wrappers that were not published."""
    path = root / SUMS
    if not os.path.exists(path):
        return
    try:
        raw = b"".join(_few(pieces(path)))
    except UnreadableError as error:
        yield Finding(path, False, str(error))
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
    yield Finding(path, not wrong, "; ".join(wrong) or "agrees with the files it lists")


def check_file(name: str, path: Path) -> Finding:
    """A file of a dataset, packed or not, known by its name."""
    for published in SOURCES[name].files:
        if path.name == published.name:
            return check_published(path, published)
    contents = fashion_mnist.CONTENTS if name == "fashion_mnist" else cifar10.CONTENTS
    return check_content(path, next(content for content in contents if content.name == path.name))


def _files(name: str, files: Iterable[Path]) -> Iterator[Path]:
    """Those that exist, and a packed file's unpacked neighbour: torchvision leaves both."""
    for path in files:
        neighbours = [path, path.with_suffix("")] if name == "fashion_mnist" and path.suffix == ".gz" else [path]
        yield from (each for each in neighbours if os.path.exists(each))


def _wrapper(path: Path, size: int, sha256: str, published: Published) -> Finding:
    """The contents are right: say how they are packed. A byte changed in a wrapper keeps its length."""
    inside = ", ".join(content.name for content in published.contents) if len(published.contents) > 1 else ""
    holds = f", with {inside}" if inside else ""
    for wrapper in published.wrappers:
        if sha256 == wrapper.sha256:
            return Finding(path, True, f"is as published, packed {wrapper.origin}{holds}")
    if size in {wrapper.size for wrapper in published.wrappers if wrapper.fixed}:
        return Finding(path, False, f"has a changed byte in the wrapper around its contents, which are right{holds}")
    return Finding(path, True, f"has the published contents, packed in another way{holds}")


def _few(parts: Iterable[bytes]) -> Iterator[bytes]:
    total = 0
    for part in parts:
        total += len(part)
        if total > LONGEST:
            raise UnreadableError(f"has more than {LONGEST:,} bytes")
        yield part
