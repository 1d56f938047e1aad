"""What is known about a dataset before a file is read, where it can be had, and the arrays that it gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

ARRAYS = ("train_inputs", "train_targets", "test_inputs", "test_targets")


@dataclass(frozen=True)
class Data:
    """Inputs and int64 class numbers. Signals are float32 rows, standardised; images uint8 (N, C, H, W), as stored."""

    train_inputs: np.ndarray
    train_targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in ARRAYS}


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

        >>> Facts((3, 32, 32), 10, 50_000, 10_000).features
        3072
        """
        return math.prod(self.shape)


@dataclass(frozen=True)
class Dataset:
    """A dataset that comes with tacit: published, or made on this machine when it has no `urls`.

    `decode` gets the paths of one layout and may raise whatever reading raises: a copy is right when its decoded arrays
    have the published SHA-256, however its files are packed.
    """

    name: str
    facts: Facts
    decode: Callable[[Sequence[Path]], Data]
    arrays_sha256: str = ""  # of `Data.arrays`; none for a made one, whose last bits depend on `made_by`
    made_by: tuple[str, ...] = ()  # packages: each combination of their versions has a cache file of its own
    urls: tuple[str, ...] = ()  # folders with the files of the first layout: the authors', then mirrors
    size: int = 0  # bytes to fetch
    folders: tuple[str, ...] = ()  # below a folder of datasets; the first one is ours
    layouts: tuple[tuple[str, ...], ...] = ()  # files in one of those folders that together are the dataset
    homepage: str = ""
    terms: str = ""
