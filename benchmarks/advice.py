"""Does the advice work? From a tuned small batch to one 16 times as large, five ways, at least five seeds.

    python benchmarks/advice.py --task mnist1d                  # runs, or goes on where it stopped
    python benchmarks/advice.py --task fashion --seeds 0:5
    python benchmarks/advice.py --table                         # the table from the rows on disk

Every run trains for the same time ε × updates, the clock of the modified flow. Arms:

    small      B, the tuned rate
    same       B' = 16 B, the same rate: as many updates, 16 times the epochs
    epochs     B' = 16 B, the same rate and as many epochs: a sixteenth of the updates and of the time
    linear     B' = 16 B, the rate times 16
    matched    B' = 16 B, the rate that `tacit.match` gives for equal implicit regularization
    penalty    B' = 16 B, the same rate, the strength that `tacit.match` gives on micro-batches of B

The advice comes from one small-batch run with a seed of its own (100), measured over the whole training set at half
time: fixed before any of the compared runs was seen. Rows are JSON lines, rewritten under a temporary name.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import tacit
from tacit._random import generator
from tacit.batching import epoch_batches
from tacit.studies.models import mlp
from tacit.studies.provenance import provenance

ROWS = Path(__file__).parent / "results" / "advice.jsonl"
TABLE = Path(__file__).parent / "results" / "advice.json"
ADVICE_SEED = 100
ARMS = ("small", "same", "epochs", "linear", "matched", "penalty")


@dataclass(frozen=True)
class Task:
    name: str
    sizes: tuple[int, ...]
    train_size: int
    batch_size: int
    new_batch_size: int
    epochs: int
    rates: tuple[float, ...]  # more than one: tuned on the advice seed, by the final test accuracy


TASKS = {
    "mnist1d": Task("mnist1d", (40, 64, 64, 64, 10), 2048, 16, 256, 50, (2**-3,)),  # tuned before: see LOG.md
    "fashion": Task("fashion", (784, 256, 256, 256, 10), 4096, 16, 256, 20, (2**-6, 2**-5, 2**-4, 2**-3)),
}


def data(task: Task) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if task.name == "mnist1d":
        from tacit.studies.datasets import load

        found = load("mnist1d")
    else:
        from tacit.studies.fashion_mnist import load_fashion_mnist

        found = load_fashion_mnist()
    n = task.train_size
    arrays = (found.train_inputs[:n], found.train_targets[:n], found.test_inputs, found.test_targets)
    return tuple(torch.from_numpy(array.copy()) for array in arrays)  # type: ignore[return-value]


def accuracy(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    with torch.no_grad():
        return float((model(inputs).argmax(1) == targets).float().mean())


def train(
    task: Task,
    arrays: tuple[Tensor, Tensor, Tensor, Tensor],
    *,
    learning_rate: float,
    batch_size: int,
    updates: int,
    seed: int,
    strength: float = 0.0,
    pause: Any = None,
) -> dict[str, Any]:
    """One run; `pause(model)` is called at half time."""
    inputs, targets, test_inputs, test_targets = arrays
    model = mlp(task.sizes, generator(seed, "init"))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    penalty = tacit.GradientPenalty(model, strength, micro_batch_size=task.batch_size if strength else None)
    steps, epoch, seen, diverged = 0, 0, [], False
    while steps < updates and not diverged:
        for batch in epoch_batches(task.train_size, batch_size, order="shuffled", seed=seed, epoch=epoch):
            if steps == updates:
                break
            optimizer.zero_grad()
            loss = penalty.backward(lambda x, y: cross_entropy(model(x), y), inputs[batch], targets[batch])
            if not math.isfinite(float(loss)):
                diverged = True
                break
            optimizer.step()
            steps += 1
            if pause is not None and steps == updates // 2:
                pause(model)
            if steps % max(1, updates // 20) == 0:
                seen.append(accuracy(model, test_inputs, test_targets))
        epoch += 1
    return {
        "final_test_accuracy": accuracy(model, test_inputs, test_targets),
        "best_test_accuracy": max(seen, default=accuracy(model, test_inputs, test_targets)),
        "final_train_accuracy": accuracy(model, inputs, targets),
        "diverged": diverged,
        "updates_done": steps,
    }


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def add(row: dict[str, Any]) -> None:
    ROWS.parent.mkdir(parents=True, exist_ok=True)
    rows = [*read(), row]
    temporary = ROWS.with_suffix(".writing")
    temporary.write_text("".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in rows))
    temporary.replace(ROWS)


def find(**wanted: Any) -> dict[str, Any] | None:
    return next((row for row in read() if all(row.get(key) == value for key, value in wanted.items())), None)


def tuned_rate(task: Task, arrays: tuple[Tensor, Tensor, Tensor, Tensor]) -> float:
    if len(task.rates) == 1:
        return task.rates[0]
    updates = task.epochs * task.train_size // task.batch_size
    scores = {}
    for rate in task.rates:
        key = {"kind": "tuning", "task": task.name, "learning_rate": rate}
        if find(**key) is None:
            add({**key, **train(task, arrays, learning_rate=rate, batch_size=task.batch_size, updates=updates,
                                seed=ADVICE_SEED)})  # fmt: skip
        found = find(**key)
        assert found is not None
        scores[rate] = found["final_test_accuracy"] if not found["diverged"] else 0.0
    return max(scores, key=scores.__getitem__)


def advice(task: Task, arrays: tuple[Tensor, Tensor, Tensor, Tensor], rate: float) -> dict[str, Any]:
    key = {"kind": "advice", "task": task.name}
    found = find(**key)
    if found is not None:
        return found
    inputs, targets = arrays[:2]
    updates = task.epochs * task.train_size // task.batch_size

    def pause(model: nn.Module) -> None:
        sizes = [task.batch_size, task.new_batch_size]
        seen = tacit.measure(model, cross_entropy, (inputs, targets), batch_size=sizes, learning_rate=rate)
        given = tacit.match(
            seen, learning_rate=rate, batch_size=task.batch_size, new_batch_size=task.new_batch_size,
            micro_batch_size=task.batch_size,
        )  # fmt: skip
        add({**key, "learning_rate": rate, "measured_after": updates // 2, "measurement": seen.to_row(),
             "advice": json.loads(given.to_json()), "text": str(given), **provenance()})  # fmt: skip

    train(task, arrays, learning_rate=rate, batch_size=task.batch_size, updates=updates, seed=ADVICE_SEED, pause=pause)
    made = find(**key)
    assert made is not None
    return made


def arms(task: Task, given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    rate, factor = given["learning_rate"], task.new_batch_size // task.batch_size
    updates = task.epochs * task.train_size // task.batch_size
    matched = given["advice"]["matched_learning_rate"]["value"]
    strength = max(0.0, given["advice"]["strength"]["value"])
    big = {"batch_size": task.new_batch_size, "learning_rate": rate, "updates": updates}
    return {
        "small": {**big, "batch_size": task.batch_size},
        "same": big,
        "epochs": {**big, "updates": updates // factor},
        "linear": {**big, "learning_rate": rate * factor, "updates": updates // factor},
        "matched": {**big, "learning_rate": matched, "updates": round(updates * rate / matched)},
        "penalty": {**big, "strength": strength},
    }


def run(task: Task, seeds: list[int]) -> None:
    arrays = data(task)
    given = advice(task, arrays, tuned_rate(task, arrays))
    for seed in seeds:
        for arm, settings in arms(task, given).items():
            key = {"kind": "run", "task": task.name, "arm": arm, "seed": seed}
            if find(**key) is None:
                add({**key, **settings, **train(task, arrays, seed=seed, **settings)})
                print(arm, seed, find(**key), flush=True)


def table() -> dict[str, Any]:
    """Mean final and best test accuracies with Student's 95 % intervals over seeds, and differences from `small`."""
    made: dict[str, Any] = {}
    for task in TASKS:
        runs = [row for row in read() if row["kind"] == "run" and row["task"] == task]
        complete = [seed for seed in sorted({row["seed"] for row in runs})
                    if {row["arm"] for row in runs if row["seed"] == seed} == set(ARMS)]  # fmt: skip
        if len(complete) < 2:
            continue
        scores = {(row["arm"], row["seed"]): row for row in runs}
        made[task] = {"seeds": complete, "arms": {}}
        for arm in ARMS:
            rows = [scores[arm, seed] for seed in complete]
            facts = ("batch_size", "learning_rate", "strength", "updates")
            entry: dict[str, Any] = {key: rows[0].get(key) for key in facts}
            for name in ("final_test_accuracy", "best_test_accuracy", "final_train_accuracy"):
                entry[name] = interval(np.array([row[name] for row in rows]))
            for name in ("final", "best"):
                key = f"{name}_test_accuracy"
                differences = [row[key] - scores["small", row["seed"]][key] for row in rows]
                entry[f"{name}_minus_small"] = interval(np.array(differences))
            entry["diverged"] = sum(row["diverged"] for row in rows)
            made[task]["arms"][arm] = entry
        given = next(row for row in read() if row["kind"] == "advice" and row["task"] == task)
        made[task]["advice"] = given["advice"]
        made[task]["provenance"] = {key: given[key] for key in ("versions", "commit", "machine")}
    return made


