"""benchmarks/seeds_to_decide.py draws from the law behind the rows, and takes no effect of a seed for scatter."""

from __future__ import annotations

import copy
import importlib.util
import math
import random
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tacit.report.build import Part, build_report, read_parts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seeds() -> ModuleType:
    location = importlib.util.spec_from_file_location("seeds_to_decide", ROOT / "benchmarks" / "seeds_to_decide.py")
    module = importlib.util.module_from_spec(location)
    sys.modules["seeds_to_decide"] = module  # dataclasses look their module up
    location.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def parts() -> list[Part]:
    """The rates of CIFAR-10, thirty seeds each: accuracies of a known law, no run diverged."""
    (rates,) = [part for part in read_parts([ROOT / "docs/results/cifar10"]) if part.study.name == "cifar10-rates"]
    noise, made = random.Random(0), []
    effects = [noise.gauss(0, 0.02) for _ in range(30)]
    (first, *_) = [row for row in rates.rows if row["status"] == "finished"]
    for rate in (0.03, 0.06, 0.12, 0.25):
        for seed, effect in enumerate(effects):
            row = copy.deepcopy(first)
            row["spec"] |= {"learning_rate": rate, "seed": seed}
            row |= {"run": f"{rate} {seed}", "best_test_accuracy": 0.5 + rate / 10 + effect + noise.gauss(0, 0.004)}
            made.append(row)
    return [replace(rates, rows=made)]


def test_the_effect_of_a_seed_is_told_from_scatter(seeds: ModuleType, parts: list[Part]) -> None:
    law = seeds.law_of(parts)
    # 87 degrees of freedom know the scatter to 8 %, thirty seeds their deviation to 13 %: three deviations of each.
    assert law.scatter == pytest.approx(0.004, rel=0.25)
    assert law.effect_deviation == pytest.approx(0.02, rel=0.4)


@pytest.mark.parametrize("figure,count", [("1b", 20), ("3a", 11), ("3a", 20), ("3b", 4), ("3b", 20)])
def test_the_figure_that_is_judged_has_as_many_seeds_as_were_asked_for(
    figure: str, count: int, seeds: ModuleType
) -> None:
    stored = {part.study.name: part for part in read_parts([ROOT / "docs/results/cifar10"])}
    parts = [stored[name] for name in seeds.FIGURES[figure]]
    law, noise = seeds.law_of(parts), random.Random(2)
    made = [seeds.with_seeds(seeds.planned(part, count), law, law.of_seeds(count, noise), noise) for part in parts]
    (found,) = build_report(made, only=[figure]).figures
    points = [point for panel in found.panels for curve in panel.curves for point in curve.points]
    numbers = {len(point.runs) for point in points if point.runs}  # lines drawn for comparison have none
    assert numbers == {count}


def test_heights_are_drawn_as_well_as_their_runs_know_them(seeds: ModuleType, parts: list[Part]) -> None:
    law, noise = seeds.law_of(parts), random.Random(3)
    assert law.heights == pytest.approx([float(mean) for mean in law.points.layout.means])
    draws = [law.drawn(noise).heights for _ in range(1000)]
    for height, scatter, drawn in zip(law.heights, law.scatters, zip(*draws, strict=True), strict=True):
        error = scatter / math.sqrt(30)
        assert statistics.mean(drawn) == pytest.approx(height, abs=4 * error / math.sqrt(1000))
        assert statistics.stdev(drawn) == pytest.approx(error, rel=0.1)  # 1000 draws know it to 2.2 %


def test_made_up_seeds_share_their_effect_over_points_and_leave_stored_runs_alone(
    seeds: ModuleType, parts: list[Part]
) -> None:
    law = seeds.law_of(parts)
    exact = replace(law, scatters=(0.0,) * len(law.scatters))
    effects = {**law.effects, 30: 0.5}
    (made,) = [seeds.with_seeds(part, exact, effects, random.Random(1)) for part in parts]
    assert made.rows[: len(parts[0].rows)] == parts[0].rows
    new = made.rows[len(parts[0].rows) :]
    assert [row["spec"]["seed"] for row in new] == [30] * 4
    heights = dict(zip([rows[0]["spec"]["learning_rate"] for rows in law.points.rows], law.heights, strict=True))
    for row in new:
        assert row["best_test_accuracy"] == pytest.approx(heights[row["spec"]["learning_rate"]] + 0.5, abs=1e-12)
