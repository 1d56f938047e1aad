"""The datasets a study can name: facts that need no file, and arrays that are made once and cached."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tacit._errors import InputError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Facts:
    """What a study file is checked against before any data is read."""

    features: int
    classes: int
    train_size: int
    test_size: int


DATASETS = {"mnist1d": Facts(features=40, classes=10, train_size=4000, test_size=1000)}


@dataclass(frozen=True)
class Data:
    """Inputs as float32 rows, standardised; targets as int64 class numbers."""

    train_inputs: np.ndarray
    train_targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray


ARRAYS = ("train_inputs", "train_targets", "test_inputs", "test_targets")


def load(name: str) -> Data:
    """The arrays of one dataset: from the cache, or made now and put there.

    All inputs are shifted and scaled by two numbers, the mean and standard deviation of the whole training set, so the
    shape of a signal is kept and the test set has no say.
    """
    if name not in DATASETS:
        raise InputError(f"dataset={name!r} is unknown; use one of {', '.join(DATASETS)}.")
    cached = cache_folder() / f"{name}-{_RECIPES[name]()}.safetensors"
    data = _read(cached)
    if data is None:
        data = _MAKERS[name]()
        _write(cached, data)
    return data


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
# The generator's output may change with these two: each combination has a cache file of its own.
_RECIPES: dict[str, Callable[[], str]] = {"mnist1d": lambda: f"{version('mnist1d')}-numpy{version('numpy')}"}


def _read(path: Path) -> Data | None:
    """The cached arrays; None when there are none, or when the file is not what was written."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as opened:
            arrays = {name: opened.get_tensor(name) for name in ARRAYS}
            return Data(**arrays) if (opened.metadata() or {}).get("sha256") == _digest(arrays) else None
    except (OSError, SafetensorError, KeyError):
        return None


def _write(path: Path, data: Data) -> None:
    """Best effort: without a writable cache the data is made anew by each process."""
    from safetensors.numpy import save

    arrays = {name: getattr(data, name) for name in ARRAYS}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(save(arrays, metadata={"sha256": _digest(arrays)}))
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in ARRAYS:
        digest.update(json.dumps([name, str(arrays[name].dtype), list(arrays[name].shape)]).encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
