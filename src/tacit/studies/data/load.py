"""The arrays of a dataset that a study can name: from the cache, made, read from published files, or fetched."""

from __future__ import annotations

import numpy as np

from tacit._util.errors import InputError
from tacit._util.own_code import call, is_own
from tacit.studies.data.cache import read_cached, write_cached
from tacit.studies.data.datasets import DATASETS
from tacit.studies.data.facts import ARRAYS, Data
from tacit.studies.data.files import read_or_fetch


def load(name: str) -> Data:
    """The arrays of one dataset: from the cache, or made or read now and put there.

    Published arrays have the published SHA-256, wherever they come from.
    """
    if is_own(name):
        return load_own(name)
    if name not in DATASETS:
        raise InputError(f"dataset={name!r} is unknown; use one of {', '.join(DATASETS)}.")
    dataset = DATASETS[name]
    data = read_cached(dataset)
    if data is None:
        data = read_or_fetch(dataset)[0] if dataset.urls else dataset.decode(())
        write_cached(dataset, data)
    return data


def load_own(name: str) -> Data:
    """The arrays that a function of the user's own returns: train inputs, train targets, test inputs, test targets."""
    found = call(name)
    parts = [getattr(found, key) for key in ARRAYS] if isinstance(found, Data) else found
    if not isinstance(parts, (tuple, list)) or len(parts) != 4:
        raise InputError(
            f"{name} returned a {type(found).__name__}; expected four arrays: train inputs, train targets, test "
            "inputs, test targets."
        )
    train_inputs, train_targets, test_inputs, test_targets = (np.asarray(part) for part in parts)
    _check_own(f"{name}: training", train_inputs, train_targets)
    _check_own(f"{name}: test", test_inputs, test_targets)
    if train_inputs.shape[1:] != test_inputs.shape[1:]:
        raise InputError(
            f"{name}: training inputs have shape {train_inputs.shape[1:]} and test inputs {test_inputs.shape[1:]}; "
            "expected one shape."
        )
    return Data(
        train_inputs.astype("float32"), train_targets.astype("int64"),
        test_inputs.astype("float32"), test_targets.astype("int64"),
    )  # fmt: skip


def _check_own(what: str, inputs: np.ndarray, targets: np.ndarray) -> None:
    if inputs.ndim < 2 or not np.issubdtype(inputs.dtype, np.number) or len(inputs) == 0:
        raise InputError(f"{what} inputs are {inputs.dtype} of shape {inputs.shape}; expected numbers (N, ...).")
    if targets.shape != inputs.shape[:1] or not np.issubdtype(targets.dtype, np.integer) or targets.min() < 0:
        raise InputError(
            f"{what} targets are {targets.dtype} of shape {targets.shape}; expected {len(inputs)} class numbers from 0."
        )
