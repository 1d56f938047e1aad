"""Batches of every shape in micro-batches: cut along the first axis of every tensor, or refused in one sentence."""

from __future__ import annotations

import copy
import logging
from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import labels, numbers, spread
from tacit import FactoredSGD, GradientPenalty, InputError
from tacit.penalty.pieces import pieces

Pair = namedtuple("Pair", "inputs targets")
STRENGTH = 0.7


@dataclass(frozen=True)
class Frozen:
    inputs: Tensor
    targets: Tensor
    scale: float | None = None


class Encoding(UserDict):
    """As tokenizers of transformers return it: a mapping that is no dict, with attributes."""

    def __getattr__(self, name: str) -> Any:
        return self.data[name]


Get = Callable[[Any], tuple[Tensor, Tensor]]
BATCHES: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, ...]], Get]] = {
    "tensors": (lambda x, y: (x, y), lambda *batch: batch),
    "a dict": (lambda x, y: ({"x": x, "y": y, "epoch": 3},), lambda b: (b["x"], b["y"])),
    "a mapping that is no dict": (lambda x, y: (Encoding({"x": x, "y": y, "z": None}),), lambda b: (b.x, b["y"])),
    "a mapping that cannot change": (lambda x, y: (MappingProxyType({"x": x, "y": y}),), lambda b: (b["x"], b["y"])),
    "a frozen dataclass": (lambda x, y: (Frozen(x, y),), lambda b: (b.inputs, b.targets)),
    "a named tuple": (lambda x, y: (Pair(x, y),), lambda b: (b.inputs, b.targets)),
    "nested": (
        lambda x, y: ([{"x": (x, torch.tensor(2.0))}, None], [y], "train"),
        lambda first, second, word: (first[0]["x"][0], second[0]),
    ),
}


def model_of(width: int = 12) -> nn.Module:
    return spread(nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 3))).double()


def data(rows: int) -> tuple[Tensor, Tensor]:
    return numbers(rows, 5, seed=1), labels(rows, 3, 2)


def reference(model: nn.Module, x: Tensor, y: Tensor, size: int) -> tuple[list[Tensor], float, float]:
    """∇(Ĉ + Σₖ sₖ (λ/4)‖∇Ĉₖ‖²) with sₖ the share of rows, its Ĉ, and Σₖ sₖ ‖∇Ĉₖ‖²; by plain autograd."""
    parameters = list(model.parameters())
    loss, norm = F.cross_entropy(model(x), y), torch.zeros((), dtype=torch.float64)
    for a, b in zip(x.split(size), y.split(size), strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(model(a), b), parameters, create_graph=True)
        norm = norm + len(a) / len(x) * sum(gradient.square().sum() for gradient in gradients)
    found = torch.autograd.grad(loss + STRENGTH / 4 * norm, parameters)
    return list(found), float(loss), float(norm)


@pytest.mark.parametrize("method", ["gram", "double_backward", "finite_difference"])
@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_of_any_shape_is_cut(name: str, method: str) -> None:
    make, get = BATCHES[name]
    model, (x, y) = model_of(), data(12)
    batch = make(x, y)
    rows: list[int] = []

    def closure(*batch: Any) -> Tensor:
        inputs, targets = get(*batch)
        rows.append(len(inputs))
        return F.cross_entropy(model(inputs), targets)

    expected, loss, norm = reference(model, x, y, 3)
    penalty = GradientPenalty(model, STRENGTH, method=method, micro_batch_size=3)
    for _ in range(2):
        model.zero_grad()
        assert float(penalty.backward(closure, *batch)) == pytest.approx(loss, rel=1e-12)
        tight = (
            {"rtol": 1e-10, "atol": 1e-12} if penalty.method != "finite_difference" else {"rtol": 1e-4, "atol": 1e-6}
        )
        for parameter, truth in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, truth, **tight)
        assert float(penalty.last.gradient_squared_norm) == pytest.approx(norm, rel=1e-10)
    assert 3 in rows
    assert get(*batch)[0] is x  # what the caller has is not changed


@pytest.mark.parametrize("name", BATCHES)
def test_the_factored_step_cuts_a_batch_of_any_shape(name: str) -> None:
    make, get = BATCHES[name]
    model, (x, y) = model_of(), data(12)
    optimizer = FactoredSGD(model, lr=1.0, strength=STRENGTH, micro_batch_size=3)

    def closure(*batch: Any) -> Tensor:
        inputs, targets = get(*batch)
        return F.cross_entropy(model(inputs), targets)

    for _ in range(2):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        expected, *_ = reference(model, x, y, 3)
        optimizer.step(closure, *make(x, y))
        for old, parameter, truth in zip(before, model.parameters(), expected, strict=True):
            torch.testing.assert_close(old - parameter.detach(), truth, rtol=1e-9, atol=1e-12)


