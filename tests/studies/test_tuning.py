"""`tacit tune`: strengths of one point of a study, on examples that are neither trained on nor tested on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tacit
from in_process import train_fleet
from tacit.cli import app
from tacit.studies.describe.study import Study
from tacit.studies.train.packing import Fleet
from tacit.studies.tuning import StrengthArms, point_of, with_validation

FIXED = {
    "train_size": 256,
    "batch_size": 64,
    "epochs": 3,
    "learning_rate": 0.1,
    "width": 8,
    "depth": 1,
    "evaluations": 3,
}


def study(**grid: list[object]) -> Study:
    return Study(name="one-point", fixed=FIXED, grid=[{"seed": [0, 1], **grid}])


def test_scores_are_those_of_the_same_runs_trained_alone() -> None:
    from tacit.studies.data.load import load

    arms = StrengthArms(study(), [0.0, 0.1, 0.2], evaluations=3)
    assert len(arms.trainings) == 2  # λ = 0, and all others together
    scores = list(arms.scores(0.2))
    runs = tuple(sorted(arms.runs[0.2], key=lambda run: run.hash))
    rows = train_fleet(Fleet(runs), with_validation(load("mnist1d"), runs[0]))
    expected = [sum(row["history"]["test_accuracy"][at] for row in rows) / 2 for at in range(3)]
    assert scores == pytest.approx(expected, abs=1e-3)  # two of 3,744 examples: rounding depends on the fleet


def test_validation_examples_are_not_trained_on() -> None:
    from tacit.studies.data.load import load

    data = load("mnist1d")
    held_out = with_validation(data, study().runs[0])
    assert len(held_out.test_inputs) == 4000 - 256
    assert (held_out.test_inputs == data.train_inputs[256:]).all()


def test_several_points_and_no_validation_examples_are_refused() -> None:
    with pytest.raises(tacit.InputError, match=r"2 points .* Fix the others"):
        point_of(study(weight_decay=[0.0, 0.1]))
    everything = Study(name="all", fixed={**FIXED, "train_size": 3968}, grid=[{"seed": [0]}])
    with pytest.raises(tacit.InputError, match=r"leaves 32 of 4000 .* Use train_size=3776"):
        StrengthArms(everything, [0.1], evaluations=3)


def test_the_command_names_the_best_strength_and_writes_every_score(tmp_path: Path) -> None:
    file, out = tmp_path / "study.toml", tmp_path / "tuned.json"
    fixed = "\n".join(f"{key} = {value}" for key, value in FIXED.items())
    file.write_text(f'schema_version = 1\nname = "one"\n[fixed]\n{fixed}\n[[grid]]\nseed = [0]\n')
    shown = CliRunner().invoke(app, ["tune", str(file), "--evaluations", "3", "--json", str(out)])
    assert shown.exit_code == 0, shown.output
    stored = json.loads(out.read_text())
    assert len(stored["arms"]) == 5
    assert [arm["strength"] for arm in stored["arms"]] == pytest.approx([0.0, 0.05, 0.1, 0.2, 0.4])
    best = max((arm for arm in stored["arms"] if arm["status"] == "finished"), key=lambda arm: sum(arm["scores"]))
    assert stored["strength"] == best["strength"]
    assert f"λ = {stored['strength']:.4g} is the best of 5" in shown.output


def test_adam_needs_a_start(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    fixed = "\n".join(f"{key} = {value}" for key, value in FIXED.items())
    file.write_text(f'schema_version = 1\nname = "one"\n[fixed]\n{fixed}\noptimizer = "adamw"\n[[grid]]\nseed = [0]\n')
    shown = CliRunner().invoke(app, ["tune", str(file)])
    assert isinstance(shown.exception, tacit.InputError)
    assert "expected --start" in str(shown.exception)
