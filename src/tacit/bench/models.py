"""The models whose step costs are measured, each with one minibatch of random data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit._util.errors import InputError
from tacit._util.random_generators import generator
from tacit.studies.train.models import mlp, wide_resnet

SEED = 0


@dataclass(frozen=True)
class Workload:
    """One model and one minibatch, ready to train on with cross-entropy.

    `micro_batch_size` is that of the penalty; a plain step sees the whole batch. `attention` says that the model calls
    fused attention, which has no second derivative: hand-written double backwards then need the MATH backend.
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    micro_batch_size: int | None = None
    momentum: float = 0.0
    attention: bool = False

    def to(self, device: torch.device) -> Workload:
        """The same on that device; the model is moved, not copied."""
        inputs, targets = self.inputs.to(device), self.targets.to(device)
        return replace(self, model=self.model.to(device), inputs=inputs, targets=targets)

    def loss(self) -> Tensor:
        return self.loss_on(self.inputs, self.targets)

    def loss_on(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of some examples: one target per row of logits, whatever axes come before the classes."""
        return F.cross_entropy(self.model(inputs).flatten(0, -2), targets.flatten())

    def micro_batches(self) -> list[tuple[Tensor, Tensor]]:
        """The pieces whose gradients are penalised: the whole batch unless there is a micro-batch size."""
        size = self.micro_batch_size or len(self.inputs)
        return list(zip(self.inputs.split(size), self.targets.split(size), strict=True))

    def twice_differentiable(self) -> AbstractContextManager[None]:
        """Inside, the model has second derivatives."""
        return sdpa_kernel(SDPBackend.MATH) if self.attention else nullcontext()


@dataclass(frozen=True)
class BenchModel:
    """A name, a sentence, how to make the workload, and the number of rounds, fixed before any is timed.

    `quick` ones run in `tacit bench --quick`.
    """

    name: str
    title: str
    batch_size: int
    make: Callable[[], Workload]
    memory_format: str = "contiguous"
    rounds: int = 21
    quick: bool = False


class CausalTransformer(nn.Module):
    """A language model as GPT-2 is built: pre-norm blocks, learned positions, fused causal attention, tied head."""

    def __init__(self, *, tokens: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(CausalBlock(width, heads) for _ in range(layers))
        self.last_norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            rows = block(rows)
        return F.linear(self.last_norm(rows), self.embedding.weight)


class CausalBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, rows: Tensor) -> Tensor:
        batch, length, width = rows.shape
        split = self.queries_keys_values(self.before_attention(rows))
        queries, keys, values = split.reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        rows = rows + self.mixed(seen.transpose(1, 2).reshape(batch, length, width))
        return rows + self.contract(F.gelu(self.expand(self.before_mlp(rows)), approximate="tanh"))


def _mlp_workload(width: int, batch_size: int, *, inputs: int = 784, hidden: int = 3) -> Workload:
    draws = generator(SEED, "probe")
    model = mlp([inputs, *[width] * hidden, 10], generator(SEED, "init"))
    return Workload(
        model,
        torch.randn(batch_size, inputs, generator=draws),
        torch.randint(10, (batch_size,), generator=draws),
    )


def _narrow_mlp(batch_size: int) -> Workload:
    return _mlp_workload(64, batch_size, inputs=40)


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


def _language_model_workload(batch_size: int, length: int) -> Workload:
    draws = generator(SEED, "probe")
    model = CausalTransformer(tokens=256, width=256, heads=4, layers=2, length=length)
    start = generator(SEED, "init")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02, generator=start)  # GPT-2's
    text = torch.randint(256, (batch_size, length + 1), generator=draws)
    return Workload(model, text[:, :-1], text[:, 1:], attention=True)


def _in_micro_batches(workload: Workload, size: int) -> Workload:
    return replace(workload, micro_batch_size=size)


BENCH_MODELS: dict[str, BenchModel] = {
    entry.name: entry
    for entry in (
        BenchModel(
            "mlp-4096-b16",
            "the paper's MLP 784-4096³-10, B=16",
            16,
            lambda: _mlp_workload(4096, 16),
            rounds=9,
            quick=True,
        ),
        BenchModel(
            "mlp-4096-b16-momentum",
            "the paper's MLP 784-4096³-10, B=16, momentum 0.9",
            16,
            lambda: replace(_mlp_workload(4096, 16), momentum=0.9),
            rounds=9,
        ),
        BenchModel("mlp-4096-b64", "the paper's MLP 784-4096³-10, B=64", 64, lambda: _mlp_workload(4096, 64), rounds=9),
        BenchModel(
            "mlp-1024-b16", "MLP 784-1024³-10, B=16", 16, lambda: _mlp_workload(1024, 16), rounds=45, quick=True
        ),
        BenchModel("mlp-256-b16", "MLP 784-256³-10, B=16", 16, lambda: _mlp_workload(256, 16), rounds=45),
        BenchModel("mlp-64-b256", "MLP 40-64³-10, B=256", 256, lambda: _narrow_mlp(256), rounds=201, quick=True),
        BenchModel(
            "mlp-64-b256-micro16",
            "MLP 40-64³-10, B=256 in micro-batches of 16",
            256,
            lambda: _in_micro_batches(_narrow_mlp(256), 16),
            rounds=101,
        ),
        BenchModel(
            "mlp-512-b512-micro16",
            "MLP 784-512²-10, B=512 in micro-batches of 16",
            512,
            lambda: _in_micro_batches(_mlp_workload(512, 512, hidden=2), 16),
            rounds=15,
            quick=True,
        ),
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
            "wrn-10-1-b128-micro32",
            "WRN-10-1 SkipInit, B=128 in micro-batches of 32",
            128,
            lambda: _in_micro_batches(_wide_resnet_workload(128, torch.channels_last), 32),
            memory_format="channels_last",
            rounds=9,
        ),
        BenchModel(
            "gpt2-256-b8",
            "GPT-2 with 2 layers, width 256, 64 tokens, B=8",
            8,
            lambda: _language_model_workload(8, 64),
            quick=True,
        ),
    )
}


def choose(names: list[str], *, quick: bool) -> list[BenchModel]:
    """The named models, or all of them (the quick ones with `quick`), in the order of the table."""
    unknown = [name for name in names if name not in BENCH_MODELS]
    if unknown:
        raise InputError(f"model {unknown[0]!r} is unknown; use one of {', '.join(BENCH_MODELS)}.")
    return [entry for entry in BENCH_MODELS.values() if (entry.name in names if names else entry.quick or not quick)]
