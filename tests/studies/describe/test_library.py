"""The library of study files: four scales, by dataset or mixed, each figure where the paper has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit import InputError
from tacit.cli import app
from tacit.report import catalogue
from tacit.studies.cost import cost, in_digits
from tacit.studies.describe import library as module
from tacit.studies.describe.library import datasets, library, library_folder, results_name, study_names
from tacit.studies.describe.study import load_study


def test_the_first_two_scales_are_on_mnist1d_unless_said_otherwise() -> None:
    assert library(None, "quick").keys() == library("mnist1d", "quick").keys()
    assert {run.dataset for study in library(None, "standard").values() for run in study.runs} == {"mnist1d_16k"}


def test_the_papers_scale_mixes_its_two_datasets_and_can_be_asked_for_one() -> None:
    assert datasets("paper") == ["cifar10", "fashion_mnist"]
    parts = [library(name, "paper") for name in datasets("paper")]
    assert {run.dataset for study in parts[0].values() for run in study.runs} == {"cifar10"}
    assert {*parts[0], *parts[1]} == {*library(None, "paper")}


@pytest.mark.parametrize("name", study_names())
def test_every_study_file_can_be_read_and_feeds_a_figure(name: str) -> None:
    study = load_study(library_folder() / f"{name}.toml")
    assert study.runs
    assert study.figures.keys() <= catalogue().keys()


def test_studies_for_one_folder_of_results_have_different_names() -> None:
    for folder in {name.rpartition("/")[0] for name in study_names()}:
        names = [load_study(path).name for path in (library_folder() / folder).glob("*.toml")]
        assert len(names) == len(set(names))


def test_files_outside_the_scales_are_no_part_of_them() -> None:
    assert {"cifar10/rates", "fashion_mnist/paper-mlp", "mnist1d/conv/rates"} <= {*study_names()}
    assert datasets("quick") == ["mnist1d"]


def test_a_scale_without_files_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "library_folder", lambda: tmp_path)
    with pytest.raises(InputError, match="no study files"):
        library(None, "paper")


@pytest.mark.parametrize(
    "dataset,scale,name",
    [(None, "quick", "mnist1d-quick"), (None, "paper", "paper"), ("cifar10", "paper", "cifar10-paper")],
)
def test_results_have_a_folder_of_their_own(dataset: str | None, scale: str, name: str) -> None:
    assert results_name(dataset, scale) == name


# -- tacit reproduce --list -------------------------------------------------------------------------------------------
def test_the_list_has_the_cost_of_every_figure_of_the_paper() -> None:
    result = CliRunner().invoke(app, ["reproduce", "--list", "--scale", "paper"])
    assert result.exit_code == 0, result.output
    for figure in {*catalogue()} - {"orders"}:  # which the paper argues for without showing it
        (line,) = (line for line in result.output.splitlines() if line.startswith(f"{figure} "))
        assert len(re.findall(r" \d\.\de\d+", line)) == 2  # updates and operations
    total = cost(run for study in library(None, "paper").values() for run in study.runs)
    assert f" {in_digits(total.operations)}\n" in result.output


def test_the_list_of_one_figure_has_that_figure_alone() -> None:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["reproduce", "--list", "--figure", "1b"])
    assert [line.split()[0] for line in result.output.splitlines()[2:]] == ["1b", "all"]


def test_the_list_says_in_a_few_words_what_each_study_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = CliRunner().invoke(app, ["studies", "list"]).output.splitlines()
    assert [line.split()[0] for line in lines] == study_names()
    assert max(map(len, lines)) <= 80
    assert all(len(line.split()) > 1 for line in lines)
    (rates,) = (line for line in lines if line.startswith("mnist1d/quick/batch-rates "))
    assert rates.split(maxsplit=1)[1] == "B, ε; figures 3a 6b"
