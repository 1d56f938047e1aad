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

All seeds of an arm train as one program; the penalty is that of `tacit.GradientPenalty(micro_batch_size=B)`, and each
row of that arm stores how far one step of the two is apart.
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
from torch.nn.functional import cross_entropy, one_hot

import tacit
from tacit._provenance import provenance
from tacit._random import generator
from tacit.batching import epoch_batches
from tacit.studies.train import batched_mlp
from tacit.studies.train.batched_mlp import Layers
from tacit.studies.train.models import mlp

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
        from tacit.studies.data.load import load

        found = load("mnist1d")
    else:
        from tacit.studies.data.load import load_fashion_mnist

        found = load_fashion_mnist()
    n = task.train_size
    arrays = (found.train_inputs[:n], found.train_targets[:n], found.test_inputs, found.test_targets)
    return tuple(torch.from_numpy(array.copy()) for array in arrays)  # type: ignore[return-value]


def accuracies(layers: Layers, inputs: Tensor, targets: Tensor) -> list[float]:
    found = batched_mlp.outputs(layers, inputs.expand(len(layers.weights[0]), -1, -1)).argmax(2) == targets
    return [float(share) for share in found.float().mean(1)]


def gradient(layers: Layers, inputs: Tensor, targets: Tensor, *, strength: float, micro: int) -> list[Tensor]:
    """∇ of the mean over micro-batches of Ĉₖ + (λ/4)‖∇Ĉₖ‖², for all runs: weights first, then biases.

    What `tacit.GradientPenalty(micro_batch_size=…)` adds to `.grad`, in the algebra of
    `tacit.studies.train.batched_mlp` with the minibatch's rows folded into micro-batches where rows meet rows. `check`
    compares the two.
    """
    runs, rows, _ = inputs.shape

    def fold(tensor: Tensor) -> Tensor:
        return tensor.reshape(-1, micro, tensor.shape[2])

    X, logits = batched_mlp._forward(layers, inputs)
    probabilities = logits.softmax(2)
    D = batched_mlp._backward(layers, X, (probabilities - targets) / micro)
    T: list[Tensor | None] = [None] * len(X)
    S = D
    if strength:
        for at, (x, d) in enumerate(zip(map(fold, X), map(fold, D), strict=True)):
            moved = (torch.bmm(torch.bmm(x, x.mT), d) + d.sum(1, keepdim=True)).reshape(runs, rows, -1)
            if at > 0:
                moved = torch.baddbmm(moved, T[at], layers.weights[at])
            if at + 1 < len(X):
                T[at + 1] = batched_mlp._where_active(moved, X[at + 1])
        turned = probabilities * moved
        turned = turned - probabilities * turned.sum(2, keepdim=True)
        S = [D[-1] + strength / 2 / micro * turned]
        for at in range(len(X) - 1, 0, -1):
            x, d = fold(X[at]), fold(D[at])
            s = strength / 2 * torch.bmm(torch.bmm(d, d.mT), x).reshape(runs, rows, -1)
            S.insert(0, batched_mlp._where_active(torch.baddbmm(s, S[0], layers.weights[at].mT), X[at]))
    weights = [torch.bmm(x.mT, s) for x, s in zip(X, S, strict=True)]
    for at, (t, d) in enumerate(zip(T, D, strict=True)):
        if t is not None:
            weights[at] += strength / 2 * torch.bmm(t.mT, d)
    return [part * (micro / rows) for part in [*weights, *[s.sum(1, keepdim=True) for s in S]]]


