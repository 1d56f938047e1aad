"""Convolutions on signals as matrix products, so that a fleet of them trains by the algebra of `batched_mlp`.

The windows of a signal, one row each, times a weight (channels in · kernel, channels out) are a convolution, and the
windows are a linear function of the signal: a `Link` of `batched_mlp.Layers`. Signals are (runs, B, length, channels),
so that a row of a product is the channels at one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._util.random_generators import generator
from tacit.studies.train.batched_mlp import Layers, Link
from tacit.studies.train.models import PADDING, STRIDE, conv1d


@dataclass(frozen=True)
class Windows(Link):
    """Rows (runs, B · length, channels) to the windows of every signal, (runs, B · places, channels · kernel)."""

    length: int
    channels: int
    kernel: int

    @property
    def places(self) -> int:
        return (self.length + 2 * PADDING - self.kernel) // STRIDE + 1

    def forward(self, rows: Tensor) -> Tensor:
        signals = rows.reshape(len(rows), -1, self.length, self.channels)
        padded = F.pad(signals, (0, 0, PADDING, PADDING))
        windows = padded.unfold(2, self.kernel, STRIDE)  # (runs, B, places, channels, kernel)
        return windows.reshape(len(rows), -1, self.channels * self.kernel)

    def transposed(self, windows: Tensor) -> Tensor:
        parts = windows.view(len(windows), -1, self.places, self.channels, self.kernel)
        examples = parts.shape[1]
        padded = parts.new_zeros(len(windows), examples, self.length + 2 * PADDING, self.channels)
        for tap in range(self.kernel):
            padded[:, :, tap : tap + STRIDE * self.places : STRIDE] += parts[..., tap]
        return padded[:, :, PADDING : PADDING + self.length].reshape(len(windows), -1, self.channels)


@dataclass(frozen=True)
class Flatten(Link):
    """Rows (runs, B · length, channels) to one row per signal, (runs, B, length · channels)."""

    length: int

    def forward(self, rows: Tensor) -> Tensor:
        return rows.reshape(len(rows), -1, self.length * rows.shape[2])

    def transposed(self, flat: Tensor) -> Tensor:
        return flat.reshape(len(flat), flat.shape[1] * self.length, -1)


def links(model: nn.Sequential, length: int) -> list[Link]:
    """What stands before each layer of a `conv1d` model: windows before convolutions, flattening before the last."""
    found: list[Link] = []
    for module in model:
        if isinstance(module, nn.Conv1d):
            found.append(Windows(length, module.in_channels, module.kernel_size[0]))
            length = found[-1].places  # type: ignore[attr-defined]
    return [*found, Flatten(length)]


def initialise(
    length: int, *, width: int, depth: int, classes: int, seeds: Sequence[int], dtype: torch.dtype = torch.float32
) -> Layers:
    """Run r starts where the plain model of its seed starts: `conv1d(length, …, generator(seed, "init"))`."""
    models = [conv1d(length, width=width, depth=depth, classes=classes, generator=generator(s, "init")) for s in seeds]
    between = links(models[0], length)
    last = between[-1]
    assert isinstance(last, Flatten)

    def weight(module: nn.Module) -> Tensor:
        assert isinstance(module, nn.Conv1d | nn.Linear)
        if isinstance(module, nn.Conv1d):
            return module.weight.detach().flatten(1).T  # (channels in · kernel, channels out)
        # The model flattens (channels, length), the fleet (length, channels).
        return module.weight.detach().view(classes, -1, last.length).mT.reshape(classes, -1).T

    layers = [[module for module in model if isinstance(module, nn.Conv1d | nn.Linear)] for model in models]
    weights = [
        torch.stack([weight(each) for each in same]).to(dtype).contiguous() for same in zip(*layers, strict=True)
    ]
    biases = [torch.stack([each.bias.detach()[None] for each in same]).to(dtype) for same in zip(*layers, strict=True)]
    return Layers(weights, biases, between)


def weights(layers: Layers, number: int) -> dict[str, Tensor]:
    """The parameters of one run by their names in the plain `conv1d`, which reshapes first and flattens at the end."""
    named: dict[str, Tensor] = {}
    for at, (link, stored, bias) in enumerate(zip(layers.links, layers.weights, layers.biases, strict=True)):
        weight = stored[number].T
        if isinstance(link, Windows):
            name, weight = f"{2 * at + 1}", weight.reshape(len(weight), link.channels, link.kernel)
        else:
            assert isinstance(link, Flatten)
            name, weight = f"{2 * at + 2}", weight.reshape(len(weight), link.length, -1).mT.reshape(len(weight), -1)
        named |= {f"{name}.weight": weight, f"{name}.bias": bias[number, 0]}
    return named
