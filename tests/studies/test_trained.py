"""Kept weights, and `tacit measure --run`: a run is measured as it was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from in_process import InProcess, Listener, study
from tacit._util.errors import InputError, TacitError
from tacit.cli import app
from tacit.diagnostics import measure
from tacit.studies import runner
from tacit.studies.data.datasets import FACTS
from tacit.studies.data.facts import Data
from tacit.studies.data.load import load
from tacit.studies.describe.spec import RunSpec, make_run
from tacit.studies.describe.study import Study, load_study, parse_study
from tacit.studies.execute.local import LocalExecutor
from tacit.studies.store.folder import ResultsFolder, read_rows
from tacit.studies.train.module_program import build
from tacit.studies.train.packing import Fleet
from tacit.studies.trained import find_run, trained_problem


def kept(**fixed: Any) -> Study:
    return load_study(study(epochs=2, **fixed), overrides=["keep_weights=true"])


def weights_on_disk(folder: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in (folder / "weights").iterdir()}


def trained(tmp_path: Path, **fixed: Any) -> tuple[RunSpec, dict[str, Any]]:
    """One run whose minibatch is its whole training set, its weights kept, and its row."""
    small = {"train_size": 24, "batch_size": 24, "epochs": 3, "evaluations": 1, "learning_rate": 0.05, **fixed}
    one = load_study(parse_study({"name": "one", "fixed": small}), overrides=["keep_weights=true"])
    (row,) = runner.run(one, tmp_path / "runs", executor=InProcess(load(small.get("dataset", "mnist1d"))))
    return one.runs[0], row


# -- keeping ----------------------------------------------------------------------------------------------------------
def test_every_run_that_did_not_diverge_has_a_file_that_gives_its_model_back(tmp_path: Path, data: Data) -> None:
    small = kept()
    rows = runner.run(small, tmp_path, executor=InProcess(data))
    finished = [row for row in rows if row["status"] == "finished"]
    assert 0 < len(finished) < len(rows)
    assert set(weights_on_disk(tmp_path)) == {row["run"] for row in finished}
    for row in finished:
        run = make_run(row["spec"])
        model = build(run, FACTS["mnist1d"])
        model.load_state_dict(load_file(tmp_path / "weights" / f"{run.hash}.safetensors"))  # by anybody's reader
        inputs, targets = (torch.from_numpy(part[:64]) for part in (data.train_inputs, data.train_targets))
        loss = torch.nn.functional.cross_entropy(model(inputs), targets).item()
        assert loss == pytest.approx(row["full_loss"], rel=1e-6)  # float32, summed in another order


def test_weights_change_neither_the_identity_of_a_study_nor_its_rows(tmp_path: Path, data: Data) -> None:
    plain, small = study(epochs=2), kept()
    assert plain.hash == small.hash
    assert "keep_weights" not in plain.model_dump()  # a stored study has the bytes that it always had
    runner.run(plain, tmp_path / "plain", executor=InProcess(data))
    runner.run(small, tmp_path / "kept", executor=InProcess(data))
    assert read_rows(tmp_path / "plain") == read_rows(tmp_path / "kept")
    assert not (tmp_path / "plain" / "weights").exists()
    assert ResultsFolder(tmp_path / "kept").studies()[0].keep_weights


def test_a_stopped_study_keeps_the_weights_of_one_that_was_not_stopped(tmp_path: Path, data: Data) -> None:
    class Stops(InProcess):
        def run(self, tasks: Any, watch: Any) -> None:
            def stop(fleet: Fleet, message: Any) -> None:
                watch(fleet, message)
                if message.kind == "checkpoint":
                    raise KeyboardInterrupt

            super().run(tasks, stop)

    small = kept()
    runner.run(small, tmp_path / "whole", executor=InProcess(data))
    for _ in range(20):
        try:
            runner.run(small, tmp_path / "stopped", executor=Stops(data, checkpoint_every=3))
            break
        except KeyboardInterrupt:
            pass
    assert weights_on_disk(tmp_path / "stopped") == weights_on_disk(tmp_path / "whole")


def test_a_row_is_never_stored_before_its_weights(tmp_path: Path, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(self: ResultsFolder, run: str, content: bytes) -> None:
        raise TacitError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(ResultsFolder, "write_weights", full_disk)
        with pytest.raises(TacitError, match="full"):
            runner.run(kept(), tmp_path, executor=InProcess(data))
    assert not list(tmp_path.glob("fleets/*/rows.jsonl")) or weights_on_disk(tmp_path)
    rows = runner.run(kept(), tmp_path, executor=InProcess(data))
    assert set(weights_on_disk(tmp_path)) == {row["run"] for row in rows if row["status"] == "finished"}


def test_worker_processes_send_the_same_weights(tmp_path: Path, data: Data) -> None:
    small = load_study(kept(), overrides=["seeds=0:1", "learning_rate=0.1"])
    runner.run(small, tmp_path / "in_process", executor=InProcess(data))
    with LocalExecutor(1) as executor:
        runner.run(small, tmp_path / "worker", executor=executor)
    found = weights_on_disk(tmp_path / "worker")
    assert len(found) == 2
    assert found == weights_on_disk(tmp_path / "in_process")


def test_a_finished_run_is_not_trained_again_for_its_weights_and_a_warning_says_so(tmp_path: Path, data: Data) -> None:
    runner.run(study(epochs=2), tmp_path, executor=InProcess(data))
    listener = Listener()
    runner.run(kept(), tmp_path, executor=InProcess(data), watcher=listener)
    assert not (tmp_path / "weights").exists()
    (text,) = listener.texts
    assert "4 runs of small finished before keep_weights was set" in text
    assert "--into" in text


def test_keep_weights_is_true_or_false() -> None:
    with pytest.raises(InputError, match="keep_weights is 'yes'; expected true or false"):
        load_study(study(epochs=2), overrides=["keep_weights=yes"])


# -- measuring --------------------------------------------------------------------------------------------------------
KINDS: dict[str, dict[str, Any]] = {
    "mnist1d": {"weight_decay": 0.01, "augmentation": "shift"},
    "conv1d": {"model": "conv1d", "width": 3, "depth": 2, "strength": 0.1},
    "bfloat16": {"precision": "bfloat16"},
    "fashion_mnist": {"dataset": "fashion_mnist", "image_size": 7, "width": 8, "depth": 1},
    "cifar10": {"dataset": "cifar10", "model": "wide_resnet", "depth": 10, "width": 1, "image_size": 8},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "learning_rate": 0.001},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_measured_as_it_was_trained(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "dataset" in KINDS[kind]:
        monkeypatch.setenv("TACIT_DATA", str(request.getfixturevalue("data_dir")))
    run, row = trained(tmp_path, test_size=50, **KINDS[kind])
    folder, found = find_run(tmp_path / "runs", run.hash[:6])
    assert found == run
    problem = trained_problem(folder, run)
    seen = measure(problem, batch_size=24)
    # Both are sums of float32 numbers in another order; bfloat16 rounds its activations to 8 bits as well.
    close = {"rel": 0.05 if kind == "bfloat16" else 2e-4}
    decay = (
        0.0
        if kind == "adamw"
        else run.weight_decay / 2 * sum(float(p.square().sum()) for p in problem.parameters.values())
    )
    assert seen.full_loss.value + decay == pytest.approx(row["full_loss"], **close)
    if run.augmentation == "none":  # C_reg of a row is of augmented minibatches; with B = N it is ‖∇C‖²/4
        assert seen.implicit_regularizer[24].value == pytest.approx(row["implicit_regularizer"], **close)


OWN = """
import numpy as np
from torch import nn

