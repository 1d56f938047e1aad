"""What is known about each dataset before a file is read: shape, classes, sizes, standardisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np


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
    "mnist1d": Facts((40,), 10, 4000, 1000),  # the published split
    "mnist1d_16k": Facts((40,), 10, 4000, 16_000),  # the same training signals, test signals of another seed
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


def facts_of(dataset: str, data: Data) -> Facts:
    """The table's facts, or for a dataset of the user's own those of its arrays, which are used as they are."""
    if dataset in DATASETS:
        return DATASETS[dataset]
    classes = 1 + int(max(data.train_targets.max(), data.test_targets.max()))
    return Facts(data.train_inputs.shape[1:], classes, len(data.train_inputs), len(data.test_inputs))


PUBLISHED = ("fashion_mnist", "cifar10")  # read from files; the others are made


@dataclass(frozen=True)
class Data:
    """Inputs and int64 class numbers. Signals are float32 rows, standardised; images uint8 (N, C, H, W), as stored."""

    train_inputs: np.ndarray
    train_targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray


ARRAYS = ("train_inputs", "train_targets", "test_inputs", "test_targets")
