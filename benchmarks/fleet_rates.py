"""How many updates per second a fleet of runs makes, beside a loop over one run at a time.

    python benchmarks/fleet_rates.py --json benchmarks/results/bench.json

The numbers become the entry `fleets` of that file, which `tacit bench --json` has written.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit._util.files import write_atomically
from tacit._util.random_generators import generator
from tacit._util.timing import time_interleaved
from tacit.bench import steps
from tacit.bench.models import SEED, Workload
from tacit.studies.data.datasets import FACTS
from tacit.studies.data.facts import Data
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train.models import mlp
from tacit.studies.train.packing import Fleet
from tacit.studies.train.training import Training

RUNS, WIDTH, BATCH_SIZE = 24, 64, 32
ROUNDS = 50
MINIBATCHES = 25  # per timed turn; fewer than the fleet's own look for divergence would time its absence


def measure(*, rounds: int) -> dict[str, Any]:
    """Run-updates per second of loops and fleets, in turns, on one thread (a fleet has a core to itself)."""
    with _one_thread():
        workload = _single_run()
        turns = {
            "loop, plain": _loop(steps.plain(workload, steps.LEARNING_RATE)),
            "loop, naive double backward": _loop(steps.naive_double_backward(workload, steps.LEARNING_RATE)),
            "fleet, plain": _fleet(0.0),
            "fleet, exact penalty": _fleet(steps.STRENGTH),
        }
        timings = time_interleaved(turns, rounds=rounds)
    plain = median(timings["loop, plain"]) / MINIBATCHES
    rows = []
    for name, seen in timings.items():
        seconds = median(seen) / MINIBATCHES / (RUNS if name.startswith("fleet") else 1)
        rows.append(
            {
                "step": name,
                "run_updates_per_second": 1 / seconds,
                "times_plain": seconds / plain,
                "rounds": len(seen),
            }
        )
    facts = FACTS["mnist1d"]
    sizes = [facts.features, WIDTH, WIDTH, WIDTH, facts.classes]
    return {"runs": RUNS, "sizes": sizes, "batch_size": BATCH_SIZE, "threads": 1, "rows": rows}


def _single_run() -> Workload:
    facts, draws = FACTS["mnist1d"], generator(SEED, "probe")
    model = mlp([facts.features, WIDTH, WIDTH, WIDTH, facts.classes], generator(SEED, "init"))
    return Workload(
        model,
        torch.randn(BATCH_SIZE, facts.features, generator=draws),
        torch.randint(facts.classes, (BATCH_SIZE,), generator=draws),
    )


def _loop(step: steps.Step) -> steps.Step:
    def turn() -> Tensor:
        for _ in range(MINIBATCHES):
            loss = step()
        return loss

    return turn


def _fleet(strength: float) -> steps.Step:
    """A turn of a fleet that is always in the middle of training: no evaluation falls into it, divergence checks do."""
    runs = tuple(
        RunSpec(
            learning_rate=steps.LEARNING_RATE,
            strength=strength,
            width=WIDTH,
            batch_size=BATCH_SIZE,
            seed=seed,
            epochs=100_000,
            evaluations=1,
        )
        for seed in range(RUNS)
    )
    training = Training(Fleet(runs), _random_data())

    def turn() -> Tensor:
        training.advance(until=training.position + MINIBATCHES)
        return torch.zeros(())

    return turn


def _random_data() -> Data:
    """Random arrays of the dataset's shape: the cost does not depend on the values, and nothing needs to be made."""
    facts, draws = FACTS["mnist1d"], np.random.default_rng(SEED)
    return Data(
        draws.standard_normal((facts.train_size, facts.features)).astype(np.float32),
        draws.integers(facts.classes, size=facts.train_size),
        draws.standard_normal((facts.test_size, facts.features)).astype(np.float32),
        draws.integers(facts.classes, size=facts.test_size),
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    target = parser.parse_args().json
    result = json.loads(target.read_text())
    result["fleets"] = measure(rounds=ROUNDS)
    for row in result["fleets"]["rows"]:
        print(f"{row['step']}: {row['run_updates_per_second']:.0f} run-updates/s, {row['times_plain']:.2f} x plain")
    write_atomically(target, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
