"""Exact methods are exact by default on attention, and on operations whose second derivative torch lacks."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from cases import labels, numbers, spread
from tacit import FactoredSGD, GradientPenalty, InputError
from tacit.penalty import METHODS

EXACT = [name for name, method in METHODS.items() if method.exact]
STRENGTH = 0.3


def central_difference(model: nn.Module, loss: Callable[[nn.Module], Tensor], strength: float) -> dict[str, Tensor]:
    """g + (λ/2) H g with H g = (∇Ĉ(ω + s g) − ∇Ĉ(ω − s g)) / 2s: it needs first derivatives only."""

    def gradient(distance: float, direction: dict[str, Tensor]) -> dict[str, Tensor]:
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for name, parameter in moved.named_parameters():
                if name in direction:
                    parameter.add_(direction[name], alpha=distance)
        torch.manual_seed(0)
        found = torch.autograd.grad(loss(moved), list(moved.parameters()), allow_unused=True)
        names = [name for name, _ in moved.named_parameters()]
        return {name: g for name, g in zip(names, found, strict=True) if g is not None}

    g = gradient(0.0, {})
    s = 1e-4 / float(torch.cat([part.reshape(-1) for part in g.values()]).norm())
    ahead, behind = gradient(s, g), gradient(-s, g)
    return {name: g[name] + strength / 2 * (ahead[name] - behind[name]) / (2 * s) for name in g}


def assert_exact(model: nn.Module, loss: Callable[[nn.Module], Tensor], method: str) -> None:
    expected = central_difference(model, loss, STRENGTH)
    torch.manual_seed(0)
    GradientPenalty(model, STRENGTH, method=method).backward(lambda: loss(model))
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert set(expected) <= set(found)
    # The difference of float64 gradients over 2e-4: truncation 1e-8 of third derivatives, rounding 1e-12.
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)


class Between(nn.Module):
    """A linear layer, some function of its outputs, another linear layer."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int = 6, after: int = 6) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(5, width), nn.Linear(after, 3)
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.leave(torch.tanh(self.function(2 * self.enter(inputs))))


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        return checkpoint(self.inner, inputs, use_reentrant=False)


FUNCTIONS: dict[str, Callable[[], nn.Module]] = {
    name: (lambda make=make: Between(make()))
    for name, make in {
        **{name: getattr(nn, name) for name in nn.modules.activation.__all__ if name not in (
            "MultiheadAttention", "Softmax2d", "Threshold", "GLU", "RReLU")},
        **{name: (lambda name=name: getattr(nn, name)(dim=-1)) for name in ("Softmax", "Softmin", "LogSoftmax")},
        "Threshold": lambda: nn.Threshold(0.1, 0.2),
        "RReLU": lambda: nn.RReLU().eval(),
        "Hardsigmoid in place": lambda: nn.Hardsigmoid(inplace=True),
        "Hardswish in place": lambda: nn.Hardswish(inplace=True),
        "ReLU6 in place": lambda: nn.ReLU6(inplace=True),
        "GELU tanh": lambda: nn.GELU(approximate="tanh"),
        "Tensor.hardsigmoid of torch._C": lambda: torch._C._nn.hardsigmoid,
        "cdist": lambda: lambda x: torch.cdist(x, x + torch.arange(6)[:, None] % 2),
        "cdist, p = 3": lambda: lambda x: torch.cdist(x, 1.1 * x.flip(0) + 0.3, p=3.0),
        "pdist": lambda: lambda x: F.pdist(x).repeat(6)[:36].reshape(6, 6),
    }.items()
}  # fmt: skip
FUNCTIONS["Hardsigmoid in a checkpoint"] = lambda: Between(
    lambda x: checkpoint(lambda x: F.hardsigmoid(1.3 * x), x, use_reentrant=False)
)
FUNCTIONS["Hardsigmoid of a layer in a checkpoint"] = lambda: Checkpointed(Between(nn.Hardsigmoid()))
FUNCTIONS["GLU"] = lambda: Between(nn.GLU(), after=3)
FUNCTIONS["weight norm"] = lambda: nn.Sequential(
    parametrizations.weight_norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 3)
)
FUNCTIONS["weight norm of the whole"] = lambda: nn.Sequential(
    parametrizations.weight_norm(nn.Linear(5, 6), dim=None), nn.Tanh(), nn.Linear(6, 3)
)


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations_and_distances_have_exact_penalties(name: str, method: str) -> None:
    inputs, targets = numbers(6, 5, seed=1), labels(6, 3, 2)
    assert_exact(spread(FUNCTIONS[name]()).double(), lambda m: F.cross_entropy(m(inputs), targets), method)


