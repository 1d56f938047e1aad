"""The cache of decoded arrays: one file per dataset."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.metadata import version
from pathlib import Path

from tacit._util import tensor_file
from tacit._util.errors import TacitError
from tacit._util.files import write_atomically
from tacit.studies.data.facts import Data, Dataset


def cache_folder() -> Path:
    """Where made data is kept: TACIT_CACHE, or `tacit` in the user's cache folder."""
    if os.environ.get("TACIT_CACHE"):
        return Path(os.environ["TACIT_CACHE"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tacit"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "tacit"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit"


def cache_path(dataset: Dataset) -> Path:
    versions = [f"{package}-{version(package)}" for package in dataset.made_by]
    return cache_folder() / f"{'-'.join([dataset.name, *versions])}.safetensors"


def read_cached(dataset: Dataset) -> Data | None:
    """The cached arrays; None when there are none, or when they are not what the dataset gives."""
    try:
        arrays, _ = tensor_file.decode(cache_path(dataset).read_bytes())
        data = Data(**arrays)
    except (OSError, ValueError, TypeError):
        return None
    return data if dataset.arrays_sha256 in ("", tensor_file.arrays_sha256(data.arrays)) else None


def write_cached(dataset: Dataset, data: Data) -> None:
    """Best effort: without a writable cache the data is made anew by each process."""
    with contextlib.suppress(TacitError):
        write_atomically(cache_path(dataset), tensor_file.encode(data.arrays, {"dataset": dataset.name}))
