"""Layers that models write in other ways than `nn.Linear`: known by their factors where natural, right always."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import labels, numbers, spread
from oracles import penalised_gradient
from tacit import FactoredSGD, GradientPenalty

Product = Callable[[Tensor, nn.Module], Tensor]

# Each computes x W or x Wᵀ, plus b, for a square W.
SITES: dict[str, Product] = {
    "linear": lambda x, m: F.linear(x, m.weight, m.bias),
    "matmul": lambda x, m: torch.matmul(x, m.weight) + m.bias,
    "@": lambda x, m: x @ m.weight,
    "@ of the transpose": lambda x, m: x @ m.weight.T + m.bias,
    "t()": lambda x, m: x @ m.weight.t(),
    "transpose": lambda x, m: x @ m.weight.transpose(0, 1),
    "transpose, negative": lambda x, m: x @ m.weight.transpose(-1, -2),
    "permute": lambda x, m: x @ m.weight.permute(1, 0),
    "mT": lambda x, m: torch.matmul(x, m.weight.mT),
    "linear of the transpose": lambda x, m: F.linear(x, m.weight.T, m.bias),
    "einsum, rows": lambda x, m: torch.einsum("...i,oi->...o", x, m.weight),
    "einsum, columns": lambda x, m: torch.einsum("...i,io->...o", x, m.weight),
    "einsum, weight first": lambda x, m: torch.einsum("oi,...i->...o", m.weight, x),
}
FLAT_SITES: dict[str, Product] = {  # for two axes only
    "addmm": lambda x, m: torch.addmm(m.bias, x, m.weight),
    "Tensor.addmm": lambda x, m: m.bias.addmm(x, m.weight),
    "addmm of the transpose": lambda x, m: torch.addmm(m.bias, x, m.weight.T),
    "mm": lambda x, m: torch.mm(x, m.weight),
    "Tensor.mm": lambda x, m: x.mm(m.weight.t()),
}
OTHERS: dict[str, Product] = {  # no sites: the weight's own gradient
    "weight on the left": lambda x, m: (m.weight @ x.mT).mT,
    "addmm, scaled": lambda x, m: torch.addmm(m.bias, x.reshape(-1, 4), m.weight, beta=0.5, alpha=2.0),
    "bmm": lambda x, m: torch.bmm(x.reshape(1, -1, 4), m.weight.unsqueeze(0)),
    "baddbmm": lambda x, m: torch.baddbmm(m.bias.reshape(1, 1, 4), x.reshape(1, -1, 4), m.weight.unsqueeze(0)),
    "a slice": lambda x, m: F.linear(x, m.weight[:3]),
    "two chunks": lambda x, m: torch.cat([F.linear(x, part) for part in m.weight.chunk(2)], -1),
    "einsum, trace": lambda x, m: x * torch.einsum("ii->", m.weight),
    "einsum, outer": lambda x, m: torch.einsum("...i,oi->...io", x, m.weight).sum(-1),
    "a transpose used otherwise": lambda x, m: x @ m.weight.T + m.weight.T.sum(0),
    "a transpose by itself": lambda x, m: x * m.weight.T.sum(0),
    "permuted to itself": lambda x, m: x @ m.weight.permute(0, 1).sin(),
}


class Written(nn.Module):
    def __init__(self, product: Product) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, 4), nn.Linear(4, 3)
        self.weight, self.bias, self.product = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4)), product

    def forward(self, inputs: Tensor) -> Tensor:
        made = torch.tanh(self.product(torch.tanh(self.enter(inputs)), self))
        return self.leave(made) if made.shape[-1] == 4 else made


def problem(product: Product, shape: tuple[int, ...]) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    inputs = numbers(*shape, seed=1)
    targets = labels(inputs.numel() // 3, 3, 2)
    return spread(Written(product)).double(), lambda model: F.cross_entropy(model(inputs).reshape(-1, 3), targets)


def assert_exact(model: nn.Module, loss: Callable[[nn.Module], Tensor], *, exclude: tuple[str, ...] = ()) -> None:
    truth = penalised_gradient(model, loss, 0.7, skip=exclude)
    GradientPenalty(model, 0.7, method="gram", exclude=exclude).backward(lambda: loss(model))
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, truth[name], rtol=1e-11, atol=1e-13)
        else:
            assert not truth[name].any()


@pytest.mark.parametrize("shape", [(2, 3), (9, 3), (3, 2, 3)], ids=["gram", "direct", "tokens"])
@pytest.mark.parametrize("name", [*SITES, *FLAT_SITES])
def test_ways_to_write_a_linear_layer_are_sites_and_exact(name: str, shape: tuple[int, ...]) -> None:
    if name in FLAT_SITES and len(shape) > 2:
        pytest.skip("for matrices")
    model, loss = problem({**SITES, **FLAT_SITES}[name], shape)
    assert GradientPenalty(model, 1.0).plan(lambda: loss(model))["weight"] in ("gram", "factors")
    assert_exact(model, loss)


@pytest.mark.parametrize("name", [*SITES, *FLAT_SITES])
def test_the_factored_step_is_exact_on_them(name: str) -> None:
    model, loss = problem({**SITES, **FLAT_SITES}[name], (9, 3))
    truth = penalised_gradient(model, loss, 0.7)
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    FactoredSGD(model, lr=1.0, strength=0.7).step(lambda: loss(model))
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(before[key] - parameter.detach(), truth[key], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", OTHERS)
def test_other_uses_of_a_matrix_are_exact(name: str) -> None:
    model, loss = problem(OTHERS[name], (9, 3))
    assert GradientPenalty(model, 1.0).plan(lambda: loss(model))["weight"] == "gradient"
    assert_exact(model, loss)


class TiedAutoencoder(nn.Module):
    """One matrix in both directions, with a bias each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 6))
        self.down, self.up = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(6))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.addmm(self.up, torch.tanh(F.linear(inputs, self.weight, self.down)), self.weight)


