"""The table of problems that every penalty method must pass: small models with everything that real ones have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit.studies.train.models import SkipInitBlock, mlp


@dataclass(frozen=True)
class Case:
    """`make(dtype)` builds the model; `loss(model)` is a mean loss on fixed data in the model's own dtype."""

    name: str
    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module], Tensor]


def numbers(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def labels(count: int, classes: int, seed: int) -> Tensor:
    return torch.randint(0, classes, (count,), generator=torch.Generator().manual_seed(seed))


def spread(model: nn.Module, seed: int = 3) -> nn.Module:
    """Generic parameter values: nothing is zero, so nothing hides."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            fan_in = max(1, parameter[0].numel()) if parameter.dim() else 1
            noise = torch.randn(parameter.shape, generator=generator) / fan_in**0.5
            parameter.copy_(noise if parameter.dim() > 1 else 0.5 + 0.3 * noise)
    return model


def classification(shape: tuple[int, ...], classes: int = 3, count: int = 6) -> Callable[[nn.Module], Tensor]:
    inputs, targets = numbers(count, *shape, seed=1), labels(count, classes, 2)

    def loss(model: nn.Module) -> Tensor:
        like = next(model.parameters())
        return F.cross_entropy(model(inputs.to(like)), targets.to(like.device))

    return loss


def tokens(count: int = 5, length: int = 4, vocabulary: int = 7) -> Callable[[nn.Module], Tensor]:
    indices = torch.randint(0, vocabulary, (count, length), generator=torch.Generator().manual_seed(4))
    targets = labels(count * length, vocabulary, 5)

    def loss(model: nn.Module) -> Tensor:
        device = next(model.parameters()).device
        return F.cross_entropy(model(indices.to(device)).reshape(count * length, -1), targets.to(device))

    return loss


class ConvolutionNet(nn.Module):
    """Strides, groups, dilation, a 1-d convolution, an in-place ReLU and a Linear on positions (3-d input)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2, bias=False)
        self.along = nn.Conv1d(4, 3, 3, padding=1)
        self.head = nn.Linear(3, 3)

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.first(images), inplace=True)
        features = torch.tanh(self.second(features)).flatten(2)
        return self.head(torch.tanh(self.along(features)).transpose(1, 2)).mean(1)


class SkipInitNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = SkipInitBlock(2, 3, stride=2)
        self.head = nn.Linear(3, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(F.relu(self.block(images)).mean(dim=(2, 3)))


class TransformerBlock(nn.Module):
    """Pre-norm attention and feed-forward with learned positions (a bare parameter), softmax written out."""

    def __init__(self, width: int = 4, vocabulary: int = 7, length: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, indices: Tensor) -> Tensor:
        x = self.embed(indices) + self.positions
        query, key, value = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        attention = torch.softmax(query @ key.transpose(1, 2) / query.shape[-1] ** 0.5, dim=-1)
        x = x + self.out(attention @ value)
        return self.head(x + self.feed(self.norm_2(x)))


class EmbeddingNet(nn.Module):
    """Repeated indices, a padding index (untied only), and an in-place change of the looked-up rows.

    Tied with a padding index the gradient is cut in one of the weight's two uses, so it is not the gradient of any
    loss, and methods that differentiate ‖g‖² and methods that differentiate g along g rightly differ.
    """

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4, padding_idx=None if tied else 2)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, indices: Tensor) -> Tensor:
        x = self.embed(indices)
        x += 0.1
        return self.head(torch.tanh(self.middle(x)))


class Twice(nn.Module):
    """A layer used twice; a weight used through its layer and by hand; a parameter that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.leave = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        x = torch.tanh(self.again(torch.tanh(self.again(torch.tanh(self.enter(inputs))))))
        return self.leave(x) + 0.3 * torch.sin(x @ self.leave.weight.T)


class Square(torch.autograd.Function):
    """A custom function that takes a weight out of sight of torch functions."""

    @staticmethod
    def forward(weight):
        return weight.square().sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, upstream):
        return 2 * upstream * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, tangent):
        return 2 * (ctx.saved_tensors[0] * tangent).sum()


class HiddenUse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.leave(torch.tanh(self.enter(inputs))) * (1 + 0.1 * Square.apply(self.enter.weight))


def batch_norm_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3))


def group_norm_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))


def wide_net() -> nn.Module:
    """Layers wide enough for the Gram form at six rows, smooth."""
    return nn.Sequential(nn.Linear(12, 14), nn.Tanh(), nn.Linear(14, 13), nn.Tanh(), nn.Linear(13, 3))


CASES = [
    Case("mlp", lambda: spread(mlp([5, 12, 12, 3])), classification((5,))),
    Case("wide", lambda: spread(wide_net()), classification((12,), count=4)),
    Case("convolution", lambda: spread(ConvolutionNet()), classification((2, 4, 4), count=4)),
    Case("skipinit", lambda: spread(SkipInitNet()), classification((2, 4, 4), count=4)),
    Case("transformer", lambda: spread(TransformerBlock()), tokens(count=2)),
    Case("embedding", lambda: spread(EmbeddingNet(tied=False)), tokens()),
    Case("tied_weights", lambda: spread(EmbeddingNet(tied=True)), tokens()),
    Case("used_twice", lambda: spread(Twice()), classification((3,))),
    Case("hidden_use", lambda: spread(HiddenUse()), classification((3,))),
    Case("batch_norm", lambda: spread(batch_norm_net()), classification((3,))),
    Case("group_norm", lambda: spread(group_norm_net()), classification((2, 4, 4), count=4)),
    Case("dropout", lambda: spread(dropout_net()), classification((3,))),
]
