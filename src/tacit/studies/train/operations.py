"""What a model costs, by counting: parameters, and multiply-adds of one forward pass on one example. Needs no torch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacit._util.own_code import is_own
from tacit.studies.data.datasets import FACTS

if TYPE_CHECKING:
    from tacit.studies.describe.spec import RunSpec


@dataclass(frozen=True)
class Count:
    """Of one model on one example of its dataset: `activations` are all numbers that a layer reads, and the logits."""

    parameters: int
    multiply_adds: int
    activations: int
    layers: int


# What a model or dataset of the user's own counts as before it has run: nothing is known of it without importing it.
NOMINAL = Count(parameters=100_000, multiply_adds=100_000, activations=20_000, layers=4)


def step_factor(run: RunSpec, penalized: float) -> float:
    """What an update costs beside a plain one, where one with the exact penalty on all rows costs `penalized`."""
    if run.sam_radius:
        return 1 + (run.sam_rows or run.batch_size) / run.batch_size
    if not (run.strength or run.relative):
        return 1.0
    if run.sampled:
        penalized = 1 + penalized * run.sampled * (run.micro_batch_size or 0) / run.batch_size
    return run.penalty_until * penalized + 1 - run.penalty_until


def expected_test_size(run: RunSpec) -> int:
    """Test examples of a run that judges on all; of an own dataset it is not known, and taken to be `train_size`."""
    return run.train_size if is_own(run.dataset) else FACTS[run.dataset].test_size


def count(run: RunSpec) -> Count:
    """The model of a run on its dataset, at the image size of the run."""
    if is_own(run.dataset) or is_own(run.model):
        return NOMINAL
    facts = FACTS[run.dataset]
    if run.model == "mlp":
        features = facts.features if run.image_size is None else facts.shape[0] * run.image_size**2
        return mlp([features, *[run.width] * run.depth, facts.classes])
    if run.model == "conv1d":
        return conv1d(facts.features, width=run.width, depth=run.depth, classes=facts.classes)
    channels, published, _ = facts.shape
    return wide_resnet(run.depth, run.width, size=run.image_size or published, channels=channels, classes=facts.classes)


def mlp(sizes: list[int]) -> Count:
    """Linear layers of these sizes with biases.

    >>> mlp([784, 4096, 4096, 4096, 10]).parameters
    36818954
    """
    weights = sum(a * b for a, b in itertools.pairwise(sizes))
    return Count(weights + sum(sizes[1:]), weights, sum(sizes), len(sizes) - 1)


def conv1d(length: int, *, width: int, depth: int, classes: int = 10) -> Count:
    """Convolutions with kernels 5, 3, 3, … and stride 2 on a signal, then a linear layer.

    >>> conv1d(40, width=25, depth=3).parameters
    5210
    """
    convolutions, channels = [], 1  # channels in, kernel, output length
    samples = length
    for kernel in (5, *[3] * (depth - 1)):
        length = (length + 2 - kernel) // 2 + 1
        convolutions.append((channels, kernel, length))
        channels = width
    head = mlp([width * length, classes])
    return Count(
        parameters=sum((a * k + 1) * width for a, k, _ in convolutions) + head.parameters,
        multiply_adds=sum(a * k * s * width for a, k, s in convolutions) + head.multiply_adds,
        activations=samples + sum(width * s for _, _, s in convolutions) + classes,
        layers=depth + 1,
    )


def wide_resnet(depth: int, width: int, *, size: int = 32, channels: int = 3, classes: int = 10) -> Count:
    """WRN-`depth`-`width` with SkipInit on square images; 1x1 projections where the shape changes.

    >>> wide_resnet(10, 1).parameters, wide_resnet(16, 4).parameters
    (77709, 2747536)
    """
    convolutions = [(channels, 16, 3, size)]  # channels in, channels out, kernel, output size
    scalars, channels_in = 0, 16
    for group, base in enumerate((16, 32, 64)):
        for block in range((depth - 4) // 6):
            strided = group > 0 and block == 0
            size = (size + 1) // 2 if strided else size
            channels_out = base * width
            convolutions += [(channels_in, channels_out, 3, size), (channels_out, channels_out, 3, size)]
            if strided or channels_in != channels_out:
                convolutions.append((channels_in, channels_out, 1, size))
            scalars, channels_in = scalars + 1, channels_out
    head = mlp([channels_in, classes])
    return Count(
        parameters=sum(a * b * k * k + b for a, b, k, _ in convolutions) + scalars + head.parameters,
        multiply_adds=sum(a * b * k * k * s * s for a, b, k, s in convolutions) + head.multiply_adds,
        activations=channels * convolutions[0][3] ** 2 + sum(b * s * s for _, b, _, s in convolutions) + classes,
        layers=len(convolutions) + 1,
    )
