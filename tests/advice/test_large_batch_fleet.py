"""The fleets that `benchmarks/advice.py` judges with make the steps of the package."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch


@pytest.mark.parametrize("micro", [4, 32])
def test_the_benchmarks_penalised_step_is_that_of_the_package(monkeypatch, micro):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    fleet, tasks = (__import__(name) for name in ("large_batch_fleet", "large_batch_tasks"))
    task = replace(tasks.TASKS["mnist1d"], sizes=(6, 8, 8, 3), train_size=64, batch_size=4, new_batch_size=32)
    draws = torch.Generator().manual_seed(0)
    examples = torch.randn(64, 6, generator=draws), torch.randint(3, (64,), generator=draws)
    arrays = tasks.Arrays(examples, examples, examples)
    # Two ways of adding float32 numbers; a missing term is off by a share of λ = 0.5.
    assert fleet.difference_from_package(task, arrays, strength=0.5, micro=micro) < 1e-5
    for name in ("large_batch_fleet", "large_batch_tasks"):
        sys.modules.pop(name)
