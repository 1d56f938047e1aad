"""The models whose step costs are measured, each with one minibatch of random data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._errors import InputError
from tacit._random import generator
from tacit.studies.train.models import he_initialise, mlp, wide_resnet

SEED = 0


@dataclass(frozen=True)
class Workload:
    """One model and one minibatch, ready to train on with cross-entropy."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor

    def loss(self) -> Tensor:
        return F.cross_entropy(self.model(self.inputs), self.targets)


@dataclass(frozen=True)
class BenchModel:
    """A name, a sentence, and how to make the workload; `quick` ones run in `tacit bench --quick`."""

    name: str
    title: str
    batch_size: int
    make: Callable[[], Workload]
    memory_format: str = "contiguous"
    quick: bool = False


class TransformerClassifier(nn.Module):
    """Tokens, one pre-norm transformer block with attention written out as matrix products, the mean, ten classes.

    The products are written out because fused attention has no second derivative.
    """

    def __init__(self, *, tokens: int = 256, width: int = 128, heads: int = 4, length: int = 32) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 10)

    def attend(self, rows: Tensor) -> Tensor:
        batch, length, width = rows.shape
        split = self.queries_keys_values(rows).reshape(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        weights = (queries @ keys.mT / (width // self.heads) ** 0.5).softmax(-1)
        return self.mixed((weights @ values).transpose(1, 2).reshape(batch, length, width))

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.embedding(tokens) + self.position
        rows = rows + self.attend(self.before_attention(rows))
        rows = rows + self.contract(F.gelu(self.expand(self.before_mlp(rows))))
        return self.head(rows.mean(1))


def _mlp_workload(width: int, batch_size: int, *, inputs: int = 784, hidden: int = 3) -> Workload:
    draws = generator(SEED, "probe")
    model = mlp([inputs, *[width] * hidden, 10], generator(SEED, "init"))
    return Workload(
        model,
        torch.randn(batch_size, inputs, generator=draws),
        torch.randint(10, (batch_size,), generator=draws),
    )


def _wide_resnet_workload(batch_size: int, memory_format: torch.memory_format) -> Workload:
    draws = generator(SEED, "probe")
    model = wide_resnet(10, 1, generator=generator(SEED, "init"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("scalar"):
                parameter.fill_(0.2)  # at their initial 0 the branches have no gradient: no error to be seen
    images = torch.randn(batch_size, 3, 32, 32, generator=draws)
    return Workload(
        model.to(memory_format=memory_format),  # type: ignore[call-overload]
        images.to(memory_format=memory_format),
        torch.randint(10, (batch_size,), generator=draws),
    )


def _transformer_workload(batch_size: int, length: int) -> Workload:
    draws = generator(SEED, "probe")
    model = TransformerClassifier(length=length)
    he_initialise(model, generator(SEED, "init"))
    with torch.no_grad():
        model.embedding.weight.normal_(0.0, 1.0, generator=generator(SEED, "init", 1))
    return Workload(
        model,
        torch.randint(256, (batch_size, length), generator=draws),
        torch.randint(10, (batch_size,), generator=draws),
    )


BENCH_MODELS: dict[str, BenchModel] = {
    entry.name: entry
    for entry in (
        BenchModel(
            "mlp-4096-b16", "the paper's MLP 784-4096³-10, B=16", 16, lambda: _mlp_workload(4096, 16), quick=True
        ),
        BenchModel("mlp-4096-b64", "the paper's MLP 784-4096³-10, B=64", 64, lambda: _mlp_workload(4096, 64)),
        BenchModel("mlp-1024-b16", "MLP 784-1024³-10, B=16", 16, lambda: _mlp_workload(1024, 16), quick=True),
        BenchModel("mlp-256-b16", "MLP 784-256³-10, B=16", 16, lambda: _mlp_workload(256, 16)),
        BenchModel(
            "wrn-10-1-b32",
            "WRN-10-1 SkipInit, B=32, contiguous",
            32,
            lambda: _wide_resnet_workload(32, torch.contiguous_format),
        ),
        BenchModel(
            "wrn-10-1-b32-channels-last",
            "WRN-10-1 SkipInit, B=32, channels-last",
            32,
            lambda: _wide_resnet_workload(32, torch.channels_last),
            memory_format="channels_last",
            quick=True,
        ),
        BenchModel(
            "transformer-b16",
            "transformer block, width 128, 32 tokens, B=16",
            16,
            lambda: _transformer_workload(16, 32),
        ),
    )
}


def choose(names: list[str], *, quick: bool) -> list[BenchModel]:
    """The named models, or all of them (the quick ones with `quick`), in the order of the table."""
    unknown = [name for name in names if name not in BENCH_MODELS]
    if unknown:
        raise InputError(f"model {unknown[0]!r} is unknown; use one of {', '.join(BENCH_MODELS)}.")
    return [entry for entry in BENCH_MODELS.values() if (entry.name in names if names else entry.quick or not quick)]
