"""A refusal that recommends a method recommends one that works on the same model."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from cases import labels, numbers
from tacit import GradientPenalty, InputError
from tacit.penalty import METHODS

TOKENS, CLASSES = numbers(4, 5, 8, seed=1).float(), labels(4, 3, 2)
Problem = tuple[nn.Module, Callable[[nn.Module], Tensor]]


def sequence(*layers: nn.Module) -> Problem:
    model = nn.Sequential(*layers, nn.Linear(8, 3))
    return model, lambda model: F.cross_entropy(model(TOKENS)[:, 0], CLASSES)


def connectionist() -> Problem:
    def loss(model: nn.Module) -> Tensor:
        log_probabilities = model(TOKENS).log_softmax(-1).transpose(0, 1)
        lengths = torch.full((4,), 5), torch.full((4,), 2)
        return F.ctc_loss(log_probabilities, torch.ones(4, 2, dtype=torch.long), *lengths)

    return nn.Linear(8, 5), loss


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*[x.unsqueeze(1)] * 3).squeeze(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0]


class Checkpointed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream):
        return 2 * upstream * ctx.saved_tensors[0]


class Custom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return OnceDifferentiable.apply(x)


def sparse() -> Problem:
    model = nn.Sequential(nn.Embedding(6, 8, sparse=True), nn.Linear(8, 3))
    return model, lambda model: F.cross_entropy(model(labels(4, 6, 1)), CLASSES)


def with_a_hook() -> Problem:
    model, loss = sequence(nn.Linear(8, 8))
    model[0].register_full_backward_hook(lambda module, inputs, outputs: None)
    return model, loss


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "ctc": connectionist,
    "hardsigmoid": lambda: sequence(nn.Linear(8, 8), nn.Hardsigmoid()),
    "hardswish": lambda: sequence(nn.Linear(8, 8), nn.Hardswish()),
    "attention": lambda: sequence(nn.Linear(8, 8), Attention()),
    "encoder with dropout": lambda: sequence(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)),
    "lstm": lambda: sequence(Recurrent()),
    "checkpoint": lambda: sequence(Checkpointed(8, 8)),
    "weight_norm": lambda: sequence(parametrizations.weight_norm(nn.Linear(8, 8))),
    "once differentiable": lambda: sequence(nn.Linear(8, 8), Custom()),
    "sparse embedding": sparse,
    "backward hook": with_a_hook,
}


def attempt(name: str, method: str) -> str | None:
    """The refusal of one step, or None."""
    torch.manual_seed(0)
    model, loss = PROBLEMS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            GradientPenalty(model, 1e-4, method=method, check_every=0).backward(lambda: loss(model))
        except InputError as refusal:
            return str(refusal)
    return None


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_recommended_method_works(name: str) -> None:
    refusals = {method: attempt(name, method) for method in METHODS}
    for method, refusal in refusals.items():
        if refusal is None:
            continue
        recommended = [other for other in re.findall(r"'(\w+)'", refusal) if other in METHODS]
        assert recommended or "use_reentrant" in refusal, refusal
        conditional = recommended[:1] if "if the function is" in refusal and name == "backward hook" else recommended
        if "if the function is" in refusal and name == "once differentiable":
            conditional = recommended[1:]
        for other in conditional:
            assert refusals[other] is None, f"{method} recommends {other}: {refusal}\n{other}: {refusals[other]}"
    assert any(refusal is None for refusal in refusals.values())
