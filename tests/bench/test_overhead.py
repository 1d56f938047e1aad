"""benchmarks/overhead.py compares what it says, and counts calls; no time is claimed here."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import tacit
from tacit.bench import accuracy, steps

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def overhead() -> ModuleType:
    location = importlib.util.spec_from_file_location("overhead", ROOT / "benchmarks" / "overhead.py")
    module = importlib.util.module_from_spec(location)
    sys.modules["overhead"] = module
    location.loader.exec_module(module)
    return module


def test_the_quick_run_writes_every_model_and_method(
    overhead: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overhead, "QUICK_ROUNDS", 1)
    overhead.main(["--quick", "--json", str(tmp_path / "overhead.json")])
    read = json.loads((tmp_path / "overhead.json").read_text())
    assert set(read["models"]) == set(overhead.MODELS)
    assert len(read["held_out"]) == 5
    for row in (*read["models"].values(), *read["held_out"].values()):
        assert row["auto_is"] in ("double_backward", "gram")
        assert all(row[method]["interval"] is None for method in overhead.METHODS)  # of one round
    assert read["rounds"] == 1
    assert {"versions", "commit", "machine"} <= set(read)
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*overhead.MODELS, *overhead.HELD_OUT))
    calls = {method: seen["calls"] for method, seen in read["second_step_of_a_two_layer_mlp"].items()}
    assert all(f"{method}: {number} calls in" in shown for method, number in calls.items())


@pytest.mark.parametrize("place", range(8))
def test_the_steps_that_are_compared_apply_the_same_gradient(overhead: ModuleType, place: int) -> None:
    parts = list((overhead.MODELS | overhead.HELD_OUT).values())[place]
    made = overhead.workload(*parts)
    reference = accuracy.oracle(made)
    for name in (steps.NAIVE, *overhead.METHODS):
        # float32, where the penalty's part is a hundredth of the gradient
        assert accuracy.relative_error(steps.STEPS[name], made, reference) < 1e-3


def test_a_workload_is_the_same_in_every_run_and_leaves_the_generator_alone(overhead: ModuleType) -> None:
    before = torch.get_rng_state()
    first, second = (overhead.workload(*overhead.MODELS["encoder layer, width 32, B=16"]) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.inputs, second.inputs)
    assert all(map(torch.equal, first.model.parameters(), second.model.parameters()))


def test_microseconds_are_differences_of_the_same_round(overhead: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    naive = [1.0, 3.0, 2.0, 9.0, 5.0, 4.0]
    seconds = {name: [each + 100e-6 for each in naive] for name in overhead.METHODS} | {steps.NAIVE: naive}
    monkeypatch.setattr(overhead, "time_interleaved", lambda made, rounds: seconds)
    row = overhead.above_naive(overhead.workload(*next(iter(overhead.MODELS.values()))), rounds=6)
    assert row["gram"]["microseconds_above_naive"] == pytest.approx(100)
    assert row["gram"]["interval"] == pytest.approx([100, 100])


class CountedPenalty:
    """Three named functions in its second step (a method, and a generator that is entered and resumed), more before."""

    def __init__(self, model: object, strength: float, *, method: str) -> None:
        self.steps = 0

    def backward(self, closure: Callable[[], Tensor]) -> None:
        self.steps += 1
        for _ in range(100 if self.steps == 1 else 1):
            list(self.once())
        closure()
        (lambda: sum(number for number in ()))()

    def once(self) -> Iterator[int]:
        yield 1


def test_calls_are_counted_in_the_second_step_and_comprehensions_apart(
    overhead: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "SOURCE", __file__)
    monkeypatch.setattr(tacit, "GradientPenalty", CountedPenalty)
    counted = overhead.traced("gram")
    assert counted == {"calls": 3, "comprehensions_and_lambdas": 2, "files": 1}


def test_the_step_that_is_traced_is_one_of_the_package(overhead: ModuleType) -> None:
    for method in overhead.CALLS_AND_FILES:
        counted = overhead.traced(method)
        assert counted["calls"] > counted["files"] > 1
        assert overhead.traced(method) == counted


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--json", "nowhere/at/all.json"]])
def test_bad_input_is_refused_before_anything_is_measured(
    overhead: ModuleType, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        overhead.main(arguments)
    assert "expected at least 1" in (said := capsys.readouterr().err) or "does not exist" in said
