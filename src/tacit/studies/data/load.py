"""The arrays of a dataset that a study can name: from the cache, made, read from published files, or fetched."""

from __future__ import annotations

import numpy as np

from tacit._errors import InputError, TacitError
from tacit._own_code import call, is_own
from tacit.studies.data import download, files, mnist1d
from tacit.studies.data.cache import cache_folder, read_arrays, write_arrays
from tacit.studies.data.facts import ARRAYS, DATASETS, PUBLISHED, Data
from tacit.studies.data.files import Copy

# SHA-256 of the decoded arrays (`arrays_sha256`): a cached copy is known to be right without the published files.
DECODED = {
    "fashion_mnist": "fda0f63dc0ebe536d3b3e8f47554f2b3859e48b4adc19763c2aad8cf095149c4",
    "cifar10": "ff821c75bcf52214a9d04a3f966b43d155f53e09cbaa395bfb4ae57bb866e137",
}


def load(name: str) -> Data:
    """The arrays of one dataset: from the cache, or made or read now and put there.

    Images come from the first copy of their files that is found (`files.roots`), with every byte checked against
    the published SHA-256. The cache is used only while that copy's files keep their size and time, so a file that
    changes is read, and refused if damaged, before anything is trained on.
    """
    if is_own(name):
        return load_own(name)
    if name not in DATASETS:
        raise InputError(f"dataset={name!r} is unknown; use one of {', '.join(DATASETS)}.")
    if name in PUBLISHED:
        return _load_published(name)
    cached = cache_folder() / f"{name}-{mnist1d.recipe()}.safetensors"
    data = read_arrays(cached)
    if data is None:
        data = mnist1d.MAKERS[name]()
        write_arrays(cached, data)
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


def _load_published(name: str) -> Data:
    cached = cache_folder() / f"{name}.safetensors"
    copy = files.locate(name)
    if copy is None:
        data = read_arrays(cached, sha256=DECODED[name])
        if data is not None:
            return data
        copy = _fetched(name)
    source = copy.fingerprint()
    data = read_arrays(cached, source=source, sha256=DECODED[name])
    if data is None:
        data = files.read(copy)
        write_arrays(cached, data, source=source)
    return data


def _fetched(name: str) -> Copy:
    """First use: fetch the files, or say what to do."""
    found = files.incomplete(name)
    try:
        download.fetch(name)
    except TacitError as error:
        where = f" ({found})" if found else ""
        raise type(error)(
            f"dataset {name} is not here{where}: run `tacit data get {name}`, or set TACIT_DATA to a folder with it. "
            f"Now {str(error).rstrip('.')}."
        ) from None
    copy = files.locate(name)
    assert copy is not None
    return copy
