"""Layers of torch.nn as small models."""

from __future__ import annotations

from collections.abc import Callable

import torch
from entry import Case, Entry, images, numbers, seeded, whole_numbers
from torch import Tensor, nn
from torch.nn import functional as F


class Sequence(nn.Module):
    """A module on sequences, the mean over positions, ten classes."""

    def __init__(self, inside: nn.Module, width: int, run: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.enter, self.inside, self.head = nn.Linear(6, width), inside, nn.Linear(width, 10)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.run(self.inside, self.enter(x)).mean(1))


def sequence(make: Callable[[], nn.Module], width: int, run: Callable[[nn.Module, Tensor], Tensor]) -> Case:
    model = seeded(lambda: Sequence(make(), width, run))
    targets = whole_numbers(10, 4)
    return Case(model, lambda x: F.cross_entropy(model(x), targets), (numbers(4, 5, 6),))


def through_cell(cell: nn.Module, x: Tensor) -> Tensor:
    """A recurrent cell in a Python loop over the positions."""
    state = torch.zeros(x.shape[0], cell.hidden_size, dtype=x.dtype)
    memory, seen = torch.zeros_like(state), []
    for position in x.unbind(1):
        if isinstance(cell, nn.LSTMCell):
            state, memory = cell(position, (state, memory))
        else:
            state = cell(position, state)
        seen.append(state)
    return torch.stack(seen, 1)


def encoder(dropout: float, **settings: object) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True, **settings)  # type: ignore[arg-type]
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x.flip(1))


class Bag(nn.Module):
    """`nn.EmbeddingBag` with a mean over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(20, 8, mode="mean"), nn.Linear(8, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.bag(tokens)))


def bag() -> Case:
    model, tokens, targets = seeded(Bag), whole_numbers(20, 4, 5, seed=3), whole_numbers(10, 4)
    return Case(model, lambda: F.cross_entropy(model(tokens), targets))


def convolutions(middle: Callable[[], list[nn.Module]]) -> Case:
    return images(lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), *middle(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    ))  # fmt: skip


def wide_mlp() -> nn.Module:
    """Wide enough that `auto` takes `gram`."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def _entry(name: str, make: Callable[[], Case]) -> Entry:
    return Entry(name, "torch.nn", make)


ENTRIES = [
    _entry("MLP 192-512²-10", lambda: images(wide_mlp, size=8)),
    _entry("Conv2d + BatchNorm2d", lambda: convolutions(lambda: [nn.BatchNorm2d(8), nn.ReLU(inplace=True)])),
    _entry("Conv2d + GroupNorm + Hardswish", lambda: convolutions(lambda: [nn.GroupNorm(2, 8), nn.Hardswish()])),
    _entry("Conv2d + InstanceNorm2d", lambda: convolutions(lambda: [nn.InstanceNorm2d(8, affine=True), nn.ELU()])),
    _entry("MultiheadAttention", lambda: sequence(
        lambda: nn.MultiheadAttention(16, 2, batch_first=True), 16, lambda m, x: m(x, x, x, need_weights=False)[0])),
    _entry("MultiheadAttention, wide", lambda: sequence(
        lambda: nn.MultiheadAttention(512, 4, batch_first=True), 512, lambda m, x: m(x, x, x, need_weights=False)[0])),
    _entry("TransformerEncoder", lambda: sequence(lambda: encoder(0.0), 16, lambda m, x: m(x))),
    _entry("TransformerEncoder with dropout, pre-norm", lambda: sequence(
        lambda: encoder(0.1, norm_first=True, activation="gelu"), 16, lambda m, x: m(x))),
    _entry("TransformerDecoderLayer", lambda: sequence(Decoder, 16, lambda m, x: m(x))),
    _entry("RNN", lambda: sequence(lambda: nn.RNN(16, 16, batch_first=True), 16, lambda m, x: m(x)[0])),
    _entry("LSTM, 2 layers, dropout", lambda: sequence(
        lambda: nn.LSTM(16, 16, 2, dropout=0.2, batch_first=True), 16, lambda m, x: m(x)[0])),
    _entry("GRU, both directions", lambda: sequence(
        lambda: nn.GRU(16, 8, bidirectional=True, batch_first=True), 16, lambda m, x: m(x)[0])),
    _entry("RNNCell", lambda: sequence(lambda: nn.RNNCell(16, 16), 16, through_cell)),
    _entry("LSTMCell", lambda: sequence(lambda: nn.LSTMCell(16, 16), 16, through_cell)),
    _entry("GRUCell", lambda: sequence(lambda: nn.GRUCell(16, 16), 16, through_cell)),
    _entry("EmbeddingBag", bag),
]  # fmt: skip