def load():
    draws = np.random.default_rng(0)
    inputs, targets = draws.normal(size=(48, 6)), draws.integers(0, 3, size=48)
    return inputs[:24], targets[:24], inputs[24:], targets[24:]

def make_model(width):
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(0.5), nn.Linear(width, 3))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept_own_code.py").write_text(OWN)
    monkeypatch.delitem(__import__("sys").modules, "kept_own_code", raising=False)
    return {"dataset": "kept_own_code:load", "model": "kept_own_code:make_model", "model_arguments": {"width": 5}}


def test_an_own_model_on_own_data_is_measured_in_evaluation_mode(tmp_path: Path, own: dict[str, Any]) -> None:
    run, row = trained(tmp_path, **own)
    result = CliRunner().invoke(app, ["measure", "runs", "--run", run.hash[:4], "--json", "seen.json"])
    assert result.exit_code == 0, result.output
    assert "imports kept_own_code:load from" in result.output
    assert f"run {run.hash}" in result.output
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["full_loss"] == pytest.approx(row["full_loss"], rel=1e-5)  # float32 sums in another order
    assert "implicit_regularizer/24" in seen  # at the batch size of the run
    move = ["--learning-rate", "0.1", "--batch-size", "4", "--new-batch-size", "12", "--no-price"]
    advised = CliRunner().invoke(app, ["advise", "runs", "--run", run.hash[:4], *move])
    assert advised.exit_code == 0, advised.output
    assert "From ε = 0.1, B = 4 to B' = 12" in advised.output