TWO_LABELS = torch.tensor([[3, 1, -1, 2, 0, 0, 0, 0]] * 6)  # labels end before the first −1
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, labels(6, 8, 2)),
    "multi_margin_loss squared": lambda x: F.multi_margin_loss(
        x, labels(6, 8, 2), p=2, weight=numbers(8, seed=7).abs(), reduction="sum"
    ),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x.tanh(), TWO_LABELS),
    "ctc_loss": lambda x: F.ctc_loss(
        x.reshape(6, 2, 4).log_softmax(2), torch.tensor([[1, 1, 2], [3, 2, 0]]), (6, 5), (3, 2)
    ),
    "ctc_loss of targets in a row": lambda x: F.ctc_loss(
        x.reshape(6, 2, 4).log_softmax(2), torch.tensor([1, 1, 2]), (6, 4), (3, 0), reduction="sum"
    ),
    "ctc_loss that is impossible for one": lambda x: F.ctc_loss(
        x.reshape(6, 2, 4).log_softmax(2), torch.tensor([[1, 1, 2], [3, 2, 0]]), (6, 1), (3, 2), zero_infinity=True
    ),
}  # fmt: skip


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_without_a_second_derivative_in_torch_have_exact_penalties(name: str, method: str) -> None:
    model = spread(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 8))).double()
    inputs = numbers(6, 5, seed=1)
    assert_exact(model, lambda m: LOSSES[name](m(inputs)), method)
    # The value that the step reports is torch's own.
    penalty = GradientPenalty(model, STRENGTH, method=method)
    torch.testing.assert_close(
        penalty.backward(lambda: LOSSES[name](model(inputs))), LOSSES[name](model(inputs)).detach()
    )


class Bags(nn.Module):
    def __init__(self, mode: str, *, offsets: bool, padding_idx: int | None = None) -> None:
        super().__init__()
        self.bag, self.leave = nn.EmbeddingBag(7, 5, mode=mode, padding_idx=padding_idx), nn.Linear(5, 3)
        self.offsets = torch.tensor([0, 2, 2, 5]) if offsets else None

    def forward(self, indices: Tensor) -> Tensor:
        picked = self.bag(indices.reshape(-1), self.offsets) if self.offsets is not None else self.bag(indices)
        return self.leave(torch.tanh(picked))


@pytest.mark.parametrize("method", ["gram", "double_backward"])
@pytest.mark.parametrize("padding_idx", [None, -2])
@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags_have_exact_penalties(mode: str, offsets: bool, padding_idx: int | None, method: str) -> None:
    model = spread(Bags(mode, offsets=offsets, padding_idx=padding_idx)).double()
    indices = torch.randint(0, 7, (4, 2), generator=torch.Generator().manual_seed(3))
    assert_exact(model, lambda m: F.cross_entropy(m(indices), labels(4, 3, 2)), method)


class Attention(nn.Module):
    """`scaled_dot_product_attention` as transformers call it: causal, in heads, with a checkpoint on request."""

    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 6)
        self.checkpointed = checkpointed

    def attend(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (2, 3)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        return self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.attend, x, use_reentrant=False) if self.checkpointed else self.attend(x)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def encoder_layer(*, training: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, activation="gelu")
    return layer.train(training)


ATTENTION: dict[str, Callable[[], nn.Module]] = {
    "scaled_dot_product_attention": Attention,
    "checkpointed": lambda: Attention(checkpointed=True),
    "MultiheadAttention": SelfAttention,
    "TransformerEncoderLayer": lambda: encoder_layer(training=True),
    "TransformerEncoderLayer in evaluation mode": lambda: encoder_layer(training=False),
}


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_has_exact_penalties_by_default(name: str, method: str) -> None:
    inputs = numbers(2, 4, 6, seed=1)
    assert_exact(spread(ATTENTION[name]()).double(), lambda m: m(inputs).square().mean(), method)


def test_factored_sgd_takes_attention_too() -> None:
    inputs = numbers(2, 4, 6, seed=1)
    model = spread(Attention()).double()
    twin = copy.deepcopy(model)
    FactoredSGD(model, lr=0.1, strength=STRENGTH).step(lambda: model(inputs).square().mean())
    GradientPenalty(twin, STRENGTH, method="double_backward").backward(lambda: twin(inputs).square().mean())
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    for found, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_change_of_backend_is_said_once_and_only_where_there_is_attention(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tacit")
    plain, model, inputs = nn.Linear(6, 1), SelfAttention(), numbers(2, 4, 6, seed=1).float()
    GradientPenalty(plain, STRENGTH).backward(lambda: plain(inputs).square().mean())
    assert not caplog.records
    penalty = GradientPenalty(model, STRENGTH)
    for _ in range(2):
        penalty.backward(lambda: model(inputs).square().mean())
    assert [record.getMessage().split(" in penalised")[0] for record in caplog.records] == [
        "attention runs under the MATH backend of scaled_dot_product_attention"
    ]


def test_the_users_backends_come_back() -> None:
    model, inputs = SelfAttention(), numbers(2, 4, 6, seed=1).float()
    before = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()
    with pytest.raises(ZeroDivisionError):
        GradientPenalty(model, STRENGTH).backward(lambda: model(inputs).mean() / (1 // 0))
    assert (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()) == before


def test_an_unknown_choice_is_refused() -> None:
    for make in (lambda: GradientPenalty(nn.Linear(2, 1), 1.0, attention="flash"),
                 lambda: FactoredSGD(nn.Linear(2, 1), lr=0.1, attention="flash")):  # fmt: skip
        with pytest.raises(InputError, match="attention='flash' is unknown; use 'math' or 'as_is'"):
            make()
