"""How many seeds would decide figures 1b, 3a and 3b on CIFAR-10: made-up seeds, judged by the report's own rules.

    python benchmarks/seeds_to_decide.py --json benchmarks/results/seeds_to_decide.json

Every point of a figure gets seeds up to a number. Stored runs stay as they are. A made-up run is the height of its
point, an effect of its seed that all points share, and scatter, as the report's layout (seed × point) finds them in the
stored rows. Seeds that are there keep their effect, new ones draw theirs. Heights are known no better than their runs
scatter, so every draw has heights of its own, around the stored ones. At a point where a stored run diverged, stored
runs are repeated. 40 draws know a share of one half to ±16 %, and few seeds know the scatter badly: on the four seeds
of 1b, ten decided in 34 of 40 draws, and the real ten did not. Core-hours are those of the stored runs: CPU time where
it is known, else the time that passed. About two minutes.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit._util.files import write_atomically
from tacit._util.provenance import provenance
from tacit.report.build import Part, build_report, read_parts
from tacit.report.points import Points, accuracy, by_point, points_of
from tacit.report.rows import core_seconds
from tacit.studies.describe.study import parse_study

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results/cifar10"
FIGURES = {  # the studies that a figure reads
    "1b": ("cifar10-rates", "cifar10-strengths"),
    "3a": ("cifar10-rates", "cifar10-batch-rates"),
    "3b": ("cifar10-strengths", "cifar10-batch-strengths"),
}
SEEDS = (10, 17, 30, 60, 100)  # below what is stored, a number means what is stored


@dataclass(frozen=True)
class Law:
    """Where stored runs come from, as far as the report's layout tells: heights, effects of seeds, scatter."""

    points: Points
    heights: tuple[float, ...]
    effects: dict[int, float]
    scatters: tuple[float, ...]  # of a run at each point: a point that falls apart has its own

    @property
    def scatter(self) -> float:
        """Of the points that train, root mean square."""
        pooled = [self.scatters[index] ** 2 for index in self.points.layout.pooled_points]
        return math.sqrt(statistics.mean(pooled))

    @property
    def effect_deviation(self) -> float:
        return statistics.stdev(self.effects.values())

    def drawn(self, noise: random.Random) -> Law:
        """With heights that could as well be the true ones."""
        parts = zip(self.heights, self.scatters, self.points.rows, strict=True)
        heights = tuple(height + noise.gauss(0, scatter / math.sqrt(len(rows))) for height, scatter, rows in parts)
        return replace(self, heights=heights)

    def of_seeds(self, count: int, noise: random.Random) -> dict[int, float]:
        return {seed: self.effects.get(seed, noise.gauss(0, self.effect_deviation)) for seed in range(count)}


def law_of(parts: Sequence[Part]) -> Law:
    points = points_of([row for part in parts for row in part.rows], accuracy("best_test_accuracy"))
    layout = points.layout
    left: dict[int, list[float]] = {}
    for cell, mean, trains in zip(layout.cells, layout.means, layout.trains, strict=True):
        for seed, value in zip(cell.seeds, cell.values, strict=True):
            if trains:
                left.setdefault(seed, []).append(float(value - mean))
    variances, _ = layout.variances
    effects = {seed: statistics.mean(values) for seed, values in left.items()}
    heights = tuple(float(mean) for mean in layout.means)
    return Law(points, heights, effects, tuple(math.sqrt(float(variance)) for variance in variances))


def planned(part: Part, count: int) -> Part:
    """Its study with these seeds at every point: the report leaves out seeds that not all studies of a figure plan."""
    raw = part.study.model_dump()
    seeds = sorted({run.seed for run in part.study.runs} | set(range(count)))
    grid = [{key: values for key, values in block.items() if key != "seeds"} | {"seed": seeds} for block in raw["grid"]]
    return replace(part, study=parse_study({**raw, "grid": grid}))


def with_seeds(part: Part, law: Law, effects: dict[int, float], noise: random.Random) -> Part:
    """The study with made-up runs at every point until it has all these seeds."""
    made, own = list(part.rows), {row["run"] for row in part.rows}
    for rows, height, scatter in zip(law.points.rows, law.heights, law.scatters, strict=True):
        if rows[0]["run"] not in own:
            continue
        diverges = any(row["status"] != "finished" for row in rows)
        there = {row["spec"]["seed"] for row in rows}
        for seed in (seed for seed in effects if seed not in there):
            row = copy.deepcopy(rows[seed % len(rows)])
            row["spec"]["seed"], row["run"] = seed, f"{row['run']}-{seed}"
            if not diverges:
                row["best_test_accuracy"] = height + effects[seed] + noise.gauss(0, scatter)
            made.append(row)
    return replace(part, rows=made)


def core_hours_a_seed(parts: Sequence[Part]) -> float:
    """One run of every point; of a point's runs those with CPU time count, if there are any."""
    metas = {meta["fleet"]: meta for part in parts for meta in part.metas}
    total = 0.0
    for rows in by_point([row for part in parts for row in part.rows]):
        found = [metas[row["fleet"]] for row in rows if row["fleet"] in metas]
        found = [meta for meta in found if meta.get("cpu_seconds")] or found
        total += statistics.mean(core_seconds(meta) / meta["runs"] for meta in found)
    return total / 3600


def decided(parts: Sequence[Part], figure: str, *, draws: int) -> dict[str, Any]:
    law = law_of(parts)
    outcomes = {}
    for seeds in SEEDS:
        counts: Counter[str] = Counter()
        wider = [planned(part, seeds) for part in parts]
        for draw in range(draws):
            noise = random.Random(f"{figure} {seeds} {draw}")
            effects = law.of_seeds(seeds, noise)
            drawn = law.drawn(noise)
            made = [with_seeds(part, drawn, effects, noise) for part in wider]
            (found,) = build_report(made, only=[figure]).figures
            assert found.verdict is not None
            counts[found.verdict.outcome] += 1
        outcomes[str(seeds)] = dict(counts)
    return {
        "scatter": round(law.scatter, 5), "effect_of_seeds": round(law.effect_deviation, 5), "outcomes": outcomes,
        "core_hours_a_seed": round(core_hours_a_seed(parts), 2),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--results", type=Path, default=RESULTS, help="docs/results/cifar10 unless given")
    options = parser.parse_args(arguments)
    parts = {part.study.name: part for part in read_parts([options.results])}
    found = {}
    for figure, names in FIGURES.items():
        if all(name in parts for name in names):
            found[figure] = decided([parts[name] for name in names], figure, draws=options.draws)
            print(figure, json.dumps(found[figure]), flush=True)
    if options.json:
        content = {"draws": options.draws, "figures": found, **provenance()}
        write_atomically(options.json, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
