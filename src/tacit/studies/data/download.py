"""Fetch published files: from the first address that gives the right bytes, going on where a transfer was cut.

Bytes go to `.NAME.part`, which is locked while a process writes to it and kept when a transfer fails. It takes its
real name only after its contents were checked, so a file with its real name was whole when it got it.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import logging
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from tacit._errors import InputError
from tacit.studies.data.check import check_file, check_published
from tacit.studies.data.files import copies, download_folder, roots
from tacit.studies.data.published import SOURCES, Published

TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 5  # per address: each goes on where the one before was cut
PIECE = 1 << 16
LOG = logging.getLogger("tacit.studies")


class Watch:
    """What a download tells while it runs. This one logs; a terminal gets a bar (`download_bar`)."""

    def began(self, name: str, *, done: int, total: int) -> None:
        LOG.info("fetching %s: %d of %d bytes are here", name, done, total)

    def received(self, done: int, total: int) -> None:
        """`done` of `total` bytes are here; `done` may fall when a transfer begins anew."""

    def warned(self, text: str) -> None:
        LOG.warning("%s", text)

    def ended(self) -> None:
        """Called once per file, however it ends."""


class _FailedError(Exception):
    """Why an address did not give the file."""


def is_offline() -> bool:
    """Whether TACIT_OFFLINE forbids the network."""
    return os.environ.get("TACIT_OFFLINE", "0") not in ("", "0")


def fetch(name: str, data_dir: Path | None = None, *, watch: Watch | None = None) -> list[Path]:
    """The files of a dataset: of a copy that is whole and right, or fetched, in our own layout.

    Copies are looked for in `data_dir`, or everywhere without it. Files are put there, into TACIT_DATA, or into the
    user's cache folder; those that are right there already are kept.
    """
    source = SOURCES[name]
    for root in [data_dir] if data_dir is not None else roots():
        for copy in copies(name, root):
            if not copy.missing and all(check_file(name, path).right for path in copy.files):
                return list(copy.files)
    folder = download_folder(data_dir) / source.folder
    return [fetch_file(published, folder / published.name, watch=watch) for published in source.files]


def begun_parts(name: str, data_dir: Path | None = None) -> list[Path]:
    """The files of transfers that were cut, with which `fetch` goes on."""
    source = SOURCES[name]
    parts = [_part_path(download_folder(data_dir) / source.folder / published.name) for published in source.files]
    return [part for part in parts if os.path.isfile(part)]


def fetch_file(published: Published, target: Path, *, watch: Watch | None = None) -> Path:
    """One file, checked and complete, at `target`. A wrong file there is replaced once the right one is here."""
    watch = watch or Watch()
    if os.path.exists(target) and check_published(target, published).right:
        return target
    if is_offline():
        raise InputError(
            f"{published.name} is not here, and TACIT_OFFLINE forbids fetching it; put it into {target.parent}, "
            "or unset TACIT_OFFLINE."
        )
    with _said_as_a_sentence(target), _part_of(target, watch) as part:
        if os.path.exists(target) and check_published(target, published).right:
            return target  # another process fetched it while this one waited
        watch.began(target.name, done=_size(part), total=published.size)
        try:
            _from_any_address(published, target, part, watch)
        finally:
            watch.ended()
        part.flush()
        os.fsync(part.fileno())
        os.replace(_part_path(target), target)
    return target


def _from_any_address(published: Published, target: Path, part: IO[bytes], watch: Watch) -> None:
    if _size(part) in {wrapper.size for wrapper in published.wrappers} and _is_right(published, target, part):
        return  # stopped between the last byte and the new name
    failures = []
    for address in published.addresses:
        host = urlsplit(address).netloc
        try:
            _from_address(address, published, target, part, watch)
            return
        except _FailedError as error:
            failures.append(f"{host} {error}")
            watch.warned(f"{published.name}: {host} {error}")
    raise InputError(
        f"{published.name} could not be fetched: {'; '.join(failures)}. Check the network and run the same command "
        f"again, which goes on where it stopped, or put the file into {target.parent} yourself."
    )


def _from_address(address: str, published: Published, target: Path, part: IO[bytes], watch: Watch) -> None:
    """Fill `part` from one address, and check it. Bytes from elsewhere that don't fit are dropped, once."""
    for _ in range(2):
        if _size(part) > published.limit:
            part.truncate(0)
        before = _size(part)
        resumed = _receive(address, published, part, watch, attempts=ATTEMPTS)
        finding = _finding(published, target, part)
        if finding is None:
            return
        part.truncate(0)
        if not (resumed and before):
            raise _FailedError(f"sent a wrong file, which {finding}")
    raise _FailedError("sent a wrong file twice")


