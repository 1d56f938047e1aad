"""What a penalised step can meet: a random network, its data, its loss, and what is excluded, frozen or outside."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, fields

import random_layers
import random_operations
import torch
from hypothesis import strategies as st
from random_networks import OPS, Network, Op
from torch import Tensor, nn
from torch.nn import functional as F

Closure = Callable[..., Tensor]
LOSSES = ("cross_entropy", "mean_square", "weighted", "ignored", "logits_of_all_pairs", "log_of_mean", "sum_over_count")


@dataclass(frozen=True)
class Scenario:
    """Everything that decides one case; `repr` shows what differs from the defaults, as code that makes it again."""

    ops: tuple[Op, ...] = ()
    inputs: str = "vectors"  # "vectors" (B, 3), "sequences" (B, 3, 4), "tokens" (B, 3), "images" (B, 2, 4, 4)
    batch: int = 4
    loss: str = "cross_entropy"
    strength: float = 0.5
    seed: int = 0
    exclude: tuple[int, ...] = ()  # numbers of parameters left out of the norm, counted modulo their number
    frozen: tuple[int, ...] = ()
    input_gradient: bool = False  # the inputs require a gradient
    encoder: bool = False  # a trainable layer outside of the model runs before it
    training: bool = True
    two_views: bool = False
    micro_batches: int = 1
    sampled: int | None = None  # so many of the micro-batches carry the penalty
    calls: int = 1  # accumulated, each with weight 1/calls
    channels_last: bool = False
    dtype: str = "float64"  # or "float32", or "autocast": a float32 model under bfloat16 autocast

    def __repr__(self) -> str:
        changed = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Scenario({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"

    @property
    def pieces(self) -> int:
        """How many micro-batches of a call carry the penalty."""
        return self.micro_batches if self.sampled is None else self.sampled


@dataclass
class Setup:
    """A scenario as objects: `batches[call]` are the tensors of one call, `closure(*batch)` its loss."""

    scenario: Scenario
    model: Network
    encoder: nn.Module | None
    batches: list[tuple[Tensor, ...]]
    others: list[tuple[Tensor, ...]]  # the second view of each call
    exclude: tuple[str, ...] = ()

    def closure(self, inputs: Tensor, targets: Tensor) -> Tensor:
        s = self.scenario
        half = torch.autocast("cpu", torch.bfloat16) if s.dtype == "autocast" else contextlib.nullcontext()
        with half:
            if self.encoder is not None:
                inputs = torch.tanh(self.encoder(inputs))
            outputs = self.model(inputs)
        return loss_of(s.loss, outputs.float() if s.dtype == "autocast" else outputs, targets)

    def trainable(self) -> dict[str, Tensor]:
        """Every leaf that gets a gradient, by name: parameters, those of the encoder, and inputs."""
        found: dict[str, Tensor] = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        if self.encoder is not None:
            found |= {f"encoder.{name}": parameter for name, parameter in self.encoder.named_parameters()}
        for number, batch in enumerate([*self.batches, *self.others]):
            if batch[0].requires_grad:
                found[f"inputs {number}"] = batch[0]
        return found

    def penalised(self) -> list[str]:
        return [n for n, p in self.model.named_parameters() if p.requires_grad and n not in self.exclude]


def loss_of(name: str, outputs: Tensor, targets: Tensor) -> Tensor:
    if name == "mean_square":
        return (outputs - F.one_hot(targets, outputs.shape[-1])).square().mean()
    if name == "weighted":  # divided by the sum of the weights that this batch has
        weights = torch.tensor([1.0, 2.0, 0.5], dtype=outputs.dtype)
        return F.cross_entropy(outputs, targets, weight=weights)
    if name == "ignored":  # divided by the number of targets that count
        kept = torch.where((torch.arange(len(targets)) % 3 == 1), -100, targets)
        return F.cross_entropy(outputs, kept)
    if name == "logits_of_all_pairs":  # contrastive: each example is compared with all others
        return F.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)).flip(0))
    if name == "log_of_mean":
        return torch.log1p(F.cross_entropy(outputs, targets).square())
    if name == "sum_over_count":
        return F.cross_entropy(outputs, targets, reduction="sum") / len(targets)
    return F.cross_entropy(outputs, targets)


def set_up(s: Scenario) -> Setup:
    """Models, data and requires_grad flags of a scenario; the same objects every time it is called."""
    dtype = torch.float64 if s.dtype == "float64" else torch.float32
    generator = torch.Generator().manual_seed(100 + s.seed)

    def data() -> tuple[Tensor, ...]:
        if s.inputs == "tokens":
            inputs = torch.randint(0, 5, (s.batch, 3), generator=generator)
        else:
            shape = {"vectors": (3,), "sequences": (3, 4), "images": (2, 4, 4)}[s.inputs]
            inputs = torch.randn(s.batch, *shape, generator=generator, dtype=torch.float64).to(dtype)
            if s.channels_last and inputs.dim() == 4:
                inputs = inputs.to(memory_format=torch.channels_last)
            inputs.requires_grad_(s.input_gradient)
        targets = torch.randint(0, 3, (s.batch,), generator=generator)
        return inputs, targets

    batches = [data() for _ in range(s.calls)]
    others = [(data()[0], batch[1]) for batch in batches] if s.two_views else []
    encoder: nn.Module | None = None
    example = batches[0][0].detach()
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        if s.encoder and s.inputs != "tokens":
            with torch.random.fork_rng():
                torch.manual_seed(7 + s.seed)
                width = example.shape[-1]
                encoder = nn.Linear(width, width)
        model = Network(s.ops, example, seed=s.seed)
    finally:
        torch.set_default_dtype(before)
    if s.channels_last:
        model = model.to(memory_format=torch.channels_last)
    model.train(s.training)
    model.drops = s.micro_batches == 1  # one pass over all micro-batches draws the same masks in another order
    names = [name for name, _ in model.named_parameters()]
    frozen = {names[number % len(names)] for number in s.frozen}
    if len(frozen) == len(names):
        frozen = set(names[:-1])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    left = [name for name in names if name not in frozen]
    exclude = tuple(dict.fromkeys(left[number % len(left)] for number in s.exclude))
    if len(exclude) == len(left):
        exclude = exclude[:-1]
    return Setup(s, model, encoder, batches, others, exclude)


# --- Strategies ---

_OPTIONS = {
    "bare_linear": 3, "linear": 2, "matmul": 3, "addmm": 3, "einsum": 2, "baddbmm": 2, "convolution": 10,
    "depthwise": 3, "lookup": 3, "recurrent": 3, "again": 4, "norm": 5, "batch_norm": 2, "gate": 7, "scale": 4,
    "attention": 3, "curve": 18, "curve_in_place": 8, "write": 6, "dropout": 2, "softmax": 2, "view": 8, "pool": 2,
    "mix_examples": 4, "residual": 2, "branches": 2, "count_passes": 8, "spectral": 3,
}  # fmt: skip
_NESTED = ("residual", "branches", "checkpointed")
_SIZED = ("linear", "bare_linear", "matmul", "addmm", "einsum", "baddbmm", "convolution", "transposed_convolution",
          "recurrent", "bilinear", "again", "gate", "attention")  # fmt: skip
_REGISTERED = (random_layers, random_operations)  # importing them fills OPS
_PLAIN = tuple(name for name in OPS if name not in _NESTED)
# Layers and curves more often than the rest: most operations are of interest beside a layer.
_WEIGHTED = (
    *_PLAIN,
    *("linear",) * 6,
    *("convolution",) * 3,
    *("curve",) * 4,
    *("curve_in_place",) * 3,
    "matmul",
    "addmm",
)


@st.composite
def plain_ops(draw: st.DrawFn) -> Op:
    name = draw(st.sampled_from(_WEIGHTED))
    size = draw(st.integers(1, 7)) if name in _SIZED else 4
    option = draw(st.integers(0, _OPTIONS[name] - 1)) if name in _OPTIONS else 0
    return Op(name, size, option)


@st.composite
def nested_ops(draw: st.DrawFn) -> Op:
    name = draw(st.sampled_from(_NESTED))
    inside = tuple(draw(st.lists(plain_ops(), min_size=1, max_size=3)))
    return Op(name, 4, draw(st.integers(0, _OPTIONS.get(name, 1) - 1)), inside)


_ops = st.lists(st.one_of(plain_ops(), plain_ops(), plain_ops(), nested_ops()), max_size=5).map(tuple)
_few = st.lists(st.integers(0, 9), max_size=3).map(tuple)
_rarely = st.sampled_from([False, False, False, True])


@st.composite
def scenarios(
    draw: st.DrawFn, *, dtypes: tuple[str, ...] = ("float64",), whole: bool = False, sampled: bool = False
) -> Scenario:
    """Random scenarios; with `whole` only those that `FactoredSGD` has: one call, one view, nothing excluded.

    With `sampled` only those whose penalty is that of some of their micro-batches.
    """
    micro_batches = draw(st.sampled_from([2, 4] if sampled else [1, 1, 2, 4]))
    two_views = not whole and micro_batches == 1 and draw(_rarely)
    return Scenario(
        ops=draw(_ops),
        inputs=draw(st.sampled_from(["vectors", "sequences", "tokens", "images"])),
        batch=draw(st.sampled_from([1, 2, 4, 6])) if micro_batches == 1 else 4 * draw(st.integers(1, 2)),
        loss=draw(st.sampled_from(("cross_entropy",) * 4 + LOSSES)),
        strength=draw(st.sampled_from([0.5, 2.0, 0.0625])),
        seed=draw(st.integers(0, 20)),
        exclude=() if whole else draw(_few),
        frozen=draw(_few),
        input_gradient=not sampled and draw(_rarely),  # the rows of a sample are copies, which closures may change
        encoder=draw(_rarely),
        training=not draw(_rarely),
        two_views=two_views,
        micro_batches=micro_batches,
        sampled=draw(st.integers(1, micro_batches)) if sampled else None,
        calls=1 if whole else draw(st.sampled_from([1, 1, 1, 2])),
        channels_last=draw(_rarely),
        dtype=draw(st.sampled_from(dtypes)),
    )