def check(task: Task, arrays: tuple[Tensor, Tensor, Tensor, Tensor], strength: float) -> float:
    """The largest relative difference from `tacit.GradientPenalty`, over parameters, on the first minibatch."""
    model = mlp(task.sizes, generator(0, "init"))
    inputs, targets = arrays[0][: task.new_batch_size], arrays[1][: task.new_batch_size]
    penalty = tacit.GradientPenalty(model, strength, micro_batch_size=task.batch_size)
    penalty.backward(lambda x, y: cross_entropy(model(x), y), inputs, targets)
    layers = batched_mlp.initialise(task.sizes, [0])
    hot = one_hot(targets, task.sizes[-1]).float()
    found = gradient(layers, inputs[None], hot[None], strength=strength, micro=task.batch_size)
    linear = [module for module in model if isinstance(module, nn.Linear)]
    expected = [*[layer.weight.grad.T for layer in linear], *[layer.bias.grad[None] for layer in linear]]
    return max(float((a[0] - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))


def train(
    task: Task,
    arrays: tuple[Tensor, Tensor, Tensor, Tensor],
    *,
    learning_rate: float,
    batch_size: int,
    updates: int,
    seeds: list[int],
    strength: float = 0.0,
    pause: Any = None,
) -> list[dict[str, Any]]:
    """Runs of all seeds as one program; `pause(layers)` is called at half time."""
    inputs, targets, test_inputs, test_targets = arrays
    hot = one_hot(targets, task.sizes[-1]).float()
    layers = batched_mlp.initialise(task.sizes, seeds)
    micro = task.batch_size if strength else batch_size
    per_epoch = task.train_size // batch_size
    seen: list[list[float]] = []
    for step in range(updates):
        epoch, position = divmod(step, per_epoch)
        if position == 0:
            orders = [
                epoch_batches(task.train_size, batch_size, order="shuffled", seed=seed, epoch=epoch) for seed in seeds
            ]
        batch = torch.stack([order[position] for order in orders])
        parts = gradient(layers, inputs[batch], hot[batch], strength=strength, micro=micro)
        for tensor, part in zip(layers.tensors(), parts, strict=True):
            tensor.sub_(part, alpha=learning_rate)
        if pause is not None and step + 1 == updates // 2:
            pause(layers)
        if (step + 1) % max(1, updates // 20) == 0:
            seen.append(accuracies(layers, test_inputs, test_targets))
    final, trained = accuracies(layers, test_inputs, test_targets), accuracies(layers, inputs, targets)
    finite = [all(bool(tensor[run].isfinite().all()) for tensor in layers.tensors()) for run in range(len(seeds))]
    return [
        {
            "seed": seed,
            "final_test_accuracy": final[run],
            "best_test_accuracy": max(final[run], *[row[run] for row in seen]),  # the end may be none of them
            "final_train_accuracy": trained[run],
            "diverged": not finite[run],
        }
        for run, seed in enumerate(seeds)
    ]


def as_model(task: Task, layers: Layers) -> nn.Module:
    model = mlp(task.sizes)
    linear = [module for module in model if isinstance(module, nn.Linear)]
    with torch.no_grad():
        for module, weight, bias in zip(linear, layers.weights, layers.biases, strict=True):
            module.weight.copy_(weight[0].T)
            module.bias.copy_(bias[0, 0])
    return model


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
            (row,) = train(
                task, arrays, learning_rate=rate, batch_size=task.batch_size, updates=updates, seeds=[ADVICE_SEED]
            )
            add({**key, **row})
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

    def pause(layers: Layers) -> None:
        model = as_model(task, layers)
        sizes = [task.batch_size, task.new_batch_size]
        seen = tacit.measure(model, cross_entropy, (inputs, targets), batch_size=sizes, learning_rate=rate)
        given = tacit.match(
            seen, learning_rate=rate, batch_size=task.batch_size, new_batch_size=task.new_batch_size,
            micro_batch_size=task.batch_size,
        )  # fmt: skip
        add({**key, "learning_rate": rate, "measured_after": updates // 2, "measurement": seen.to_row(),
             "advice": json.loads(given.to_json()), "text": str(given), **provenance()})  # fmt: skip

    settings = {"learning_rate": rate, "batch_size": task.batch_size, "updates": updates}
    train(task, arrays, seeds=[ADVICE_SEED], pause=pause, **settings)
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
    for arm, settings in arms(task, given).items():
        key = {"kind": "run", "task": task.name, "arm": arm}
        missing = [seed for seed in seeds if find(**key, seed=seed) is None]
        if not missing:
            continue
        extra = {}
        if settings.get("strength"):
            extra = {"micro_batch_size": task.batch_size, "difference": check(task, arrays, settings["strength"])}
            if extra["difference"] > 1e-3:
                raise SystemExit(f"the batched penalty is {extra['difference']:.2g} off tacit.GradientPenalty")
        for row in train(task, arrays, seeds=missing, **settings):
            add({**key, **settings, **extra, **row})
            print(arm, row, flush=True)


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