def test_an_own_module_that_has_changed_is_refused(tmp_path: Path, own: dict[str, Any]) -> None:
    run, _ = trained(tmp_path, **own)
    (tmp_path / "kept_own_code.py").write_text(OWN + "# changed\n")
    result = CliRunner().invoke(app, ["measure", "runs", "--run", run.hash])
    assert "has changed" in str(result.exception)


def test_a_run_is_found_by_the_first_digits_of_its_hash(tmp_path: Path, data: Data) -> None:
    small = kept()
    runner.run(small, tmp_path / "inside", executor=InProcess(data))
    finished = [row for row in read_rows(tmp_path / "inside") if row["status"] == "finished"]
    diverged = next(row for row in read_rows(tmp_path / "inside") if row["status"] == "diverged")
    hash = finished[0]["run"]
    for path in (tmp_path, tmp_path / "inside"):  # a folder of results, and a folder of such folders
        assert find_run(path, hash.upper())[1].hash == hash
    with pytest.raises(InputError, match=r"--run  begins 8 runs \(.*, …\); give more digits"):
        find_run(tmp_path, "")
    with pytest.raises(InputError, match=r"--run zz begins no finished run of .*tacit export"):
        find_run(tmp_path, "zz")
    with pytest.raises(InputError, match="diverged"):
        find_run(tmp_path, diverged["run"])


def test_weights_that_are_missing_damaged_or_of_another_run_are_refused(tmp_path: Path, data: Data) -> None:
    runner.run(kept(), tmp_path, executor=InProcess(data))
    folder = ResultsFolder(tmp_path)
    first, second = (
        make_run(row["spec"]) for row in read_rows(tmp_path) if row["status"] == "finished" and row["spec"]["seed"] == 0
    )
    path, right = folder.weights_path(first.hash), folder.weights_path(first.hash).read_bytes()
    path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    with pytest.raises(TacitError, match="does not match its checksum"):
        trained_problem(folder, first)
    path.write_bytes(folder.weights_path(second.hash).read_bytes())
    with pytest.raises(TacitError, match=f"holds the parameters of run {second.hash}"):
        trained_problem(folder, first)
    path.unlink()
    with pytest.raises(InputError, match=r"has no weights.*keep_weights = true"):
        trained_problem(folder, first)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--run", "ab"], "--run ab is given alone"),
        (["runs"], "the folder runs is given alone"),
        (["runs", "--run", "ab", "--problem", "mine:make"], "--problem is given beside FOLDER or --run"),
        ([], "there is no model; expected --problem module:function, or a trained run"),
        (["nowhere", "--run", "ab"], "nowhere holds no study"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, ["measure", *arguments])
    assert isinstance(result.exception, InputError)
    assert expected in str(result.exception)