ROWS = [13, 14, 4, 7, 2]  # of batches in micro-batches of 3: a smaller last piece, two pieces, and one


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("method", ["gram", "double_backward"])
def test_a_last_piece_of_fewer_rows_counts_by_its_rows(
    rows: int, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, (x, y) = model_of(), data(rows)
    expected, loss, norm = reference(model, x, y, 3)
    penalty = GradientPenalty(model, STRENGTH, method=method, micro_batch_size=3)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # the first step is compared with a loop
            model.zero_grad()
            found = penalty.backward(lambda x, y: F.cross_entropy(model(x), y), x, y)
            assert float(found) == pytest.approx(loss, rel=1e-12)
            for parameter, truth in zip(model.parameters(), expected, strict=True):
                torch.testing.assert_close(parameter.grad, truth, rtol=1e-10, atol=1e-12)
            assert float(penalty.last.gradient_squared_norm) == pytest.approx(norm, rel=1e-11)
    assert not caplog.records


@pytest.mark.parametrize("rows", ROWS)
def test_the_factored_step_takes_a_last_piece_of_fewer_rows(rows: int) -> None:
    model, (x, y) = model_of(), data(rows)
    optimizer = FactoredSGD(model, lr=1.0, strength=STRENGTH, micro_batch_size=3)
    for _ in range(2):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        expected, loss, norm = reference(model, x, y, 3)
        assert float(optimizer.step(lambda x, y: F.cross_entropy(model(x), y), x, y)) == pytest.approx(loss, rel=1e-12)
        for old, parameter, truth in zip(before, model.parameters(), expected, strict=True):
            torch.testing.assert_close(old - parameter.detach(), truth, rtol=1e-9, atol=1e-12)
        assert float(optimizer.last.gradient_squared_norm) == pytest.approx(norm, rel=1e-11)


def test_the_curvature_of_unequal_pieces_is_weighted_by_rows() -> None:
    model, (x, y) = model_of(), data(14)
    gram, loop = (GradientPenalty(model, STRENGTH, method=m, micro_batch_size=3) for m in ("gram", "double_backward"))
    for _ in range(2):
        for penalty in (gram, loop):
            penalty.backward(lambda x, y: F.cross_entropy(model(x), y), x, y)
        assert float(gram.last.curvature) == pytest.approx(float(loop.last.curvature), rel=1e-10)


def test_equal_pieces_of_a_batch_with_a_rest_go_in_one_pass() -> None:
    model, (x, y) = model_of(), data(14)
    penalty = GradientPenalty(model, STRENGTH, method="gram", micro_batch_size=3, check_every=0)
    rows: list[int] = []

    def closure(x: Tensor, y: Tensor) -> Tensor:
        rows.append(len(x))
        return F.cross_entropy(model(x), y)

    penalty.backward(closure, x, y)
    rows.clear()
    penalty.backward(closure, x, y)
    assert rows == [3, 2]  # four pieces of three in one call, and the last one


def test_shares_add_up_to_one_and_pieces_are_the_rows_in_their_order() -> None:
    x, y = data(10)
    cut = pieces(({"x": x}, y), 4)
    assert [piece.share for piece in cut] == [0.4, 0.4, 0.2]
    assert torch.equal(torch.cat([piece.batch[0]["x"] for piece in cut]), x)
    assert torch.equal(torch.cat([piece.batch[1] for piece in cut]), y)
    whole = ({"x": x}, y)
    assert pieces(whole, 10)[0].batch is whole


class Graph:
    def __init__(self, x: Tensor) -> None:
        self.x = x


class Stubborn(dict):
    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("read only")


REFUSALS: dict[str, tuple[Callable[[Tensor], tuple[Any, ...]], str]] = {
    "unequal lengths": (lambda x: ({"x": x, "y": x[:3]},), r"the batch tensors have lengths \[3, 12\]; expected one"),
    "an object of its own": (lambda x: (Graph(x),), "the batch holds a Graph, which cannot be cut .* Pass the tensors"),
    "an array": (lambda x: (x.numpy(),), "the batch holds a ndarray, which cannot be cut into micro-batches; expected"),
    "a set": (lambda x: ({x},), "the batch holds a set"),
    "a mapping that cannot be set": (lambda x: (Stubborn(x=x),), "the batch holds a Stubborn"),
    "a sparse tensor": (lambda x: (x.to_sparse(),), "the batch holds a sparse or nested tensor"),
    "no tensor": (lambda x: ({"x": 3},), "the batch has no tensor with rows; expected one length"),
    "empty": (lambda x: (x[:0],), "the batch is empty; expected at least one example"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_cut_is_refused_in_one_sentence(name: str) -> None:
    make, sentence = REFUSALS[name]
    model, (x, _) = model_of(), data(12)
    batch = make(x)
    with pytest.raises(InputError, match=sentence):
        GradientPenalty(model, STRENGTH, micro_batch_size=4).backward(lambda *rest: model(x).sum(), *batch)
    with pytest.raises(InputError, match=sentence):
        FactoredSGD(copy.deepcopy(model), lr=0.1, strength=STRENGTH, micro_batch_size=4).step(
            lambda *rest: model(x).sum(), *batch
        )
