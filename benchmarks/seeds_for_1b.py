"""How many seeds would decide figure 1b on CIFAR-10: made-up seeds, judged by the report's own rule.

    python benchmarks/seeds_for_1b.py [--draws 20] [--json benchmarks/results/seeds_for_1b.json]

Every point of `cifar10/rates` and `cifar10/strengths` in docs/results/cifar10 gets seeds up to a number: a finished run
is the point's mean plus normal scatter of 0.9 points, what runs of the rates that train scatter by there; a diverged
run is repeated as it is. How many draws decide 1b is stored for each number of seeds. Some seconds.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit._files import write_atomically
from tacit._provenance import provenance
from tacit.report.build import Part, build_report, read_parts

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results/cifar10"
STUDIES = ("cifar10-rates", "cifar10-strengths")
SCATTER = 0.009
SEEDS = (3, 6, 10, 17, 30)


def with_seeds(part: Part, seeds: int, noise: random.Random) -> Part:
    """The study with made-up runs at every point until it has this many seeds."""
    points: dict[tuple[float, float], list[Any]] = {}
    for row in part.rows:
        points.setdefault((row["spec"]["learning_rate"], row["spec"]["strength"]), []).append(row)
    made = list(part.rows)
    for rows in points.values():
        mean = statistics.mean(row["best_test_accuracy"] for row in rows)
        for seed in range(len(rows), seeds):
            row = copy.deepcopy(rows[seed % len(rows)])
            row["spec"]["seed"], row["run"] = seed, f"{row['run']}-{seed}"
            if row["status"] == "finished":
                row["best_test_accuracy"] = mean + noise.gauss(0, SCATTER)
            made.append(row)
    return replace(part, rows=made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/seeds_for_1b.json")
    options = parser.parse_args()
    parts = [part for part in read_parts([RESULTS]) if part.study.name in STUDIES]
    outcomes = {}
    for seeds in SEEDS:
        found: Counter[str] = Counter()
        for draw in range(options.draws):
            noise = random.Random(f"{seeds} {draw}")
            (figure,) = build_report([with_seeds(part, seeds, noise) for part in parts], only=["1b"]).figures
            assert figure.verdict is not None
            found[figure.verdict.outcome] += 1
        outcomes[str(seeds)] = dict(found)
        print(seeds, dict(found), flush=True)
    content = {"draws": options.draws, "scatter": SCATTER, "outcomes": outcomes, **provenance()}
    write_atomically(options.json, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
