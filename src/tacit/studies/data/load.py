"""The datasets a study can name: facts that need no file, and arrays that are made once and cached."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tacit._errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from tacit.studies.data.files import Copy


@dataclass(frozen=True)
class Facts:
    """What a study file is checked against before any data is read.

    `standardisation` says what is still to be done to the stored inputs: nothing, (x − mean)/deviation of each image,
    or of each channel with `mean` and `deviation` of the training pixels / 255.
    """

    shape: tuple[int, ...]
    classes: int
    train_size: int
    test_size: int
    standardisation: Literal["none", "per_image", "per_channel"] = "none"
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    @property
    def features(self) -> int:
        """Numbers per example.

        >>> DATASETS["cifar10"].features
        3072
        """
        return math.prod(self.shape)


DATASETS = {
    "mnist1d": Facts((40,), 10, 4000, 1000),
    "fashion_mnist": Facts((1, 28, 28), 10, 60_000, 10_000, "per_image"),
    "cifar10": Facts(
        (3, 32, 32),
        10,
        50_000,
        10_000,
        "per_channel",
        mean=(0.49139968, 0.48215841, 0.44653091),
        deviation=(0.24703223, 0.24348513, 0.26158784),
    ),
}
PUBLISHED = ("fashion_mnist", "cifar10")  # read from files; mnist1d is made


@dataclass(frozen=True)
class Data:
    """Inputs and int64 class numbers. Signals are float32 rows, standardised; images uint8 (N, C, H, W), as stored."""

    train_inputs: np.ndarray
    train_targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray


ARRAYS = ("train_inputs", "train_targets", "test_inputs", "test_targets")


def load(name: str) -> Data:
    """The arrays of one dataset: from the cache, or made or read now and put there.

    Images come from the first copy of their files that is found (`files.roots`), with every byte checked against
    the published SHA-256. The cache is used only while that copy's files keep their size and time, so a file that
    changes is read, and refused if damaged, before anything is trained on.
    """
    if name not in DATASETS:
        raise InputError(f"dataset={name!r} is unknown; use one of {', '.join(DATASETS)}.")
    if name in PUBLISHED:
        return _load_published(name)
    cached = cache_folder() / f"{name}-{_RECIPES[name]()}.safetensors"
    data = _read(cached)
    if data is None:
        data = _MAKERS[name]()
        _write(cached, data)
    return data


def _load_published(name: str) -> Data:
    from tacit.studies.data import files as data_files

    cached = cache_folder() / f"{name}.safetensors"
    copy = data_files.locate(name)
    if copy is None:
        data = _read(cached, sha256=_DECODED[name])
        if data is not None:
            return data
        copy = _fetched(name)
    source = copy.fingerprint()
    data = _read(cached, source=source, sha256=_DECODED[name])
    if data is None:
        data = data_files.read(copy)
        _write(cached, data, source=source)
    return data


def _fetched(name: str) -> Copy:
    """First use: fetch the files, or say what to do."""
    from tacit.studies.data import download, download_bar
    from tacit.studies.data import files as data_files

    found = data_files.incomplete(name)
    try:
        download.fetch(name, watch=download_bar.Bar())
    except InputError as error:
        where = f" ({found})" if found else ""
        raise InputError(
            f"dataset {name} is not here{where}: run `tacit data get {name}`, or set TACIT_DATA to a folder with it. "
            f"Now {str(error).rstrip('.')}."
        ) from None
    copy = data_files.locate(name)
    assert copy is not None
    return copy


def cache_folder() -> Path:
    """Where made data is kept: TACIT_CACHE, or `tacit` in the user's cache folder."""
    if os.environ.get("TACIT_CACHE"):
        return Path(os.environ["TACIT_CACHE"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tacit"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "tacit"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit"


def standardise(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(x − mean) / standard deviation, both over every entry of the training inputs, in float64, then float32."""
    mean, deviation = train.mean(dtype="float64"), train.std(dtype="float64")
    return ((train - mean) / deviation).astype("float32"), ((test - mean) / deviation).astype("float32")


def _make_mnist1d() -> Data:
    """4,000 training and 1,000 test signals of 40 samples, generated with the package's own seed."""
    import random

    import numpy as np
    from mnist1d.data import get_dataset_args, make_dataset

    numpy_state, python_state = np.random.get_state(), random.getstate()  # make_dataset seeds both global generators
    try:
        made = make_dataset(get_dataset_args())
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
    train, test = standardise(made["x"], made["x_test"])
    return Data(train, made["y"].astype("int64"), test, made["y_test"].astype("int64"))


_MAKERS: dict[str, Callable[[], Data]] = {"mnist1d": _make_mnist1d}
# SHA-256 of the decoded arrays (`_digest`): a cached copy is known to be right without the published files.
_DECODED = {
    "fashion_mnist": "fda0f63dc0ebe536d3b3e8f47554f2b3859e48b4adc19763c2aad8cf095149c4",
    "cifar10": "ff821c75bcf52214a9d04a3f966b43d155f53e09cbaa395bfb4ae57bb866e137",
}
# The generator's output may change with these two: each combination has a cache file of its own.
_RECIPES: dict[str, Callable[[], str]] = {"mnist1d": lambda: f"{version('mnist1d')}-numpy{version('numpy')}"}


def _read(path: Path, *, source: str | None = None, sha256: str | None = None) -> Data | None:
    """The cached arrays; None when there are none, or when the file is not what was written, or of another source."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as opened:
            facts = opened.metadata() or {}
            if source is not None and facts.get("source") != source:
                return None
            arrays = {name: opened.get_tensor(name) for name in ARRAYS}
            return Data(**arrays) if (sha256 or facts.get("sha256")) == _digest(arrays) else None
    except (OSError, SafetensorError, KeyError):
        return None


def _write(path: Path, data: Data, *, source: str | None = None) -> None:
    """Best effort: without a writable cache the data is made anew by each process."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(getattr(data, name)) for name in ARRAYS}
    facts = {"sha256": _digest(arrays)} | ({"source": source} if source else {})
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(arrays, temporary, metadata=facts)
        temporary.replace(path)
    except (OSError, SafetensorError):
        with contextlib.suppress(OSError):
            temporary.unlink()


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in ARRAYS:
        digest.update(json.dumps([name, str(arrays[name].dtype), list(arrays[name].shape)]).encode())
        digest.update(arrays[name].data)
    return digest.hexdigest()
