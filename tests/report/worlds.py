"""Made-up worlds: rows for real study files from a law of our own, so that verdicts can be tested without training."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tacit.studies.describe.library import library
from tacit.studies.describe.spec import RunSpec
from tacit.studies.describe.study import load_study
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.train.packing import pack

Law = Callable[[RunSpec], float]


def bump(x: float, peak: float) -> float:
    """Accuracy that rises by ten points towards `peak` (log₂) and falls beyond."""
    distance = math.log2(x) - peak
    return 0.6 - (0.1 * (1 - math.exp(-(distance**2) / 8)) if distance < 0 else 0.02 * min(distance, 4))


def paper_world(run: RunSpec) -> float:
    """Accuracy is a function of the regularizer's scale (α + λ)/B alone, with its peak at 2^-3/16."""
    return bump((run.bare_learning_rate + run.strength) / run.batch_size, -7)


def sde_world(run: RunSpec) -> float:
    """Accuracy is a function of the effective rate nα alone: batch size and inner steps play no part of their own."""
    return bump(run.learning_rate + run.strength, -3)


def row_of(run: RunSpec, law: Law, *, scatter: float, status: str) -> dict[str, Any]:
    noise = random.Random(f"{run.hash}")
    accuracy = law(run) + scatter * noise.gauss(0, 1)
    regularizer = 2.0 ** (
        -4 - 2 * math.log2((run.learning_rate + run.strength) / run.learning_rate + run.learning_rate)
    )
    epochs = run.minibatches / run.batches_per_epoch
    count = run.evaluations
    history = {
        "updates": [run.total_updates * (k + 1) // count for k in range(count)],
        "epochs": [epochs * (k + 1) / count for k in range(count)],
        "test_accuracy": [accuracy * (1 - 0.5 ** (k + 1)) for k in range(count)],
        "train_accuracy": [1.0] * count,
        "full_loss": [0.01] * count,
    }
    return {
        "run": run.hash, "fleet": "made up", "spec": run.model_dump(), "status": status, "diverged_at": None,
        "updates": run.total_updates, "epochs": epochs, "best_test_accuracy": accuracy,
        "final_test_accuracy": accuracy - 0.01, "best_train_accuracy": 1.0, "final_train_accuracy": 1.0,
        "full_loss": 0.01 if status == "finished" else None,
        "implicit_regularizer": regularizer if status == "finished" else None, "history": history,
    }  # fmt: skip


@pytest.fixture(scope="session")
def make_world(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder of study folders, filled with the rows of a law."""

    def make(
        law: Law, *, scale: str = "quick", scatter: float = 0.002, only: tuple[str, ...] = (), keep: float = 1.0,
        overrides: tuple[str, ...] = (),
        diverges: Callable[[RunSpec], bool] = lambda run: False, change: Callable[[dict[str, Any]], None] | None = None,
    ) -> Path:  # fmt: skip
        root = tmp_path_factory.mktemp("world")
        folder = ResultsFolder(root)
        for name, found in library(None, scale).items():
            if only and name not in only:
                continue
            study = load_study(found, overrides=overrides)
            with folder.locked():
                folder.open_for(study)
                fleets = pack(study.runs)
                for fleet in fleets[: max(1, round(keep * len(fleets)))]:
                    rows = [
                        row_of(run, law, scatter=scatter, status="diverged" if diverges(run) else "finished")
                        for run in fleet.runs
                    ]
                    for row in rows:
                        row["fleet"] = fleet.id
                        if change:
                            change(row)
                    meta = {"fleet": fleet.id, "runs": len(fleet.runs), "seconds": 1.5,
                            "versions": {"python": "3.11", "tacit": "0"}, "commit": "abc",
                            "machine": {"processor": "a processor", "architecture": "x", "cores": 2}}  # fmt: skip
                    folder.write_rows(fleet.id, rows, meta=meta)
        return root

    return make
