"""How well studies use workers: 2 against 1, and Ray against local processes, each ratio within one run.

    python benchmarks/throughput.py [--fleet-seconds 60] [--rounds 1] [--json benchmarks/results/throughput.json]

One study of MNIST-1D with two fleets of equal work, each about `--fleet-seconds` long on one core, is trained
  local-1   by one local worker, one fleet after the other
  local-2   by two local workers
  ray-2     by two workers of a Ray that runs already, as a cluster does
A round is local-1, local-2, ray-2, ray-2, local-2: what changes slowly in a machine's speed cancels. The time of a
study is from the start of its workers to its last row, so it includes starting processes and importing torch. Two
ratios of the times in a round: local-2 / local-1 (at most 0.6 is asked for) and ray-2 / local-2 (at most 1.10, for
fleets of a minute or longer); the result is their median over rounds, stored after each. Ray's start is measured apart.
With the default options about 25 minutes on two free cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tacit._util.provenance import provenance
from tacit.studies import runner
from tacit.studies.data.load import load
from tacit.studies.describe.study import Study, parse_study
from tacit.studies.execute import worker
from tacit.studies.execute.local import LocalExecutor
from tacit.studies.execute.ray_executor import RayExecutor
from tacit.studies.train.packing import pack
from tacit.studies.train.training import Training

FLEETS, RUNS = 2, 24
ROUND = ("local-1", "local-2", "ray-2", "ray-2", "local-2")
TARGETS = {"two_workers": 0.6, "ray": 1.10}


def study(epochs: int) -> Study:
    """Two fleets of 24 runs, alike but for seeds: the same shape, so that packing splits them evenly."""
    fixed = {"train_size": 4000, "batch_size": 32, "width": 64, "depth": 3, "epochs": epochs, "evaluations": 4}
    grid = {"learning_rate": [2.0**-k for k in range(3, 7)], "seed": list(range(FLEETS * RUNS // 4))}
    made = parse_study({"name": "throughput", "fixed": fixed, "grid": grid})
    sizes = [len(fleet.runs) for fleet in pack(made.runs)]
    if len(sizes) % 2 or len(set(sizes)) > 1:
        raise SystemExit(f"packing made fleets of {sizes} runs; this benchmark needs an even number of equal fleets")
    return made


def epochs_for(seconds: float) -> int:
    """Epochs that make one fleet about so long here: one core, one thread, as a worker."""
    worker.prepare_process()
    training = Training(pack(study(20).runs)[0], load("mnist1d"))
    began = time.monotonic()
    training.advance()
    return max(1, math.ceil(20 * seconds / (time.monotonic() - began)))


def timed(work: Study, executor: LocalExecutor | RayExecutor) -> tuple[float, dict[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        runner.run(work, folder, executor=executor)
        seconds = time.monotonic() - began
        found = sorted(Path(folder).glob("fleets/*/rows.jsonl"))
        return seconds, {path.parent.name: path.read_bytes() for path in found}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--fleet-seconds", type=float, default=60.0, help="about how long one fleet takes")
    options.add_argument("--rounds", type=int, default=4)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TACIT_CACHE", cache)
        load("mnist1d")
        work = study(epochs_for(given.fleet_seconds))
        print(f"{len(pack(work.runs))} fleets of {work.runs[0].epochs} epochs", file=sys.stderr)
        times: list[dict[str, list[float]]] = []
        seen: list[dict[str, bytes]] = []
        ray_start: list[float] = []
        for _ in range(given.rounds):
            times.append({name: [] for name in ROUND})
            for name in ROUND:
                began = time.monotonic()
                workers = int(name[-1])
                with RayExecutor(workers) if name.startswith("ray") else LocalExecutor(workers) as executor:
                    if isinstance(executor, RayExecutor):
                        ray_start.append(time.monotonic() - began)
                    seconds, rows = timed(work, executor)
                times[-1][name].append(seconds)
                seen.append(rows)
                print(f"{name}: {seconds:.1f} s", file=sys.stderr, flush=True)
            identical = all(rows == seen[0] for rows in seen)
            result = summary(times, identical=identical, ray_start=ray_start, work=work, given=given)
            if given.json:  # after every round: a benchmark that is stopped must not hide what it saw
                given.json.write_text(json.dumps(result, indent=1) + "\n")
    for name, ratio in result["ratios"].items():
        print(f"{name}: {ratio:.3f} (at most {TARGETS[name]}): {'yes' if ratio <= TARGETS[name] else 'NO'}")
    print(f"rows identical: {'yes' if result['rows_identical'] else 'NO'}")
    good = all(ratio <= TARGETS[name] for name, ratio in result["ratios"].items())
    return 0 if good and result["rows_identical"] else 1


def summary(
    times: list[dict[str, list[float]]],
    *,
    identical: bool,
    ray_start: list[float],
    work: Study,
    given: argparse.Namespace,
) -> dict[str, Any]:
    """Ratios within rounds, then their median."""
    means = [{name: statistics.mean(taken) for name, taken in each.items()} for each in times]
    two = [each["local-2"] / each["local-1"] for each in means]
    ray = [each["ray-2"] / each["local-2"] for each in means]
    fleets = pack(work.runs)
    return {
        "command": f"python benchmarks/throughput.py --fleet-seconds {given.fleet_seconds:g} --rounds {given.rounds}",
        "rounds_done": len(times),
        "study": {"fleets": len(fleets), "runs_per_fleet": len(fleets[0].runs), "epochs": work.runs[0].epochs},
        "seconds": [{name: [round(each, 2) for each in taken] for name, taken in one.items()} for one in times],
        "fleet_seconds": round(statistics.median(each["local-1"] for each in means) / len(fleets), 1),
        "ray_start_seconds": [round(each, 2) for each in ray_start],
        "ratios": {"two_workers": round(statistics.median(two), 4), "ray": round(statistics.median(ray), 4)},
        "ratios_of_rounds": {"two_workers": [round(x, 4) for x in two], "ray": [round(x, 4) for x in ray]},
        "targets": TARGETS,
        "rows_identical": identical,
        **provenance(),
    }


if __name__ == "__main__":
    sys.exit(main())
