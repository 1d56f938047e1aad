"""`tacit measure` and `tacit advise` as they are typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tacit
from tacit.cli import app

MODULE = """
import torch, tacit
from tacit._util.random_generators import generator
from tacit.studies.data.datasets import FACTS
from tacit.studies.data.load import load
from tacit.studies.train.examples import standardised
from tacit.studies.train.models import mlp

def make(width=8, size=64):
    data = load("mnist1d")
    inputs = standardised(data.train_inputs[:size], FACTS["mnist1d"]).between(0, size).flatten(1)
    model = mlp([40, width, 10], generator(0, "init"))
    targets = torch.from_numpy(data.train_targets[:size].copy())
    return tacit.Problem(model, torch.nn.functional.cross_entropy, (inputs, targets), batch_size=4)

def large():
    return make(2**18)

def broken():
    return 1 / 0

def nonsense():
    return 7
"""
OWN = ["--problem", "own_problems:make"]
MOVE = ["--learning-rate", "0.1", "--batch-size", "4", "--new-batch-size", "32"]


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_problems.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_problems", raising=False)


def test_measure_prints_and_writes_what_the_library_says(tmp_path: Path) -> None:
    file = tmp_path / "seen.json"
    sizes = ["--batch-size", "4", "--batch-size", "16"]
    result = CliRunner().invoke(app, ["measure", *OWN, *sizes, "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "noise scale" in result.output
    row = json.loads(file.read_text())
    assert row["train_size"] == 64
    assert {"implicit_regularizer/4", "implicit_regularizer/16"} <= set(row)


def test_advise_says_the_move_first() -> None:
    result = CliRunner().invoke(app, ["advise", *OWN, *MOVE])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("From ε = 0.1, B = 4 to B' = 32")
    assert "λ_max" in result.output


def test_the_regime_report_of_the_rectified_network_has_both_its_numbers(recwarn: pytest.WarningsRecorder) -> None:
    result = CliRunner().invoke(app, ["advise", *OWN, *MOVE, "--no-stability", "--regime"])
    assert result.exit_code == 0, result.output
    assert "regime at ε = 0.1, B = 4: outside" in result.output
    assert "not computed" not in result.output
    assert not [warning for warning in recwarn.list if "orders" in str(warning.message)]


def test_a_regime_report_that_would_not_fit_into_memory_is_refused_before_anything_is_measured() -> None:
    move = ["--learning-rate", "0.1", "--batch-size", "1", "--new-batch-size", "32"]
    result = CliRunner().invoke(app, ["advise", "--problem", "own_problems:large", *move, "--regime"])
    assert isinstance(result.exception, tacit.InputError)
    assert "expected at most 4. Use a larger --batch-size" in str(result.exception)


def test_what_a_problem_of_ones_own_raises_is_one_sentence() -> None:
    result = CliRunner().invoke(app, ["measure", "--problem", "own_problems:broken"])
    assert isinstance(result.exception, tacit.InputError)
    assert "raised ZeroDivisionError: division by zero" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["measure", *OWN, "--batch-size", "65"], "expected 1 to 64"),
        (["measure", "--problem", "nothing"], "module:function"),
        (["measure", "--problem", "own_problems:nonsense"], "returned a int; expected a tacit.Problem"),
        (["measure", "--json", "no/such/folder/x.json"], "does not exist"),
        (["measure"], "expected --problem module:function, or a trained run"),
        (["advise", *OWN, "--learning-rate", "0.1", "--batch-size", "4"], "nothing to match"),
        (["advise", *MOVE], "expected --problem module:function, or a trained run"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, tacit.InputError)
    assert said in str(result.exception)


def test_advise_refuses_before_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: object, **__: object) -> None:
        raise AssertionError("measured first")

    monkeypatch.setattr("tacit.diagnostics.measure", measured)
    move = ["--learning-rate", "0.1", "--batch-size", "4"]
    for wrong, said in (
        (["--new-batch-size", "100"], "new_batch_size=100 with 64 examples"),
        (["--new-batch-size", "32", "--momentum", "1"], "momentum=1.0; expected 0 <= momentum < 1"),
        ([], "nothing to match"),
    ):
        result = CliRunner().invoke(app, ["advise", *OWN, *move, *wrong])
        assert isinstance(result.exception, tacit.InputError)
        assert said in str(result.exception)


def test_advise_names_the_price_and_the_edge() -> None:
    move = ["--learning-rate", "0.01", "--batch-size", "4", "--new-batch-size", "32", "--momentum", "0.9"]
    result = CliRunner().invoke(app, ["advise", *OWN, *move])
    assert result.exit_code == 0, result.output
    assert "λ*" in result.output
    assert "plain steps" in result.output
    assert "plain steps" not in CliRunner().invoke(app, ["advise", *OWN, *move, "--no-price"]).output
