"""Fetch published files by pooch: from the first address that sends the right contents.

A transfer goes to a folder of its own beside the target. The file gets its place only after its contents were checked,
so a file with its real name was whole when it got it, and two processes do not mix their bytes.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from tacit._errors import InputError, TacitError
from tacit._files import write_error
from tacit.studies.data.check import check_file, check_published
from tacit.studies.data.files import copies, download_folder, roots
from tacit.studies.data.published import PUBLISHED_DATASETS, Published

TIMEOUT = 30.0  # seconds without a byte
PIECE = 1 << 16
LOG = logging.getLogger("tacit.studies")


def is_offline() -> bool:
    """Whether TACIT_OFFLINE forbids the network."""
    return os.environ.get("TACIT_OFFLINE", "0") not in ("", "0")


def fetch(name: str, data_dir: Path | None = None) -> list[Path]:
    """The files of a dataset: of a copy that is whole and right, or fetched, in our own layout.

    Copies are looked for in `data_dir`, or everywhere without it. Files are put there, into TACIT_DATA, or into the
    user's cache folder; those that are right there already are kept.
    """
    dataset = PUBLISHED_DATASETS[name]
    for root in [data_dir] if data_dir is not None else roots():
        for copy in copies(name, root):
            if not copy.missing and all(check_file(name, path).right for path in copy.files):
                return list(copy.files)
    folder = download_folder(data_dir) / dataset.folder
    return [fetch_file(published, folder / published.name) for published in dataset.files]


def fetch_file(published: Published, target: Path) -> Path:
    """One file, checked and complete, at `target`. A wrong file there is replaced once the right one is here."""
    if os.path.exists(target) and check_published(target, published).right:
        return target
    if is_offline():
        raise InputError(
            f"{published.name} is not here, and TACIT_OFFLINE forbids fetching it; put it into {target.parent}, "
            "or unset TACIT_OFFLINE."
        )
    failures = []
    for address in published.addresses:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as folder:
                failure = _fetch_from(address, published, target, Path(folder))
        except OSError as error:
            raise write_error(target, error) from None
        if failure is None:
            return target
        failures.append(f"{urlsplit(address).netloc} {failure}")
        LOG.warning("%s: %s", published.name, failures[-1])
    raise TacitError(
        f"{published.name} could not be fetched: {'; '.join(failures)}. Check the network and run the same command "
        f"again, or put the file into {target.parent} yourself."
    )


def _fetch_from(address: str, published: Published, target: Path, folder: Path) -> str | None:
    """Fetch a file into `folder`, check it, and move it to `target`; returns why not, or None."""
    import pooch  # here: with requests it takes a tenth of a second to import
    from requests.exceptions import HTTPError, RequestException

    pooch.get_logger().setLevel("WARNING")  # its advice to write down a hash is not for the user
    bar = DownloadBar(published)
    try:
        # The hash of the packed file is not given: mirrors pack the same contents in other ways.
        fetched = pooch.retrieve(
            address, known_hash=None, fname=published.name, path=folder,
            downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=PIECE, timeout=TIMEOUT),
        )  # fmt: skip
    except HTTPError as error:
        answer = error.response
        return "failed" if answer is None else f"answered {answer.status_code} {answer.reason}"
    except RequestException as error:
        return f"cannot be reached or broke off ({_first_cause(error)})"
    except _TooLongError:
        return f"sent more than {published.limit:,} bytes"
    finally:
        bar.close()
    checked = check_published(Path(fetched), published)
    if not checked.right:
        return f"sent a wrong file, which {checked.words}"
    os.replace(fetched, target)
    return None


class _TooLongError(Exception):
    """A server sends more bytes than the file can have."""


class DownloadBar:
    """Progress as pooch reports it: a bar on a terminal, otherwise one line. Ends a transfer that is too long."""

    def __init__(self, published: Published) -> None:
        self.name, self.limit, self.done = published.name, published.limit, 0
        self.total = published.size  # pooch replaces it by what the server says
        self.bar = self.task = None
        if not sys.stderr.isatty():
            print(f"fetching {self.name}: {self.total:,} bytes", file=sys.stderr, flush=True)
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.task = self.bar.add_task(self.name, total=self.total)
        self.bar.start()

    def update(self, size: int) -> None:
        self.done += size
        if self.done > self.limit + PIECE:  # pooch counts whole pieces
            raise _TooLongError
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=self.done, total=self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def _first_cause(error: BaseException) -> str:
    """The message of the operating system, below the exceptions that libraries put around it."""
    while error.__context__ is not None:
        error = error.__context__
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