@pytest.mark.parametrize("count", [1, 9])
def test_a_matrix_used_in_both_directions_is_exact(count: int) -> None:
    inputs = numbers(count, 6, seed=1)
    assert_exact(spread(TiedAutoencoder()).double(), lambda model: (model(inputs) - inputs).square().mean())


class SquareBothWays(nn.Module):
    """One square matrix in both directions with the same bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.addmm(self.bias, torch.tanh(F.linear(inputs, self.weight, self.bias)), self.weight)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_square_matrix_and_its_bias_used_in_both_directions_are_exact(count: int) -> None:
    inputs = numbers(count, 4, seed=1)
    assert_exact(spread(SquareBothWays()).double(), lambda model: (model(inputs) - inputs).square().mean())


class SelfAttention(nn.Module):
    def __init__(self, **settings: bool | int) -> None:
        super().__init__()
        self.attention, self.settings = nn.MultiheadAttention(4, 2, batch_first=True, **settings), settings

    def forward(self, x: Tensor) -> Tensor:
        other = x if "kdim" not in self.settings else torch.cat([x, x[..., :1]], -1)
        return self.attention(x, other, other, need_weights=False)[0]


class CrossAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x.tanh(), x.sin())[0]


ATTENTIONS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "self": (SelfAttention, "factors"),
    "self without bias": (lambda: SelfAttention(bias=False), "factors"),
    "self with a key bias": (lambda: SelfAttention(add_bias_kv=True), "factors"),
    "other widths": (lambda: SelfAttention(kdim=5, vdim=5), "factors"),
    "cross": (CrossAttention, "gradient"),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_projections_of_multihead_attention(name: str) -> None:
    make, how = ATTENTIONS[name]
    model, tokens, target = spread(make()).double(), numbers(3, 5, 4, seed=1), numbers(3, 5, 4, seed=2)

    def loss(model: nn.Module) -> Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return (model(tokens) - target).square().mean()

    weight = "attention.q_proj_weight" if name == "other widths" else "attention.in_proj_weight"
    plan = GradientPenalty(model, 1.0).plan(lambda: loss(model))
    assert (plan[weight], plan["attention.out_proj.weight"]) == (how, "factors")
    assert_exact(model, loss)


def test_attention_gives_bitwise_the_same_loss_in_pieces() -> None:
    model, tokens = spread(SelfAttention()).double(), numbers(3, 5, 4, seed=1)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = model(tokens).square().mean()
        found = GradientPenalty(model, 0.5, method="gram").backward(lambda: model(tokens).square().mean())
    assert torch.equal(found, expected.detach())


def test_excluding_a_transposed_matrix() -> None:
    model, loss = problem(FLAT_SITES["addmm"], (9, 3))
    assert_exact(model, loss, exclude=("weight", "enter.bias"))


class Conv1D(nn.Module):
    """As transformers has it for GPT-2: a linear layer with its weight the other way round."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


def test_auto_counts_trainable_matrices_however_they_are_used() -> None:
    assert GradientPenalty(Conv1D(1024, 1024), 1.0).method == "gram"
    frozen = nn.Sequential(nn.Linear(1024, 1024), nn.Conv2d(64, 64, 3), nn.Linear(64, 8))
    frozen[0].requires_grad_(False)
    assert GradientPenalty(frozen, 1.0).method == "double_backward"
    assert GradientPenalty(nn.Embedding(1024, 1024), 1.0).method == "double_backward"
