"""The study files of the paper's scale say what the paper says, share their runs, and really train."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from in_process import train_fleet
from tacit import InputError, cli
from tacit.report import catalogue
from tacit.studies.data.datasets import FACTS
from tacit.studies.data.facts import Data
from tacit.studies.data.load import load
from tacit.studies.describe.library import library, library_folder
from tacit.studies.describe.spec import RunSpec, make_run
from tacit.studies.describe.study import load_study
from tacit.studies.train.packing import Fleet

STUDIES = library(None, "paper")
CIFAR = [name for name in STUDIES if name.endswith("cifar10")]
FASHION = [name for name in STUDIES if name.endswith("fashion-mnist")]


def every(name: str, key: str) -> set[Any]:
    return {getattr(run, key) for run in STUDIES[name].runs}


# -- what the paper says ----------------------------------------------------------------------------------------------
def test_every_figure_of_the_paper_has_its_runs() -> None:
    named = {id for study in STUDIES.values() for id in study.figures}
    assert named == {*catalogue()} - {"orders"}  # which the paper argues for without showing it


def test_a_file_has_the_name_of_its_study() -> None:
    files = sorted((library_folder() / "paper").glob("*.toml"))
    assert [path.stem for path in files] == [load_study(path).name for path in files]


def test_no_run_is_in_two_files() -> None:
    counted = Counter(run.hash for study in STUDIES.values() for run in study.runs)
    assert max(counted.values()) == 1


@pytest.mark.parametrize("name", STUDIES)
def test_the_mean_is_of_the_best_five_of_seven(name: str) -> None:
    study = STUDIES[name]
    assert (study.summary.best, study.summary.of, study.summary.score) == (5, 7, "best_test_accuracy")
    runs_of_a_point = Counter(str({**run.model_dump(), "seed": None}) for run in study.runs)
    assert {*runs_of_a_point.values()} == {7}


@pytest.mark.parametrize("name", CIFAR)
def test_cifar10_is_trained_with_crops_flips_and_l2(name: str) -> None:
    assert every(name, "dataset") == {"cifar10"}
    assert every(name, "model") == {"wide_resnet"}
    assert every(name, "augmentation") == {"crop_flip"}
    assert every(name, "weight_decay") == {5e-4}
    assert every(name, "image_size") == every(name, "test_size") == {None}


def test_whole_batches_leave_out_fewer_than_a_hundred_images() -> None:
    for name in CIFAR:
        assert {50_000 - size for size in every(name, "train_size")} == {80}  # 49,920 = 195 · 256


@pytest.mark.parametrize("name", ["fig1b-cifar10", "fig2b-cifar10", "fig3a-cifar10"])
def test_wrn_10_1_is_trained_for_6400_epochs_at_a_constant_rate(name: str) -> None:
    assert every(name, "depth") == {10}
    assert every(name, "width") == {1}
    assert every(name, "epochs") == {6400}
    assert every(name, "schedule") == {"constant"}


def test_figure_1b_sweeps_strengths_at_two_to_the_minus_nine_and_batch_size_32() -> None:
    runs = STUDIES["fig1b-cifar10"].runs
    assert {run.learning_rate for run in runs if run.strength} == {2**-9}
    assert every("fig1b-cifar10", "batch_size") == {32}
    assert 2**-6 in {run.strength for run in runs}  # the best of both sweeps
    assert 2**-6 in {run.learning_rate for run in runs}
    assert STUDIES["fig1b-cifar10"].figures["1a"] == {"strength": "2^-6"}


def test_figure_2b_has_the_best_strength_in_the_loss() -> None:
    assert every("fig2b-cifar10", "strength") == {2**-6}


def test_figure_3b_makes_ten_million_steps_at_every_batch_size() -> None:
    assert {run.total_updates for run in STUDIES["fig3b-cifar10"].runs} == {10_000_000}
    shared = {run.total_updates for run in STUDIES["fig1b-cifar10"].runs if run.strength}
    assert all(math.isclose(updates, 10_000_000, rel_tol=0.002) for updates in shared)  # whole batches: 0.16 % fewer


def test_figure_4_is_wrn_16_4_with_the_decay_and_n_up_to_16() -> None:
    name = "fig4-cifar10"
    assert (every(name, "depth"), every(name, "width")) == ({16}, {4})
    assert every(name, "schedule") == {"paper_decay"}
    assert every(name, "inner_steps") == {1, 2, 4, 8, 16}
    assert STUDIES[name].figures["4a"] == {"epochs": 400}


@pytest.mark.parametrize("name", FASHION)
def test_appendix_d_is_the_wide_mlp_without_decay_or_augmentation(name: str) -> None:
    assert every(name, "dataset") == {"fashion_mnist"}
    assert (every(name, "model"), every(name, "depth"), every(name, "width")) == ({"mlp"}, {3}, {4096})
    assert every(name, "train_size") == {60_000}
    assert every(name, "weight_decay") == {0.0}
    assert every(name, "augmentation") == {"none"}
    assert every(name, "schedule") == {"constant"}


def test_figure_6_lasts_400_epochs_or_1500000_steps() -> None:
    assert every("fig6a-fashion-mnist", "epochs") == every("fig6b-fashion-mnist", "epochs") == {400}
    assert every("fig6a-fashion-mnist", "batch_size") == {16}
    updates = {run.total_updates for name in ("fig6a", "fig6c") for run in STUDIES[f"{name}-fashion-mnist"].runs}
    assert updates == {1_500_000}
    assert {run.learning_rate for run in STUDIES["fig6c-fashion-mnist"].runs} == {2**-9}


@pytest.mark.parametrize("figure", ["4b", "7b"])
def test_at_fixed_updates_every_n_is_there(figure: str) -> None:
    (study,) = (study for study in STUDIES.values() if figure in study.figures)
    updates = study.figures[figure]["updates"]
    assert {run.inner_steps for run in study.runs if run.total_updates == updates} == {1, 2, 4, 8, 16}
    assert figure != "7b" or updates == 6_000_000


@pytest.mark.parametrize("name", STUDIES)
def test_a_dry_run_prints_the_plan_and_the_cost(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = library_folder() / "paper" / f"{name}.toml"
    cli.app(["run", str(file), "--dry-run"], standalone_mode=False)
    plan, models = capsys.readouterr().out.splitlines()
    assert plan.startswith(f"{name}: {len(STUDIES[name].runs)} runs in ")
    assert plan.endswith(" floating-point operations")
    # By hand: 448 + 4,641 + 14,433 + 57,537 + 650 of stem, three blocks and head; 16-4 in the same way.
    expected = {"fig4-cifar10": "2,747,536"}.get(name, "77,709" if "cifar10" in name else "36,818,954")
    assert models.endswith(f": {expected} parameters")


# -- two updates of each ----------------------------------------------------------------------------------------------
def kinds(name: str) -> dict[str, RunSpec]:
    """One run of each kind that a study has: batch size, inner steps, with and without a penalty."""
    found: dict[str, RunSpec] = {}
    for run in STUDIES[name].runs:
        penalty = "-penalised" if run.strength else ""
        found.setdefault(f"{name}-B{run.batch_size}-n{run.inner_steps}{penalty}", run)
    return found


KINDS = {key: run for name in STUDIES for key, run in kinds(name).items()}


def first_updates(run: RunSpec) -> RunSpec:
    """The same run, ended after two updates (n of them where a minibatch has more), on a few examples."""
    spec = {key: value for key, value in run.model_dump().items() if key != "epochs"}
    two = max(2, run.inner_steps)
    small = {"updates": two, "train_size": run.batch_size, "test_size": 16, "evaluations": 1}
    return make_run({**spec, **small})


@cache
def made_up(dataset: str) -> Data:
    """Noise in the shape of the dataset: enough to train on, never missing."""
    facts, draw = FACTS[dataset], np.random.default_rng(0)

    def images(count: int) -> np.ndarray:
        return draw.integers(0, 256, (count, *facts.shape), dtype=np.uint8)

    return Data(images(512), draw.integers(0, facts.classes, 512), images(16), draw.integers(0, facts.classes, 16))


def check(row: Mapping[str, Any], run: RunSpec) -> None:
    assert row["status"] == "finished"
    assert row["updates"] == max(2, run.inner_steps)
    assert 0 <= row["final_test_accuracy"] <= 1
    assert math.isfinite(row["full_loss"])
    assert row["implicit_regularizer"] > 0
    assert row["spec"]["learning_rate"] == run.learning_rate


def is_slow(kind: str) -> bool:
    """All but the first of each study with and without a penalty; where there are several n, all but n = 2."""
    name, run = kind.split("-B")[0], KINDS[kind]
    if len(every(name, "inner_steps")) > 1:
        return run.inner_steps != 2
    return kind != next(other for other in kinds(name) if (KINDS[other].strength > 0) == (run.strength > 0))


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * is_slow(kind)) for kind in KINDS])
def test_the_first_two_updates_of_every_kind_of_run_are_trained(kind: str) -> None:
    run = KINDS[kind]
    (row,) = train_fleet(Fleet((first_updates(run),)), made_up(run.dataset))
    check(row, run)


@pytest.mark.parametrize("kind", ["fig1b-cifar10-B32-n1-penalised", "fig6a-fashion-mnist-B16-n1-penalised"])
def test_the_first_two_updates_are_trained_on_the_published_images(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Path(__file__).parents[4] / "shared" / "datasets"
    if "TACIT_DATA" not in os.environ and beside.is_dir():
        monkeypatch.setenv("TACIT_DATA", str(beside))
    if "TACIT_DATA" not in os.environ:
        pytest.skip("no images at hand: set TACIT_DATA to a folder that has them")
    run = KINDS[kind]
    try:
        data = load(run.dataset)
    except InputError as reason:
        pytest.skip(f"the images cannot be read: {reason}")
    (row,) = train_fleet(Fleet((first_updates(run),)), data)
    check(row, run)
