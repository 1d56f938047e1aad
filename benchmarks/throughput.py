"""How well studies use workers: 2 against 1, and Ray against local processes, each ratio within one run.

    python benchmarks/throughput.py [--fleet-seconds 60] [--rounds 1] [--json benchmarks/results/throughput.json]

One study of MNIST-1D with four fleets of equal work, each about `--fleet-seconds` long on one core, is trained
  local-1   by one local worker        (4 fleets one after another)
  local-2   by two local workers       (2 and 2)
  ray-2     by two workers of a Ray that runs already, as a cluster does
in turns, `--rounds` times. The time of a study is from the start of its workers to its last row, so it includes
starting processes and importing torch. Two ratios: local-2 / local-1 (at most 0.6 is asked for) and ray-2 / local-2
(at most 1.10, for fleets of a minute or longer). Ray's own start is measured apart. With the default options about 9
minutes on two free cores.
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

from tacit.studies import runner, worker
from tacit.studies.datasets import load
from tacit.studies.executors import LocalExecutor
from tacit.studies.packing import pack
from tacit.studies.provenance import provenance
from tacit.studies.ray_executor import RayExecutor
from tacit.studies.study import Study, parse_study

FLEETS, RUNS = 4, 24
TARGETS = {"two_workers": 0.6, "ray": 1.10}


def study(epochs: int) -> Study:
    """Four fleets of 24 runs, alike but for seeds: the same shape, so that packing splits them evenly."""
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
    one = study(100)
    fleet = pack(one.runs)[0]
    rate = worker.calibrate([run.model_dump() for run in fleet.runs], load)
    return max(1, math.ceil(100 * seconds * rate / fleet.cost))


def timed(work: Study, executor: LocalExecutor | RayExecutor) -> tuple[float, dict[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        runner.run(work, folder, executor=executor)
        seconds = time.monotonic() - began
        found = sorted(Path(folder).glob("fleets/*/rows.jsonl"))
        return seconds, {path.parent.name: path.read_bytes() for path in found}


def local(work: Study, workers: int) -> tuple[float, dict[str, bytes]]:
    with LocalExecutor(workers) as executor:
        return timed(work, executor)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--fleet-seconds", type=float, default=60.0, help="about how long one fleet takes")
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    # Measuring a rate first would be timed with the study that happens to come first.
    for executor_class in (LocalExecutor, RayExecutor):
        executor_class.calibrate = lambda self, fleets: 1e4  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TACIT_CACHE", cache)  # a benchmark leaves no rates behind
        load("mnist1d")
        work = study(epochs_for(given.fleet_seconds))
        print(f"{len(pack(work.runs))} fleets of {work.runs[0].epochs} epochs", file=sys.stderr)
        times: dict[str, list[float]] = {"local-1": [], "local-2": [], "ray-2": []}
        seen: list[dict[str, bytes]] = []
        ray_start: list[float] = []
        for _ in range(given.rounds):
            for name, workers in (("local-1", 1), ("local-2", 2)):
                seconds, rows = local(work, workers)
                note(times, seen, name, seconds, rows)
            began = time.monotonic()
            with RayExecutor(2) as executor:
                ray_start.append(time.monotonic() - began)
                seconds, rows = timed(work, executor)
            note(times, seen, "ray-2", seconds, rows)
    result = summary(times, identical=all(rows == seen[0] for rows in seen), ray_start=ray_start, work=work)
    for name, ratio in result["ratios"].items():
        print(f"{name}: {ratio:.3f} (at most {TARGETS[name]}): {'yes' if ratio <= TARGETS[name] else 'NO'}")
    print(f"rows identical: {'yes' if result['rows_identical'] else 'NO'}")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    good = all(ratio <= TARGETS[name] for name, ratio in result["ratios"].items())
    return 0 if good and result["rows_identical"] else 1


def note(times: dict[str, list[float]], seen: list[dict[str, bytes]], name: str, seconds: float, rows: Any) -> None:
    times[name].append(seconds)
    seen.append(rows)
    print(f"{name}: {seconds:.1f} s", file=sys.stderr, flush=True)


def summary(times: dict[str, list[float]], *, identical: bool, ray_start: list[float], work: Study) -> dict[str, Any]:
    """Ratios of rounds, then their median: what slows a whole round down cancels."""
    two = [b / a for a, b in zip(times["local-1"], times["local-2"], strict=True)]
    ray = [b / a for a, b in zip(times["local-2"], times["ray-2"], strict=True)]
    fleets = pack(work.runs)
    return {
        "command": " ".join(["python", "benchmarks/throughput.py", *sys.argv[1:]]),
        "study": {"fleets": len(fleets), "runs_per_fleet": len(fleets[0].runs), "epochs": work.runs[0].epochs},
        "seconds": {name: [round(each, 2) for each in each_name] for name, each_name in times.items()},
        "fleet_seconds": round(statistics.median(times["local-1"]) / len(fleets), 1),
        "ray_start_seconds": [round(each, 2) for each in ray_start],
        "ratios": {"two_workers": round(statistics.median(two), 4), "ray": round(statistics.median(ray), 4)},
        "targets": TARGETS,
        "rows_identical": identical,
        **provenance(),
    }


if __name__ == "__main__":
    sys.exit(main())
