"""`tacit check` on models of a user's own: what the table says, what it refuses, and that the model stays as it was."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit.bench.check import check_model
from tacit.cli.check import table_lines
from typed_commands import Typed

MODULE = """
import torch
from torch import nn

torch.manual_seed(0)
X, Y = torch.randn(32, 6), torch.randint(3, (32,))
MLP = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
NORM = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3))
GELU = nn.Linear(6, 3)

def loss_of(model):
    return lambda x, y: nn.functional.cross_entropy(model(x), y)

def mlp(): return MLP, loss_of(MLP), (X, Y)
def mlp64(): return MLP.double(), loss_of(MLP), (X.double(), Y)
def norm(): return NORM, loss_of(NORM), (X, Y)
def refused():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return x**2
        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(context, gradient):
            return 2 * gradient * context.saved_tensors[0]
    return GELU, lambda x, y: nn.functional.cross_entropy(Square.apply(GELU(x)), y), (X, Y)
def raises(): raise RuntimeError("no data here")
def nonsense(): return 7
def a_model(): return MLP, "closure", (X, Y)
def a_tensor(): return MLP, loss_of(MLP), X
def lengths(): return MLP, loss_of(MLP), (X, Y[:5])
def no_rows(): return MLP, lambda: MLP(X).sum(), ()
def closure_raises(): return MLP, lambda x, y: 1 / 0, (X, Y)
def no_scalar(): return MLP, lambda x, y: MLP(x), (X, Y)
def constant(): return MLP, lambda x, y: torch.zeros(()), (X, Y)
def no_parameters(): return nn.ReLU(), loss_of(MLP), (X, Y)
def lazy(): return nn.LazyLinear(3), loss_of(MLP), (X, Y)
number = 3
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed) -> Iterator[Typed]:
    (tmp_path / "checked_models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    yield lambda factory, *options: typed("check", factory, "--rounds", 1, *options)
    sys.modules.pop("checked_models", None)


def fits(lines: list[str]) -> bool:
    return len(lines) <= 20 and all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("factory", ["mlp", "mlp64", "norm"])
def test_the_table_fits_and_says_that_the_penalty_is_exact(check: Typed, factory: str) -> None:
    found = check(f"checked_models:{factory}")
    assert found.code == 0, found.err
    lines = found.out.splitlines()
    assert fits(lines), "\n".join(lines)
    assert next(line for line in lines if line.startswith("exact")).split()[1] == "yes:"
    text = "\n".join(lines)
    for word in ("penalty, whole batch", "penalty, sampled=1, 2 rows", "SAM, whole batch", "SAM, sampled, 2 rows"):
        assert word in text
    assert not any(word in text for word in ("refused", "failed"))
    assert all(word in text for word in ("tacit.Relative(0.4)", "sampled=1, micro_batch_size=2"))
    assert lines[-1].startswith("measured on cpu, ")


def test_a_refused_penalty_leaves_the_rows_of_sam_and_says_why(check: Typed) -> None:
    found = check("checked_models:refused", "--json", "found.json")
    assert found.code == 0, found.err
    lines = found.out.splitlines()
    assert fits(lines), "\n".join(lines)
    assert "exact         refused [1]" in lines
    assert any(line.startswith("[1] ") and "once_differentiable" in line for line in lines)
    assert any("tacit.SharpnessAware(model, 0.05, sampled=2)" in line for line in lines)
    steps = json.loads(Path("found.json").read_text())["steps"]
    assert {name for name, row in steps.items() if "error" in row} == {"penalty", "penalty, sampled"}


def test_the_json_has_every_number_of_the_table(check: Typed) -> None:
    found = check("checked_models:mlp", "--rows", "8", "--learning-rate", "0.1", "--json", "found.json")
    assert found.code == 0, found.err
    stored = json.loads(Path("found.json").read_text())
    assert table_lines(stored) == found.out.splitlines()
    assert stored["schema"] == "tacit-check/1"
    assert (stored["batch_size"], stored["rows"], stored["rounds"], stored["dtype"]) == (32, 8, 1, "float32")
    assert list(stored["steps"]) == ["plain", "penalty", "penalty, sampled", "sam", "sam, sampled"]
    assert stored["exact"]["relative_error"] < 1e-5
    assert stored["strengths"]["largest_stable_strength"] > 0
    assert 0 < stored["relative"]["strength"] <= 1
    assert stored["machine"]["device"] == "cpu"


def test_the_model_its_gradients_and_random_numbers_are_as_they_were(check: Typed) -> None:
    check("checked_models:raises")  # imports the module
    module = sys.modules["checked_models"]
    model: nn.Module = module.NORM
    model[2].eval()  # not the batch norm, whose statistics every pass moves
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    held = {name: (parameter, parameter.grad) for name, parameter in model.named_parameters()}
    places = [value.data_ptr() for value in model.state_dict().values()]
    modes, random = [each.training for each in model.modules()], torch.get_rng_state()
    assert check("checked_models:norm").code == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [value.data_ptr() for value in model.state_dict().values()] == places
    for name, parameter in model.named_parameters():
        assert (id(parameter), id(parameter.grad)) == tuple(map(id, held[name]))
        assert torch.equal(parameter.grad, torch.ones_like(parameter))
    assert [each.training for each in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)


BAD = {
    "raises": "raised RuntimeError: no data here",
    "nonsense": "returned a int; expected (model, closure, batch)",
    "a_model": "returned (Sequential, str, tuple)",
    "a_tensor": "returned (Sequential, function, Tensor)",
    "lengths": "lengths [5, 32]",
    "no_rows": "no tensor with rows",
    "closure_raises": "the closure raised: ZeroDivisionError",
    "no_scalar": "the closure's loss has shape (32, 3)",
    "constant": "expected a scalar tensor that backward can be called on",
    "no_parameters": "no trainable parameters",
    "lazy": "lazy parameters",
    "number": "is a int; expected a function",
    "missing": "cannot be imported",
}


@pytest.mark.parametrize("factory", BAD)
def test_a_factory_that_does_not_work_is_one_sentence(check: Typed, factory: str) -> None:
    found = check(f"checked_models:{factory}")
    assert BAD[factory] in found.refusal()
    assert found.out == ""


@pytest.mark.parametrize(
    ("factory", "options", "sentence"),
    [
        ("no_colon", (), "expected module:function"),
        ("no_such_module:factory", (), "cannot be imported"),
        ("checked_models:mlp", ("--rows", "33"), "33 rows of a batch of 32"),
        ("checked_models:mlp", ("--learning-rate", "-1"), "--learning-rate=-1.0"),
        ("checked_models:mlp", ("--json", "nowhere/a.json"), "does not exist"),
    ],
)
def test_a_wrong_option_is_one_sentence(check: Typed, factory: str, options: tuple[str, ...], sentence: str) -> None:
    assert sentence in check(factory, *options).refusal()


def wrong_by(factor: float) -> type[torch.autograd.Function]:
    """x², whose second derivative is off by a factor, so that the penalty in float32 alone is wrong."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            context.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            (x,) = context.saved_tensors
            wrong = factor if x.dtype == torch.float32 else 1.0
            return 2 * gradient * (wrong * x + (1 - wrong) * x.detach())

    return Square


@pytest.mark.parametrize(("factor", "word"), [(1.0, "yes:"), (1.01, "NO:")])
def test_a_second_derivative_off_by_a_hundredth_is_seen(factor: float, word: str) -> None:
    torch.manual_seed(0)
    model, square = nn.Linear(3, 1), wrong_by(factor)
    found = check_model(model, lambda x: square.apply(model(x)).mean(), (torch.randn(16, 3),), rounds=1)
    assert table_lines(found)[1].split()[1] == word


def test_random_numbers_that_differ_between_the_precisions_are_not_called_an_error_of_the_penalty() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)

    def loss(x: Tensor) -> Tensor:
        return (model(x) * (2.0 if x.dtype == torch.float64 else 1.0)).square().mean()

    found = check_model(model, loss, (torch.randn(16, 3),), rounds=1)
    assert fits(table_lines(found)), "\n".join(table_lines(found))
    assert table_lines(found)[1].split()[1:4] == ["cannot", "be", "told:"]


def test_where_no_relative_strength_can_be_a_number_is_proposed() -> None:
    model = nn.Embedding(8, 2, sparse=True)
    found = check_model(model, lambda x: model(x).square().mean(), (torch.arange(8),), rounds=1)
    assert found["relative"]["refused"]
    assert not any("tacit.Relative" in line for line in table_lines(found))
    assert any("tacit.GradientPenalty(model, 2**-6" in line for line in table_lines(found))


def test_a_batch_may_be_a_dict_and_tied_weights_stay_tied() -> None:
    torch.manual_seed(0)
    embedding, head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
    head.weight = embedding.weight
    model, tokens = nn.Sequential(embedding, head), torch.randint(8, (32, 5))

    def loss(batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["tokens"].flatten())

    found = check_model(model, loss, ({"tokens": tokens},), rounds=1)
    assert found["exact"]["relative_error"] < found["exact"]["tolerance"]
    assert not any("error" in row for row in found["steps"].values())
    assert head.weight is embedding.weight
    assert head.weight.dtype == torch.float32


def test_the_worst_case_fits_too() -> None:
    """Everything fails with a long sentence of its own, and every number is long."""
    model = nn.Linear(3, 1)
    found = check_model(model, lambda x: model(x).square().mean(), (torch.randn(16, 3),), rounds=6)
    for row in found["steps"].values():
        row |= {"milliseconds": 123456.789, "peak_bytes": 98765432109, "times_plain": 123.456}
        row |= {"times_plain_interval": [99.99, 1234.5], "peak_times_plain": 12.34}
    found |= {"model": "A" * 90, "parameters": 123456789012, "batch_size": 65536, "rows": 32768}
    assert fits(table_lines(found)), "\n".join(table_lines(found))
    for number, name in enumerate(("exact", "strengths", "relative")):
        found[name] = {"error": f"{number} " + "a sentence without an end " * 20, "refused": True}
    for name in list(found["steps"])[1:4]:
        found["steps"][name] = {"error": name + " a sentence without an end" * 20, "refused": False}
    assert fits(table_lines(found)), "\n".join(table_lines(found))