def _receive(address: str, published: Published, part: IO[bytes], watch: Watch, *, attempts: int) -> bool:
    """Receive until the server's last byte; whether the part begins with bytes that were here before."""
    resumed = False
    while True:
        attempts -= 1
        have = _size(part)
        try:
            with _opened(address, have) as answer:
                begin, total = _range(answer, have)
                if begin != have:
                    part.truncate(0)
                resumed = resumed or begin > 0
                whole = _append(answer, part, published, watch, total=total)
            if whole:
                return resumed
            reason = f"stopped after {_size(part):,} of {total:,} bytes"
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
                part.truncate(0)
                reason = "refused to go on"
            else:
                raise _FailedError(f"answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            if _is_ours(error):
                raise
            reason = f"cannot be reached or broke off ({_in_words(error)})"
        if attempts <= 0 or (_size(part) <= have and _size(part)) or (not _size(part) and not have):
            raise _FailedError(reason)  # an attempt that brought nothing is not repeated


def _opened(address: str, have: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "tacit", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    return urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT)


def _range(answer: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """The first byte that comes, and how many the whole file has, as far as the server says."""
    if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
        found = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", answer.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != have:
            raise _FailedError("answered with another part than was asked for")
        return have, None if found[2] == "*" else int(found[2])
    stated = answer.headers.get("Content-Length", "")
    return 0, int(stated) if re.fullmatch(r"\d{1,18}", stated) else None


def _append(
    answer: http.client.HTTPResponse, part: IO[bytes], published: Published, watch: Watch, *, total: int | None
) -> bool:
    """Append what comes; whether it came to its end."""
    size = _size(part)
    while received := answer.read1(PIECE):  # not read: what came before a cut is kept
        size += len(received)
        if size > published.limit:
            part.truncate(0)
            raise _FailedError(f"sent more than {published.limit:,} bytes")
        part.write(received)
        part.flush()
        watch.received(size, total or published.size)
    return total is None or size >= total


def _finding(published: Published, target: Path, part: IO[bytes]) -> str | None:
    part.flush()
    found = check_published(_part_path(target), published)
    return None if found.right else found.words


def _is_right(published: Published, target: Path, part: IO[bytes]) -> bool:
    return _finding(published, target, part) is None


def _part_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.part")


def _size(part: IO[bytes]) -> int:
    part.flush()
    return os.fstat(part.fileno()).st_size


@contextlib.contextmanager
def _part_of(target: Path, watch: Watch) -> Iterator[IO[bytes]]:
    """The part file, with this process alone on it: others wait. The system drops the lock when a process dies."""
    import fcntl

    target.parent.mkdir(parents=True, exist_ok=True)
    path = _part_path(target)
    while True:
        with open(path, "ab") as part:
            try:
                fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                watch.warned(f"{target.name}: another process is fetching it; waiting")
                fcntl.flock(part, fcntl.LOCK_EX)
            if not _is_at(path, part):
                continue  # it was finished and renamed while this process waited
            try:
                yield part
            finally:
                if _is_at(path, part) and not _size(part):
                    path.unlink()
            return


def _is_at(path: Path, part: IO[bytes]) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(part.fileno()))
    except FileNotFoundError:
        return False


def _is_ours(error: BaseException) -> bool:
    """Whether our own disk failed, and not the network."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


def _in_words(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    inner = reason if isinstance(reason, BaseException) else error
    return getattr(inner, "strerror", None) or str(reason or inner) or type(inner).__name__


@contextlib.contextmanager
def _said_as_a_sentence(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(f"the disk is full: {target} was not written. Free some space and run again.") from None
        raise InputError(
            f"{target} cannot be written: {error.strerror}; choose a writable folder with --data-dir or TACIT_DATA."
        ) from None
