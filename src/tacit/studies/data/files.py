"""Published datasets as files: where copies lie on this machine, whether one is right, and fetching one by pooch."""

from __future__ import annotations

import logging
import os
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tacit._util.errors import InputError, TacitError
from tacit._util.files import write_error
from tacit._util.tensor_file import arrays_sha256
from tacit.studies.data.cache import cache_folder
from tacit.studies.data.facts import Data, Dataset

DEBIAN = Path("/usr/share/datasets")  # of the package dataset-fashion-mnist
CHECKOUT = Path(__file__).parents[4]
TIMEOUT = 30.0  # seconds without a byte
PIECE = 1 << 16  # bytes
LOG = logging.getLogger("tacit.studies")
Copy = tuple[Path, ...]  # the files of one layout


class DamagedCopyError(Exception):
    """What is wrong with a copy, as the end of a sentence that begins with its place."""


def roots(data_dir: Path | None = None) -> list[Path]:
    """Folders that may hold datasets: `data_dir`, or TACIT_DATA, our downloads, ./data, Debian's packages."""
    if data_dir is not None:
        return [data_dir]
    named = os.environ.get("TACIT_DATA")
    found = [*([Path(named)] if named else []), cache_folder() / "data", Path("data"), DEBIAN]
    if (CHECKOUT / "pyproject.toml").is_file():  # a checkout, not an installed package: this project's own tests
        found.append(CHECKOUT.parent / "shared" / "datasets")
    return found


def copies(dataset: Dataset, data_dir: Path | None = None) -> Iterator[Copy]:
    """Copies of which at least one file is there, in the order in which they are tried."""
    for root in dict.fromkeys(path.absolute() for path in roots(data_dir)):
        for folder in dataset.folders:
            for layout in dataset.layouts:
                copy = tuple(root / folder / name for name in layout)
                if any(path.exists() for path in copy):
                    yield copy


def place(copy: Copy) -> Path:
    return copy[0] if len(copy) == 1 else copy[0].parent


def locate(dataset: Dataset, data_dir: Path | None = None) -> Copy | None:
    """The first whole copy, unread; None where there is none."""
    return next((copy for copy in copies(dataset, data_dir) if not _missing(copy)), None)


def read_copy(dataset: Dataset, copy: Copy) -> Data:
    """The arrays of a copy, or DamagedCopyError when they are not the published ones."""
    if _missing(copy):
        raise DamagedCopyError(f"lacks {', '.join(path.name for path in _missing(copy))}")
    try:
        data = dataset.decode(copy)
    except (OSError, EOFError, ValueError, zlib.error, tarfile.TarError) as error:
        raise DamagedCopyError(f"cannot be read: {error}") from None
    if arrays_sha256(data.arrays) != dataset.arrays_sha256:
        raise DamagedCopyError(f"does not hold the published {dataset.name}: its arrays have another SHA-256")
    return data


def read_or_fetch(dataset: Dataset, data_dir: Path | None = None) -> tuple[Data, Copy]:
    """The arrays of the first right copy, and where it is; without one, files are fetched.

    Copies are looked for in `data_dir`, or everywhere without it. Files are put there, into TACIT_DATA, or into the
    user's cache folder.
    """
    damaged = []
    for copy in copies(dataset, data_dir):
        try:
            return read_copy(dataset, copy), copy
        except DamagedCopyError as error:
            damaged.append(f"{place(copy)} {error}")
            LOG.warning("%s. It is not used.", damaged[-1])
    folder = data_dir or Path(os.environ.get("TACIT_DATA") or cache_folder() / "data")
    try:
        return fetch(dataset, folder / dataset.folders[0])
    except TacitError as error:
        found = f" ({'; '.join(damaged)})" if damaged else ""
        raise type(error)(
            f"dataset {dataset.name} is not here{found}: run `tacit data get {dataset.name}`, or set TACIT_DATA to a "
            f"folder with {', '.join(dataset.layouts[0])}; pickled versions are not read. Now {error}"
        ) from None


def fetch(dataset: Dataset, folder: Path) -> tuple[Data, Copy]:
    """Fetch all files from the first address that sends the right ones. They get their places when they are checked."""
    from requests.exceptions import RequestException

    if os.environ.get("TACIT_OFFLINE", "0") not in ("", "0"):
        raise InputError("TACIT_OFFLINE forbids fetching it.")
    failures = []
    for url in dataset.urls:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as temporary:
                fetched = tuple(_download(dataset, url, name, Path(temporary)) for name in dataset.layouts[0])
                data = read_copy(dataset, fetched)
                return data, tuple(path.replace(folder / path.name) for path in fetched)
        except DamagedCopyError as error:
            reason = f"sent a file that {error}"
        except RequestException as error:
            reason = f"failed ({_first_cause(error)})"
        except OSError as error:
            raise write_error(folder / dataset.layouts[0][0], error) from None
        failures.append(f"{urlsplit(url).netloc} {reason}")
        LOG.warning("%s: %s", dataset.name, failures[-1])
    raise TacitError(
        f"{dataset.name} could not be fetched: {'; '.join(failures)}. Check the network and run the same command "
        f"again, or put the files into {folder} yourself."
    )


def _download(dataset: Dataset, url: str, name: str, folder: Path) -> Path:
    import pooch  # here: with requests it takes a tenth of a second to import

    pooch.get_logger().setLevel("WARNING")  # its advice to write down a hash is not for the user
    bar = DownloadBar(name, most=2 * dataset.size)
    try:
        # The hash of the packed file is not given: mirrors pack the same contents in other ways.
        fetched = pooch.retrieve(
            url + name, known_hash=None, fname=name, path=folder,
            downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=PIECE, timeout=TIMEOUT),
        )  # fmt: skip
    finally:
        bar.close()
    return Path(fetched)


class DownloadBar:
    """Progress as pooch reports it: a bar on a terminal, otherwise one line. Ends a transfer that is too long."""

    total = 0  # pooch writes here what the server says

    def __init__(self, name: str, *, most: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        if not sys.stderr.isatty():
            print(f"fetching {name}", file=sys.stderr, flush=True)
        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self.task, self.most, self.done = self.bar.add_task(name, total=None), most, 0
        self.bar.start()

    def update(self, size: int) -> None:
        self.done += size
        if self.done > self.most:
            raise DamagedCopyError(f"has more than {self.most:,} bytes")
        self.bar.update(self.task, completed=self.done, total=self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        self.bar.stop()


def _missing(copy: Sequence[Path]) -> list[Path]:
    return [path for path in copy if not path.exists()]


def _first_cause(error: BaseException) -> str:
    """The message of the operating system, below the exceptions that libraries put around it."""
    while error.__context__ is not None:
        error = error.__context__
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