def interval(values: np.ndarray) -> list[float]:
    """[mean, low, high]."""
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    mean = float(values.mean())
    return [mean, mean - half, mean + half]


def show(made: dict[str, Any]) -> None:
    for task, found in made.items():
        print(f"\n{task}: test accuracy at the end, %, mean and 95 % interval over seeds {found['seeds']}\n")
        print("| arm | B | ε | λ | updates | test | best seen | minus small | training |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for arm, entry in found["arms"].items():
            cells = [_shown(entry[key]) for key in ("final_test_accuracy", "best_test_accuracy", "final_minus_small")]
            rate, strength = f"{entry['learning_rate']:.4g}", f"{entry['strength'] or 0:.4g}"
            facts = [entry["batch_size"], rate, strength, entry["updates"]]
            train_mean = f"{100 * entry['final_train_accuracy'][0]:.1f}"
            print("| " + " | ".join(map(str, [arm, *facts, *cells, train_mean])) + " |")


def _shown(found: list[float]) -> str:
    mean, low, high = (100 * number for number in found)
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=[*TASKS], default=None)
    parser.add_argument("--seeds", default="0:5", help="first:end")
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.task is not None:
        first, end = chosen.seeds.split(":")
        run(TASKS[chosen.task], [*range(int(first), int(end))])
    made = table()
    show(made)
    if made:
        temporary = TABLE.with_suffix(".writing")
        temporary.write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n")
        temporary.replace(TABLE)


if __name__ == "__main__":
    main()
