"""Folders of results for tests of the live page: made-up rows, checkpoints and failures, and a hash of everything."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.studies.describe.spec import RunSpec
from tacit.studies.describe.study import Study, parse_study
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.store.rows import Damage, Row, RowFile, read_fleet
from tacit.studies.train import checkpoint
from tacit.studies.train.packing import Fleet


def rates_study(name: str = "rates", *, rates: int = 6, seeds: int = 4, **more: Any) -> Study:
    fixed = {"epochs": 8, "width": 8, "depth": 1, "train_size": 64, "batch_size": 16, "evaluations": 4}
    grid = {"learning_rate": [2.0**-k for k in range(1, rates + 1)], "seed": list(range(seeds))}
    return parse_study({"name": name, "question": "Which rate?", "fixed": fixed, "grid": grid, **more})


def history_of(run: RunSpec, evaluations: int) -> dict[str, list[float]]:
    places = [k + 1 for k in range(evaluations)]
    top = 0.9 - 0.02 * abs(np.log2(run.learning_rate) + 3) + 0.001 * (run.seed % 5)
    accuracies = [float(top * (1 - 0.5**place)) for place in places]
    return {
        "updates": [float(8 * place) for place in places],
        "epochs": [2.0 * place for place in places],
        "test_accuracy": accuracies,
        "train_accuracy": [1.0] * evaluations,
        "full_loss": [0.1] * evaluations,
    }


def row_of(run: RunSpec, fleet: str, *, status: str = "finished") -> dict[str, Any]:
    history = history_of(run, run.evaluations)
    best = max(history["test_accuracy"])
    return {
        "run": run.hash, "fleet": fleet, "spec": run.model_dump(), "status": status, "diverged_at": None,
        "updates": run.total_updates, "epochs": run.epochs, "best_test_accuracy": best, "final_test_accuracy": best,
        "best_train_accuracy": 1.0, "final_train_accuracy": 1.0, "full_loss": 0.1, "implicit_regularizer": 0.01,
        "history": history,
    }  # fmt: skip


def finish(folder: ResultsFolder, fleet: Fleet, *, diverged: int = 0, seconds: float = 4.0) -> None:
    rows = [
        row_of(run, fleet.id, status="diverged" if k < diverged else "finished") for k, run in enumerate(fleet.runs)
    ]
    meta = {"fleet": fleet.id, "runs": len(rows), "seconds": seconds, "ended": "2026-01-01T00:00:00+00:00"}
    folder.write_rows(fleet.id, rows, meta=meta)


def rows_of_fleet(folder: ResultsFolder, fleet: str) -> tuple[Row, ...] | Damage | None:
    """The rows of a finished fleet; None when it is not finished; Damage when they cannot be trusted."""
    found = read_fleet(folder.fleet_folder(fleet))
    return found.rows if isinstance(found, RowFile) else found


def train_a_part(folder: ResultsFolder, fleet: Fleet, done: float, *, cpu_seconds: float = 0.0) -> None:
    """A checkpoint as a worker sends it, with the histories so far."""
    count = round(done * fleet.runs[0].evaluations)
    state = {"done": done, "cpu_seconds": cpu_seconds, "history": [history_of(run, count) for run in fleet.runs]}
    folder.begin(fleet.id)
    folder.write_checkpoint(fleet.id, checkpoint.encode({"0000": np.zeros(100, dtype="float32")}, state))


def make_folder(path: Path, studies: Sequence[Study]) -> tuple[ResultsFolder, list[list[Fleet]]]:
    """A folder with these studies, nothing trained yet, and the fleets of each."""
    folder = ResultsFolder(path)
    with folder.locked():
        fleets = [folder.open_for(study) for study in studies]
    return folder, fleets


def everything(path: Path) -> str:
    """A hash of every name, byte, size and time of change below a folder."""
    digest = hashlib.sha256()
    for found in sorted([path, *path.rglob("*")]):
        facts = os.lstat(found)
        digest.update(f"{found} {facts.st_mode} {facts.st_mtime_ns} {facts.st_ino}\n".encode())
        if found.is_file():
            digest.update(found.read_bytes())
    return digest.hexdigest()
