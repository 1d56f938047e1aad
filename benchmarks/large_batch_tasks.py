"""The tasks of `advice.py` and `edge.py`: data, model, batch sizes, and the small-batch rate of each optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

LABEL_NOISE = 0.15  # of the digits' training and validation labels: the share that is replaced by a random class


@dataclass(frozen=True)
class Arrays:
    """Training, validation and test examples; targets are class numbers."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """From batches of `batch_size` to batches of `new_batch_size`, for as many updates.

    `shift` is the regime of the paper: each training signal is moved in a circle by up to so many samples, anew for
    each minibatch, so the training loss stays finite. With 0 the network learns its examples by heart.
    """

    name: str
    sizes: tuple[int, ...]
    train_size: int
    batch_size: int
    new_batch_size: int
    updates: int
    rates: dict[str, float]  # tuned on pilot seeds
    shift: int = 0

    @property
    def factor(self) -> int:
        return self.new_batch_size // self.batch_size


TASKS = {
    "mnist1d": Task(
        "mnist1d", (40, 64, 64, 64, 10), 2048, 16, 256, 3200, {"sgd": 2**-3, "momentum": 2**-6, "adamw": 2**-8}
    ),
    "mnist1d-shift": Task(
        "mnist1d-shift",
        (40, 64, 64, 64, 10),
        2048,
        16,
        256,
        3200,
        {"sgd": 2**-3, "momentum": 2**-6, "adamw": 2**-8},
        shift=2,
    ),
    "mnist1d-wide": Task("mnist1d-wide", (40, 512, 512, 10), 2048, 16, 256, 1600, {"sgd": 2**-2}),
    "digits": Task("digits", (64, 64, 64, 10), 1024, 16, 512, 1600, {"sgd": 2**-5, "momentum": 2**-8, "adamw": 2**-10}),
    "fashion": Task(
        "fashion", (784, 128, 128, 10), 4096, 16, 256, 3200, {"sgd": 2**-4, "momentum": 2**-7, "adamw": 2**-10}
    ),
}


def load_task(task: Task) -> Arrays:
    """The task's arrays: training examples first, then as many for validation as the source has left."""
    if task.name.startswith("mnist1d"):
        from tacit.studies.data.load import load

        found = load("mnist1d_16k")
        return _split(task, found.train_inputs, found.train_targets, found.test_inputs, found.test_targets)
    if task.name.startswith("fashion"):
        from tacit.studies.data.load import load

        found, most = load("fashion_mnist"), 2 * task.train_size
        rows = [part.reshape(len(part), -1).astype("float32") / 255 for part in (found.train_inputs, found.test_inputs)]
        train, test = ((part - rows[0].mean()) / rows[0].std() for part in rows)
        return _split(task, train[:most], found.train_targets[:most], test, found.test_targets)
    return _digits(task)


def number_of(advice: dict[str, Any], name: str) -> float:
    """A number of a stored advice; in the rows of the first advices it stands together with its interval."""
    found = advice[name]
    return float(found["value"] if isinstance(found, dict) else found)


def _digits(task: Task) -> Arrays:
    """scikit-learn's 1,797 handwritten digits, shuffled once; 15 % of the labels that are trained on are random."""
    from sklearn.datasets import load_digits

    found, draws = load_digits(), np.random.default_rng(0)
    order = draws.permutation(len(found.data))
    inputs, targets = (found.data[order] / 8 - 1).astype("float32"), found.target[order].astype("int64")
    noisy = np.where(draws.random(len(targets)) < LABEL_NOISE, draws.integers(0, 10, len(targets)), targets)
    kept = task.train_size + 256  # 1,024 to train, 256 to validate, 517 clean ones to test
    return _split(task, inputs[:kept], noisy[:kept], inputs[kept:], targets[kept:])


def _split(task: Task, inputs: np.ndarray, targets: np.ndarray, test: np.ndarray, test_targets: np.ndarray) -> Arrays:
    n = task.train_size
    parts = (inputs[:n], targets[:n], inputs[n:], targets[n:], test, test_targets)
    a, b, c, d, e, f = (torch.from_numpy(part.copy()) for part in parts)
    return Arrays((a, b), (c, d), (e, f))
