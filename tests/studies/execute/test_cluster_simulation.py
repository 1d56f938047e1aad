"""The simulated cluster accounts for every worker-second, and lost workers cost what they must."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tacit.studies.describe.study import parse_study
from tacit.studies.train.packing import Fleet

FLEETS = [
    Fleet((run,))
    for run in parse_study(
        {
            "name": "many",
            "fixed": {"train_size": 64, "batch_size": 16, "width": 8, "depth": 1, "epochs": 1, "evaluations": 1},
            "grid": {"learning_rate": [0.1, 0.2, 0.3, 0.4], "seeds": "0:10"},
        }
    ).runs
]
HOUR = 3600.0


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "cluster_simulation.py"
    location = importlib.util.spec_from_file_location("cluster_simulation", path)
    module = importlib.util.module_from_spec(location)
    sys.modules["cluster_simulation"] = module  # dataclasses look their module up
    location.loader.exec_module(module)
    return module


def simulated(simulation: ModuleType, *, hours: float = 1.0, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "workers": 4, "failures_per_hour": 0.0, "start_seconds": 0.0, "checkpoint_seconds": 10.0, "seed": 0,
    }  # fmt: skip
    found: dict[str, Any] = simulation.simulate([FLEETS], seconds=lambda fleet: hours * HOUR, **{**settings, **changes})
    return found


@pytest.mark.parametrize("workers,hours", [(1, 40), (4, 10), (7, 6), (100, 1)])
def test_equal_fleets_without_failures_take_as_many_rounds_as_they_must(
    simulation: ModuleType, workers: int, hours: float
) -> None:
    found = simulated(simulation, workers=workers)
    assert found["hours"] == pytest.approx(hours)
    assert found["utilisation"] == pytest.approx(40 / (workers * hours))
    assert (found["losses"], found["given_up"], found["starts"]) == (0, 0, min(workers, 40))


def test_a_worker_is_started_once_and_its_start_is_not_work(simulation: ModuleType) -> None:
    found = simulated(simulation, workers=1, start_seconds=HOUR)
    assert found["hours"] == pytest.approx(41)
    assert found["utilisation"] == pytest.approx(40 / 41)


def test_lost_workers_repeat_at_most_the_time_between_checkpoints(simulation: ModuleType) -> None:
    found = simulated(simulation, failures_per_hour=0.2, checkpoint_seconds=60.0)
    assert found["losses"] > 3
    assert 0 < found["repeated"] * 4 * found["hours"] * HOUR <= 60.0 * found["losses"]
    assert found["starts"] == 4 + found["losses"]


def test_rare_checkpoints_cost_more_than_frequent_ones(simulation: ModuleType) -> None:
    often, seldom = (
        simulated(simulation, failures_per_hour=0.2, checkpoint_seconds=seconds)["repeated"] for seconds in (10.0, 1800)
    )
    assert seldom > 10 * often


def test_the_same_seed_loses_the_same_workers(simulation: ModuleType) -> None:
    first, second = (simulated(simulation, failures_per_hour=0.2) for _ in range(2))
    other = simulated(simulation, failures_per_hour=0.2, seed=1)
    assert first == second
    assert first != other


def test_long_fleets_on_machines_that_come_and_go_are_finished(simulation: ModuleType) -> None:
    found = simulated(simulation, hours=100.0, failures_per_hour=0.05)
    assert found["losses"] > 100
    assert found["given_up"] == 0
    assert found["utilisation"] > 0.9
