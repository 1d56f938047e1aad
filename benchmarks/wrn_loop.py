"""WRN-10-1 on CIFAR-10 at B=32: the loop of a study beside the loop everyone writes, and what data costs in it.

    python benchmarks/wrn_loop.py --json benchmarks/results/wrn_loop.json
    python benchmarks/wrn_loop.py --quick

The other loop is a Dataset of uint8 images with the usual transforms, image by image (pad by 4, random crop, random
flip, to float, normalise), a shuffling DataLoader without and with worker processes, and `torch.optim.SGD` with weight
decay. Ours is `tacit.studies.train.training.Training`, evaluations left out. All run in turns of several minibatches in
one process with the same number of threads; each turn runs twice and the second run counts, so a loader's workers have
nothing prepared from the turns between. Ratios are medians over rounds of times in the same round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import tacit
from tacit._provenance import provenance
from tacit._random import generator
from tacit.studies.data.cifar10 import CIFAR10
from tacit.studies.data.facts import Data
from tacit.studies.data.load import load
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train.models import wide_resnet
from tacit.studies.train.packing import Fleet
from tacit.studies.train.training import Training

BATCH_SIZE, DECAY, RATE, STRENGTH = 32, 5e-4, 2**-12, 2**-6
TRAIN_SIZE = 4096
FACTS = CIFAR10.facts
Turn = Callable[[], None]


def cifar10() -> tuple[Data, str]:
    try:
        return load("cifar10"), "CIFAR-10"
    except tacit.InputError as error:
        draws = np.random.default_rng(0)
        arrays = [
            made
            for count in (TRAIN_SIZE, 100)
            for made in (draws.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), draws.integers(0, 10, count))
        ]
        return Data(*arrays), f"random bytes: {error}"


# -- the loop everyone writes ---------------------------------------------------------------------------------------
class RandomCrop:
    def __init__(self, size: int, padding: int) -> None:
        self.size, self.padding = size, padding

    def __call__(self, image: np.ndarray) -> np.ndarray:
        pad = self.padding
        padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
        top, left = random.randint(0, 2 * pad), random.randint(0, 2 * pad)
        return padded[top : top + self.size, left : left + self.size]


class RandomHorizontalFlip:
    def __call__(self, image: np.ndarray) -> np.ndarray:
        return image[:, ::-1] if random.random() < 0.5 else image


class ToTensor:
    def __call__(self, image: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float().div(255)


class Normalize:
    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        self.mean, self.deviation = torch.tensor(mean).view(3, 1, 1), torch.tensor(deviation).view(3, 1, 1)

    def __call__(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.deviation


class Pictures(Dataset[tuple[Tensor, int]]):
    def __init__(self, data: Data) -> None:
        self.images = np.ascontiguousarray(data.train_inputs[:TRAIN_SIZE].transpose(0, 2, 3, 1))
        self.labels = data.train_targets[:TRAIN_SIZE]
        crop, normalise = RandomCrop(32, 4), Normalize(FACTS.mean, FACTS.deviation)
        self.transforms: list[Callable[[Any], Any]] = [crop, RandomHorizontalFlip(), ToTensor(), normalise]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        for transform in self.transforms:
            image = transform(image)
        return image, int(self.labels[index])


def loader_loop(data: Data, *, workers: int, minibatches: int, channels_last: bool = False) -> Turn:
    model = wide_resnet(10, 1, generator=generator(0, "init"))
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, weight_decay=DECAY)
    loader = DataLoader(
        Pictures(data), BATCH_SIZE, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
    )

    def forever() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from loader

    batches = forever()

    def turn() -> None:
        for images, labels in itertools.islice(batches, minibatches):
            optimizer.zero_grad()
            F.cross_entropy(model(images.to(memory_format=layout)), labels).backward()
            optimizer.step()

    return turn


# -- ours -----------------------------------------------------------------------------------------------------------
def training(data: Data, *, strength: float) -> Training:
    run = RunSpec(
        dataset="cifar10", model="wide_resnet", depth=10, width=1, augmentation="crop_flip", weight_decay=DECAY,
        learning_rate=RATE, strength=strength, batch_size=BATCH_SIZE, train_size=TRAIN_SIZE, test_size=100,
        epochs=1_000_000, evaluations=1,
    )  # fmt: skip
    return Training(Fleet((run,)), data)


def our_loop(data: Data, *, strength: float, minibatches: int) -> Turn:
    trained = training(data, strength=strength)
    return lambda: trained.advance(until=trained.position + minibatches)


def our_data(data: Data, *, minibatches: int) -> Turn:
    """Gathering, cropping, flipping and standardising alone, for the next minibatches of the same run."""
    trained, positions = training(data, strength=0.0), itertools.count()

    def turn() -> None:
        for position in itertools.islice(positions, minibatches):
            trained._batch(position)

    return turn


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few and short rounds: to see that it works")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    minibatches, rounds = (2, 2) if options.quick else (16, 15)
    data, what = cifar10()
    turns = {
        "DataLoader": loader_loop(data, workers=0, minibatches=minibatches),
        "DataLoader, channels last": loader_loop(data, workers=0, minibatches=minibatches, channels_last=True),
        "DataLoader, 2 workers": loader_loop(data, workers=2, minibatches=minibatches),
        "ours": our_loop(data, strength=0.0, minibatches=minibatches),
        "ours, penalised": our_loop(data, strength=STRENGTH, minibatches=minibatches),
        "data and augmentation of ours": our_data(data, minibatches=minibatches),
    }
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, turn in turns.items():
            turn()
            begun = time.perf_counter()
            turn()
            seconds[name].append((time.perf_counter() - begun) / minibatches)
    rows = [
        {
            "loop": name,
            "milliseconds_per_step": 1e3 * statistics.median(taken),
            "times_ours": statistics.median(a / b for a, b in zip(taken, seconds["ours"], strict=True)),
        }
        for name, taken in seconds.items()
    ]
    for row in rows:
        print(f"{row['loop']:32} {row['milliseconds_per_step']:8.2f} ms a step   {row['times_ours']:.3f} times ours")
    result = {
        "model": "WRN-10-1", "images": what, "batch_size": BATCH_SIZE, "threads": options.threads, "rounds": rounds,
        "minibatches_per_turn": minibatches, "rows": rows,
        "share_of_data_and_augmentation": next(row["times_ours"] for row in rows if row["loop"].startswith("data")),
        **provenance(),
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
