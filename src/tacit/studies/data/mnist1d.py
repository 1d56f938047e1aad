"""MNIST-1D, made on this machine by the package of its authors, with its own seed."""

from __future__ import annotations

import random
from importlib.metadata import version
from typing import TYPE_CHECKING

from tacit.studies.data.facts import Data

if TYPE_CHECKING:
    import numpy as np


def standardise(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(x − mean) / standard deviation, both over every entry of the training inputs, in float64, then float32."""
    mean, deviation = train.mean(dtype="float64"), train.std(dtype="float64")
    return ((train - mean) / deviation).astype("float32"), ((test - mean) / deviation).astype("float32")


def make_mnist1d() -> Data:
    """4,000 training and 1,000 test signals of 40 samples, generated with the package's own seed."""
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


def recipe() -> str:
    """The generator's output may change with these two: each combination has a cache file of its own."""
    return f"{version('mnist1d')}-numpy{version('numpy')}"
