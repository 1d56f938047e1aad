"""The paper's two models, a ReLU MLP and a Wide-ResNet without batch norm (SkipInit), and MNIST-1D's baseline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._util.errors import InputError
from tacit.studies.data.facts import Facts


def he_initialise(model: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """He initialisation in place: weights N(0, 2/fan_in), biases 0. SkipInit scalars are left at their own value."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            fan_in = module.weight[0].numel()
            with torch.no_grad():
                module.weight.normal_(0.0, (2.0 / fan_in) ** 0.5, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
    return model


def mlp(sizes: Sequence[int], generator: torch.Generator | None = None) -> nn.Sequential:
    """Linear layers of the given sizes with ReLU between them; the softmax belongs to the loss.

    The paper's Fashion-MNIST model is `mlp([784, 4096, 4096, 4096, 10])`                             (appendix D)

    >>> sum(parameter.numel() for parameter in mlp([784, 4096, 4096, 4096, 10]).parameters())
    36818954
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise InputError(f"sizes={list(sizes)}; expected at least two layer sizes, each positive.")
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    he_initialise(model, generator)
    return model


FIRST_KERNEL, KERNEL, STRIDE, PADDING = 5, 3, 2, 1  # of `conv1d`, as MNIST-1D's baseline has them


def conv1d(
    length: int, *, width: int = 25, depth: int = 3, classes: int = 10, generator: torch.Generator | None = None
) -> nn.Sequential:
    """`depth` convolutions of `width` channels that halve a signal each, with ReLU, and one linear layer on the rest.

    With 3 convolutions of 25 channels it is the baseline of MNIST-1D (Greydanus, 2020): kernels 5, 3, 3 and stride 2.

    >>> sum(parameter.numel() for parameter in conv1d(40).parameters())
    5210
    """
    layers: list[nn.Module] = [nn.Unflatten(1, (1, length))]
    channels, kernel = 1, FIRST_KERNEL
    for _ in range(depth):
        length = (length + 2 * PADDING - kernel) // STRIDE + 1
        if length < 1:
            raise InputError(
                f"depth={depth}; the signal is shorter than a kernel before the last convolution: use fewer."
            )
        layers += [nn.Conv1d(channels, width, kernel, stride=STRIDE, padding=PADDING), nn.ReLU()]
        channels, kernel = width, KERNEL
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * length, classes))
    he_initialise(model, generator)
    return model


def signal_length(facts: Facts) -> int:
    """Samples of one example; InputError when examples are no signals."""
    if len(facts.shape) != 1:
        raise InputError(
            f"model is conv1d and examples have shape {facts.shape}; expected signals: one axis of samples."
        )
    return facts.features


class SkipInitBlock(nn.Module):
    """x ↦ skip(x) + s · branch(x), with a learnable scalar s that starts at 0 (De & Smith, 2020).

    The branch is ReLU, 3x3 convolution, ReLU, 3x3 convolution, with biases and no batch norm. Where the shape changes
    the skip path is a 1x1 convolution of the activated input, as in the pre-activation Wide-ResNet.
    """

    def __init__(self, channels_in: int, channels_out: int, *, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        changes = stride != 1 or channels_in != channels_out
        self.projection = nn.Conv2d(channels_in, channels_out, 1, stride=stride) if changes else None
        self.scalar = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        active = F.relu(inputs)
        skip = inputs if self.projection is None else self.projection(active)
        return skip + self.scalar * self.second(F.relu(self.first(active)))


class WideResNet(nn.Module):
    """Wide-ResNet-`depth`-`width` with SkipInit: three groups of (depth−4)/6 blocks of 16k, 32k and 64k channels."""

    def __init__(self, depth: int, width: int, *, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6 or width < 1:
            raise InputError(f"depth={depth}, width={width}; expected depth = 6n + 4 with n >= 1 and width >= 1.")
        per_group = (depth - 4) // 6
        self.stem = nn.Conv2d(channels, 16, 3, padding=1)
        blocks: list[nn.Module] = []
        channels_in = 16
        for group, base in enumerate((16, 32, 64)):
            for position in range(per_group):
                stride = 2 if group > 0 and position == 0 else 1
                blocks.append(SkipInitBlock(channels_in, base * width, stride=stride))
                channels_in = base * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels_in, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.blocks(self.stem(images)))
        return self.head(features.mean(dim=(2, 3)))


def wide_resnet(
    depth: int = 10, width: int = 1, *, classes: int = 10, channels: int = 3, generator: torch.Generator | None = None
) -> WideResNet:
    """A He-initialised `WideResNet`; the paper uses 10-1 (section 2.3) and 16-4 (section 4).

    >>> sum(parameter.numel() for parameter in wide_resnet(10, 1).parameters())
    77709
    """
    model = WideResNet(depth, width, classes=classes, channels=channels)
    he_initialise(model, generator)
    return model
