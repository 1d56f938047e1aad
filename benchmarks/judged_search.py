"""Two tasks of docs/judged-plan.md, tuned by one coordinate search: a character transformer, and Fashion-MNIST.

    python benchmarks/judged_search.py transformer --into runs/judged-search     # goes on where it stopped
    python benchmarks/judged_search.py fashion-noisy --into runs/judged-search
    python benchmarks/judged_search.py --prices runs/judged-search               # on an idle machine

Each arm is searched alone, by the same rule, on validation data and one seed. Its best setting, and its own value at
the usual settings ("untuned"), are then trained on five other seeds and judged on test data that no search saw. Each
arm of a task has one file of rows; a row is one ended run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import operator
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from judged_tasks import TASKS, Loop, Mnist1dTask, Setting, arms

import tacit
from tacit._util.provenance import provenance

SEARCH_SEED, JUDGED_SEEDS = 400, (410, 411, 412, 413, 414)
MOST_RUNS = 24  # of a search whose best rate is still at the end of the rates that it tried
PRICE_ROUNDS = 41


def path_of(folder: Path, task: str, arm: str) -> Path:
    return folder / f"{task}-{arm.replace(',', '').replace(' ', '-')}.jsonl"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def score_of(task: Any, row: dict[str, Any]) -> float:
    """The score; that of a guess for a run that diverged."""
    return task.chance if row["score"] is None else row["score"]


class Rows:
    """Ended runs of one arm of one task. A run that has a row is not trained again."""

    def __init__(self, folder: Path, task: Any, arm: str) -> None:
        self.task, self.arm, self.path = task, arm, path_of(folder, task.name, arm)
        self.rows = read(self.path)

    def run(self, setting: Setting, seed: int, part: str, stage: str) -> float:
        for row in self.rows:
            if (row["setting"], row["seed"], row["part"]) == (asdict(setting), seed, part):
                return score_of(self.task, row)
        started = time.process_time()
        loop = Loop(self.task, arms(self.task.name)[self.arm], setting, seed)
        try:
            loop.train()
            score = loop.score(part)
        except tacit.TacitError:  # a penalty refuses a loss that is not finite
            score = math.nan
        row = {
            "task": self.task.name, "arm": self.arm, "stage": stage, "setting": asdict(setting), "seed": seed,
            "part": part, "score": score if math.isfinite(score) else None, "steps": loop.steps,
            "cpu_seconds": round(time.process_time() - started, 2), **self.task.facts, **provenance(),
        }  # fmt: skip
        self.rows.append(row)
        temporary = self.path.with_suffix(".part")
        temporary.write_text("".join(json.dumps(each) + "\n" for each in self.rows))
        os.replace(temporary, self.path)
        print(f"{self.task.name}, {self.arm}: {stage}, {setting}, seed {seed}: {row['score']}", flush=True)
        return score_of(self.task, row)


def moved(task: Any, setting: Setting, axis: str, towards: int, size: float) -> Setting | None:
    """The next value on an axis: rate and own value by factors, decay by factors from a first step, dropout by 0.1."""
    value = getattr(setting, axis)
    if axis == "dropout":
        value = round(value + towards * 0.1 * size, 4)
        return replace(setting, dropout=value) if 0 <= value < 1 else None
    if axis == "decay":
        if value == 0:
            return replace(setting, decay=task.first_decay) if towards > 0 else None
        value *= 10 ** (towards * size / 2)
        return replace(setting, decay=0.0 if value < task.first_decay / 9 else float(f"{value:.6g}"))
    return replace(setting, **{axis: float(f"{value * 2 ** (towards * size):.6g}")})


def search(task: Any, start: Setting, axes: tuple[str, ...], evaluate: Callable[[Setting], float]) -> Setting:
    """Coordinate search: each axis in turn, first where it last got better; steps halve when no neighbour is better.

    It makes the task's number of runs. While the best rate has no tried rate below or above it, all else equal, it
    tries more rates, up to MOST_RUNS.
    """
    better = operator.lt if task.lower_is_better else operator.gt
    scores = {start: evaluate(start)}
    best, towards, size, without_gain = start, dict.fromkeys(axes, 1), 1.0, 0
    for axis in itertools.cycle(axes):
        if without_gain == len(axes):
            size, without_gain = size / 2, 0
        gained = False
        for way in (towards[axis], -towards[axis]):
            if len(scores) >= task.searched_runs and (axis != "rate" or not rate_is_open(scores, best)):
                break
            candidate = moved(task, best, axis, way, size)
            if candidate is not None and candidate not in scores:
                scores[candidate] = evaluate(candidate)
                if better(scores[candidate], scores[best]):
                    best, towards[axis], gained = candidate, way, True
                    break
        without_gain = 0 if gained else without_gain + 1
        if len(scores) >= task.searched_runs and (not rate_is_open(scores, best) or len(scores) >= MOST_RUNS):
            return best
    raise AssertionError("cycle never ends")


def rate_is_open(scores: dict[Setting, float], best: Setting) -> bool:
    rates = [each.rate for each in scores if replace(each, rate=best.rate) == best]
    return not min(rates) < best.rate < max(rates)


def work(arguments: tuple[str, str, Path]) -> None:
    """The search of one arm, then its judged runs."""
    name, arm_name, folder = arguments
    torch.set_num_threads(1)
    task, arm = TASKS[name](), arms(name)[arm_name]
    rows = Rows(folder, task, arm_name)
    axes = tuple(axis for axis in task.axes if axis != "own" or arm.own)
    best = search(
        task, replace(task.start, own=arm.own), axes,
        lambda setting: rows.run(setting, SEARCH_SEED, "validation", "search"),
    )  # fmt: skip
    for seed in JUDGED_SEEDS:
        rows.run(best, seed, "test", "tuned")
        rows.run(replace(task.usual, own=arm.own), seed, "test", "untuned")


def results(folder: Path) -> dict[str, Any]:
    """Of every judged task and arm: scores by seed, tuned and untuned, and the best after k runs of the search."""
    tasks: dict[str, Any] = {}
    for name, task in TASKS.items():
        rows = {arm: read(path_of(folder, name, arm)) for arm in arms(name)}
        judged = {
            arm: {stage: _by_seed(task, rows[arm], stage) for stage in ("tuned", "untuned")} for arm in rows
        }  # fmt: skip
        if not all(len(scores) == len(JUDGED_SEEDS) for each in judged.values() for scores in each.values()):
            continue
        best, scale = (min, 1) if task.lower_is_better else (max, 100)
        found = {}
        for arm in rows:
            searched = [scale * score_of(task, row) for row in rows[arm] if row["stage"] == "search"]
            (setting,) = {json.dumps(row["setting"]) for row in rows[arm] if row["stage"] == "tuned"}
            found[arm] = {
                "setting": json.loads(setting), "settings": len(searched), **judged[arm],
                "best_of": {str(k): best(searched[:k]) for k in (1, 4)} | {"all": best(searched)},
            }  # fmt: skip
        word = "loss" if task.lower_is_better else "accuracy, %"
        tasks[name] = {"score": word, "lower_is_better": task.lower_is_better, "arms": found}
    return tasks


def _by_seed(task: Any, rows: list[dict[str, Any]], stage: str) -> dict[str, float]:
    scale = 1 if task.lower_is_better else 100
    return {str(row["seed"]): scale * score_of(task, row) for row in rows if row["stage"] == stage}


def prices(folder: Path) -> None:
    """Steps of all arms, interleaved in one process, as multiples of the plain step of the same round."""
    torch.set_num_threads(1)
    report: dict[str, Any] = {"rounds": PRICE_ROUNDS, "threads": 1, **provenance()}
    for name, make in {**TASKS, Mnist1dTask.name: Mnist1dTask}.items():
        task = make()
        loops = {each: Loop(task, arm, replace(task.usual, own=arm.own), 0) for each, arm in arms(name).items()}
        seconds: dict[str, list[float]] = {each: [] for each in loops}
        for _ in range(PRICE_ROUNDS + 2):  # two to warm up
            for each, loop in loops.items():
                started = time.perf_counter()
                loop.step()
                seconds[each].append(time.perf_counter() - started)
        ratios = {each: map(operator.truediv, times[2:], seconds["plain"][2:]) for each, times in seconds.items()}
        report[name] = {each: median(values) for each, values in ratios.items()}
        print(name, ", ".join(f"{each} {ratio:.2f}" for each, ratio in report[name].items()), flush=True)
    (folder / "prices.json").write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=sorted(TASKS))
    parser.add_argument("--into", type=Path, default=Path("runs/judged-search"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--prices", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    if given.prices:
        prices(given.prices)
    if given.task:
        given.into.mkdir(parents=True, exist_ok=True)
        with multiprocessing.get_context("spawn").Pool(given.workers, maxtasksperchild=1) as pool:
            pool.map(work, [(given.task, arm, given.into) for arm in arms(given.task)], chunksize=1)


if __name__ == "__main__":
    main()
