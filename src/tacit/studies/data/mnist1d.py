"""MNIST-1D, made on this machine by the package of its authors, with its own seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.studies.data.facts import Data, Dataset, Facts

if TYPE_CHECKING:
    import numpy as np


def standardise(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(x − mean) / standard deviation, both over every entry of the training inputs, in float64, then float32."""
    mean, deviation = train.mean(dtype="float64"), train.std(dtype="float64")
    return ((train - mean) / deviation).astype("float32"), ((test - mean) / deviation).astype("float32")


def make_mnist1d(_: Sequence[Path] = ()) -> Data:
    """The published split: 4,000 training and 1,000 test signals of 40 samples, made with the generator's own seed."""
    made = _generate()
    train, test = standardise(made["x"], made["x_test"])
    return Data(train, made["y"].astype("int64"), test, made["y_test"].astype("int64"))


def make_mnist1d_16k(_: Sequence[Path] = ()) -> Data:
    """The published training signals, and 16,000 test signals of the same templates and another seed.

    1,000 test signals at 50 % accuracy have a binomial deviation of 1.6 points, as large as what a study looks for;
    16,000 have 0.4. The generator gives each set mean 0 and deviation 1 by itself.
    """
    made, more = _generate(), _generate(seed=43, num_samples=16_000, train_split=0.0)
    train, test = standardise(made["x"], more["x_test"])
    return Data(train, made["y"].astype("int64"), test, more["y_test"].astype("int64"))


def _generate(**changed: float) -> dict[str, np.ndarray]:
    """The generator's arrays; its arguments are its own defaults (seed 42, 5,000 signals) but for those `changed`."""
    import numpy as np
    from mnist1d.data import get_dataset_args, make_dataset

    arguments = get_dataset_args()
    for name, value in changed.items():
        setattr(arguments, name, value)
    numpy_state, python_state = np.random.get_state(), random.getstate()  # make_dataset seeds both global generators
    try:
        return make_dataset(arguments)
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


MNIST1D = Dataset("mnist1d", Facts((40,), 10, 4000, 1000), make_mnist1d, made_by=("mnist1d", "numpy"))
MNIST1D_16K = Dataset("mnist1d_16k", Facts((40,), 10, 4000, 16_000), make_mnist1d_16k, made_by=("mnist1d", "numpy"))
