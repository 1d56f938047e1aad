"""`tacit verify` on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.cli import app
from tacit.theory import figures, modified_losses
from tacit.theory.figures import draw_study, picture_paths
from tacit.theory.study import ConvergenceStudy, Finding
from typed_commands import Typed


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the three statements on gradient descent: the command is tested, not the theory."""
    from tacit.theory import experiments, verification

    monkeypatch.setattr(verification, "all_experiments", lambda scape, *rest: [experiments.gradient_descent(scape)])
    monkeypatch.setattr(verification, "fixed_time_measurements", lambda *_: [])


def test_a_problem_is_verified_and_stored(quick: None, tmp_path: Path) -> None:
    target, figure = tmp_path / "out.json", tmp_path / "out.png"
    result = CliRunner().invoke(
        app, ["verify", "--problem", "logistic", "--json", str(target), "--figure", str(figure)]
    )
    assert result.exit_code == 0, result.output
    assert "3 of 3 orders" in result.output
    assert json.loads(target.read_text())["passed"] is True
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_missed_order_exits_with_one(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modified_losses, "quarter_of", lambda squared: squared / 2)
    result = CliRunner().invoke(app, ["verify", "--problem", "logistic"])
    assert result.exit_code == 1
    assert "fail" in result.output


def test_a_problem_of_ones_own_is_imported(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_problem_module.py").write_text(
        "from tacit.theory import problems\ndef make():\n    return problems.quadratic(batches=2)\n"
    )
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["verify", "--problem", "own_problem_module:make"])
    assert result.exit_code == 0, result.output
    assert "make" in result.output


def test_an_update_of_ones_own_is_verified_drawn_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_update_module.py").write_text(
        "def make(scape):\n    return lambda w, rate: w - rate * scape.gradient(w - rate * scape.gradient(w))\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["--problem", "logistic", "--json", "out.json", "--figure", "out.svg"]
    result = CliRunner().invoke(app, ["verify", "--update", "own_update_module:make", *arguments])
    assert result.exit_code == 0, result.output
    assert "3 of 3 orders" in result.output
    assert "logistic: follows C − 0.25 ε‖∇C‖²" in result.output
    assert json.loads(Path("out.json").read_text())["losses"][0]["penalty"] == pytest.approx(-0.25)
    assert Path("out.svg").read_text().count("<svg") == 1


@pytest.mark.parametrize(
    "arguments,said",
    [
        (("--problem", "rosenbrock"), "use one of quadratic, logistic, tanh_mlp"),
        (("--problem", "math:pi2"), "cannot be imported"),
        (("--problem", "math:pi"), "own code is imported from there only"),
        (("--problem", "own_wrong_module:pi"), "expected a function"),
        (("--problem", "own_wrong_module:sqrt"), "raised TypeError"),
        (("--problem", "own_wrong_module:three"), "returned a int; expected a tacit.Problem"),
        (("--update", "sgdd"), "use one of gd, heavy_ball"),
        (("--update", "math:pi2"), "cannot be imported"),
        (("--update", "own_wrong_module:sqrt", "--problem", "logistic"), "raised TypeError"),
        (("--update", "json:dumps2"), "cannot be imported"),
        (("--json", "no-such-folder/out.json"), "does not exist"),
        (("--json", "."), "is a folder"),
        (("--json", "out.txt"), "expected .json"),
        (("--figure", "out.txt"), "expected .png or .svg or .pdf"),
        (("--picture", "."), "is a folder"),
        (("--picture", "picture.txt"), "expected .png or .svg or .pdf"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(
    quick: None, arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    (tmp_path / "own_wrong_module.py").write_text("from math import pi, sqrt\ndef three(): return 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_wrong_module", raising=False)
    assert said in typed("verify", *arguments).refusal()


def test_the_picture_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = picture_paths(learning_rate=0.03, epochs=15)
    monkeypatch.setattr(figures, "picture_paths", lambda **_: few)
    target = tmp_path / "picture.png"
    result = CliRunner().invoke(app, ["verify", "--picture", str(target)])
    assert result.exit_code == 0, result.output
    assert target.read_bytes().startswith(b"\x89PNG")


def test_in_the_picture_sgd_follows_the_modified_flow_and_leaves_gradient_flow() -> None:
    paths = picture_paths(learning_rate=0.02, epochs=200, points=5)
    end = paths["SGD"][-1]
    assert (end - paths["modified flow"][-1]).norm() < 0.1 * (end - paths["gradient flow"][-1]).norm()
    stopped = paths["gradient flow"]
    assert (stopped[-1] - stopped[-2]).norm() < 1e-6  # in the valley; SGD moves on along it


@pytest.mark.parametrize("option", ["--figure", "--picture"])
def test_a_figure_without_matplotlib_is_refused_before_anything_is_measured(
    quick: None, option: str, monkeypatch: pytest.MonkeyPatch, typed: Typed, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = typed("verify", option, tmp_path / "out.svg")
    assert "pip install '.[figures]'" in ended.refusal()
    assert ended.out == ""


def test_a_figure_with_nothing_measured_is_still_drawn(tmp_path: Path) -> None:
    empty = Finding("a", "b", 2, "toy", (), (), "nothing to see")
    assert draw_study(ConvergenceStudy((empty,)), tmp_path / "empty.svg").exists()
