"""Rows as a table: every run once, every setting a column, for whatever tool is installed."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import tacit.studies
from tacit.studies import tabular


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tiny runs, one of which diverges."""
    into = tmp_path_factory.mktemp("results") / "tiny"
    raw = {
        "name": "tiny",
        "fixed": {"train_size": 64, "batch_size": 16, "epochs": 2, "width": 4, "evaluations": 2},
        "grid": [{"learning_rate": [0.1, 1e20]}],
    }
    tacit.studies.run(tacit.studies.Study.model_validate(raw), into=into, workers=1)
    return into


def test_a_record_has_the_settings_and_the_results_of_its_run(folder: Path) -> None:
    rows, found = tacit.studies.read_rows(folder), tacit.studies.records(folder)
    assert [record["run"] for record in found] == [row["run"] for row in rows]
    for record, row in zip(found, rows, strict=True):
        assert record["learning_rate"] == row["spec"]["learning_rate"]
        assert record["best_test_accuracy"] == row["best_test_accuracy"]
    assert {record["status"] for record in found} == {"finished", "diverged"}


def test_csv_can_be_read_back(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    assert tabular.write_csv(folder, path) == 2
    with path.open(newline="") as lines:
        back = list(csv.DictReader(lines))
    assert [float(line["learning_rate"]) for line in back] == [r["learning_rate"] for r in tabular.records(folder)]
    assert [line["final_test_accuracy"] == "" for line in back] == [line["status"] == "diverged" for line in back]


def test_the_public_names_are_listed() -> None:
    assert {"run", "records", "read_rows", "load_study"} <= set(dir(tacit.studies))
