"""`tacit measure` and `tacit advise` as they are typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import tacit
from tacit._random import generator
from tacit.cli import app
from tacit.studies.train.models import mlp

SMALL = ["--train-size", "64", "--width", "8", "--depth", "1"]


def test_measure_prints_and_writes_what_the_library_says(tmp_path: Path) -> None:
    file = tmp_path / "seen.json"
    sizes = ["--batch-size", "4", "--batch-size", "16"]
    result = CliRunner().invoke(app, ["measure", *SMALL, *sizes, "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "noise scale" in result.output
    row = json.loads(file.read_text())
    assert row["train_size"] == 64
    assert {"implicit_regularizer/4", "implicit_regularizer/16"} <= set(row)


def test_weights_from_a_file_are_the_ones_measured(tmp_path: Path) -> None:
    network = mlp([40, 8, 10], generator(7, "init"))
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    outputs = []
    for more in (["--weights", str(tmp_path / "weights.safetensors")], ["--seed", "7"], []):
        outputs.append(CliRunner().invoke(app, ["measure", *SMALL, *more]).output)
    assert outputs[0].splitlines()[2:6] == outputs[1].splitlines()[2:6] != outputs[2].splitlines()[2:6]


def test_advise_says_the_move_first() -> None:
    move = ["--learning-rate", "0.1", "--batch-size", "4", "--new-batch-size", "32"]
    result = CliRunner().invoke(app, ["advise", *SMALL, *move])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("From ε = 0.1, B = 4 to B' = 32")
    assert "λ_max" in result.output


def test_the_regime_report_of_the_rectified_network_has_both_its_numbers(recwarn: pytest.WarningsRecorder) -> None:
    move = ["--learning-rate", "0.1", "--batch-size", "4", "--new-batch-size", "32"]
    result = CliRunner().invoke(app, ["advise", *SMALL, *move, "--no-stability", "--regime"])
    assert result.exit_code == 0, result.output
    assert "regime at ε = 0.1, B = 4: outside" in result.output
    assert "not computed" not in result.output
    assert not [warning for warning in recwarn.list if "orders" in str(warning.message)]


def test_a_regime_report_that_would_not_fit_into_memory_is_refused_before_anything_is_measured() -> None:
    move = ["--learning-rate", "0.1", "--batch-size", "1", "--new-batch-size", "32"]
    result = CliRunner().invoke(app, ["advise", "--width", "256", *move, "--regime"])
    assert isinstance(result.exception, tacit.InputError)
    assert "expected at most 4. Use --train-size" in str(result.exception)


def test_a_problem_of_ones_own_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch, tacit\n"
        "def make():\n"
        "    data = (torch.randn(32, 3), torch.randn(32, 1))\n"
        "    return tacit.Problem(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, data, batch_size=8)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", "from tacit.cli import main; main()", "measure", "--problem", "mine:make"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "C_reg(8)" in found.stdout


def test_what_a_problem_of_ones_own_raises_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_problem.py").write_text("def make():\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    result = CliRunner().invoke(app, ["measure", "--problem", "broken_problem:make"])
    assert isinstance(result.exception, tacit.InputError)
    assert "raised ZeroDivisionError: division by zero" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["measure", "--dataset", "imagenet"], "use one of mnist1d, mnist1d_16k, fashion_mnist, cifar10"),
        (["measure", "--model", "vit"], "use mlp or wide_resnet"),
        (["measure", "--model", "wide_resnet"], "is for images; mnist1d has none"),
        (["measure", *SMALL, "--batch-size", "65"], "expected 1 to 64"),
        (["measure", "--train-size", "1"], "expected 2 to 4000"),
        (["measure", "--weights", "nowhere.safetensors"], "does not exist"),
        (["measure", "--problem", "nothing"], "module:function"),
        (["measure", "--json", "no/such/folder/x.json"], "does not exist"),
        (["advise", *SMALL, "--learning-rate", "0.1", "--batch-size", "4"], "nothing to match"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, tacit.InputError)
    assert said in str(result.exception)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    save_file({"0.weight": torch.zeros(3, 3)}, tmp_path / "w.safetensors")
    result = CliRunner().invoke(app, ["measure", *SMALL, "--weights", str(tmp_path / "w.safetensors")])
    assert "does not fit the model; expected 0.weight (8, 40)" in str(result.exception)


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
        result = CliRunner().invoke(app, ["advise", *SMALL, *move, *wrong])
        assert isinstance(result.exception, tacit.InputError)
        assert said in str(result.exception)


def test_advise_names_the_price_and_the_edge() -> None:
    move = ["--learning-rate", "0.01", "--batch-size", "4", "--new-batch-size", "32", "--momentum", "0.9"]
    result = CliRunner().invoke(app, ["advise", *SMALL, *move])
    assert result.exit_code == 0, result.output
    assert "λ*" in result.output
    assert "plain steps" in result.output
    assert "plain steps" not in CliRunner().invoke(app, ["advise", *SMALL, *move, "--no-price"]).output
