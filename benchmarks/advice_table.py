"""The table of `advice.py`: means with intervals, what was lost, what was won back, prices; and the figure."""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from large_batch_tasks import TASKS, Task, load_task
from scipy import stats
from torch.nn.functional import cross_entropy

import tacit
from tacit._util.random_generators import generator
from tacit.studies.train.models import mlp

Rows = list[dict[str, Any]]
WON_BACK, TAKEN, KEPT, FALLEN = 0.9, 0.003, 0.8, 0.1
FACTS = ("batch_size", "micro_batch_size", "learning_rate", "strength", "radius", "every", "largest_ratio")


def interval(values: np.ndarray) -> list[float]:
    """[mean, low, high], Student's 95 %."""
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    mean = float(values.mean())
    return [mean, mean - half, mean + half]


def table(rows: Rows) -> dict[str, Any]:
    """Per task and optimizer: each arm's accuracies, its difference from `same`, and the verdicts of the rules."""
    made: dict[str, Any] = {}
    runs = [row for row in rows if row["kind"] == "run"]
    for task, optimizer in sorted({(row["task"], row["optimizer"]) for row in runs}):
        mine = [row for row in runs if (row["task"], row["optimizer"]) == (task, optimizer)]
        arms = list(dict.fromkeys(row["arm"] for row in mine))
        by_arm = {arm: {row["seed"]: row for row in mine if row["arm"] == arm} for arm in arms}
        if not {"small", "same"} <= set(arms):
            continue
        seeds = sorted(set(by_arm["small"]) & set(by_arm["same"]))
        if len(seeds) < 2:
            continue
        found = [
            row for row in rows if row["kind"] == "prices" and (row["task"], row["optimizer"]) == (task, optimizer)
        ]
        costs = dict(found[-1]["times_plain"]) if found else {}
        if "advised" in costs:
            for arm in ("limited", "limited-2"):  # the same step with another number for λ
                costs.setdefault(arm, costs["advised"])
        made[f"{task}, {optimizer}"] = {
            "seeds": seeds,
            "lost": interval(_final(by_arm["small"], seeds) - _final(by_arm["same"], seeds)),
            "arms": {
                arm: _entry(by_arm, arm, seeds, costs.get(arm), train_size=TASKS[task].train_size) for arm in arms
            },
        }
    return made


def _final(by_seed: dict[int, dict[str, Any]], seeds: list[int]) -> np.ndarray:
    return np.array([by_seed[seed]["test"][-1] for seed in seeds])


def _entry(
    by_arm: dict[str, Any], arm: str, seeds: list[int], cost: float | None, *, train_size: int
) -> dict[str, Any]:
    seeds = [seed for seed in seeds if seed in by_arm[arm]]
    rows = [by_arm[arm][seed] for seed in seeds]
    entry: dict[str, Any] = {name: rows[0].get(name) for name in FACTS}
    entry |= {"seeds": len(rows), "updates": rows[0]["updates"][-1], "diverged": sum(row["diverged"] for row in rows)}
    entry["lost_runs"] = sum(is_lost(row) for row in rows)
    entry["train_accuracy"] = statistics.mean(row["train_accuracy"] for row in rows)
    entry["price"] = cost
    entry["epochs"] = entry["updates"] * entry["batch_size"] / train_size
    factor = rows[0]["batch_size"] / next(iter(by_arm["small"].values()))["batch_size"]
    if len(rows) < 2:
        return entry
    entry["equal_updates"] = interval(np.array([row["test"][-1] for row in rows]))
    entry["equal_epochs"] = _mean_at(rows, 1 / factor)
    if cost is not None:
        entry["equal_time"] = _mean_at(rows, 1 / max(1.0, cost))
    small, same, own = (_final(by_arm[name], seeds) for name in ("small", "same", arm))
    entry["minus_same"] = interval(own - same)
    if arm not in ("small", "same"):
        lost = interval(small - same)
        if lost[1] > 0:
            entry["won_back"] = float((own - same).mean() / (small - same).mean())
            entry["verdict"] = _verdict(interval(own - same - WON_BACK * (small - same)), "wins back 90 %")
        else:
            entry["verdict"] = _verdict(interval(own - same + TAKEN), "takes nothing")
        entry |= _kept_gain(by_arm, arm, seeds)
    return entry


def is_lost(row: dict[str, Any]) -> bool:
    """Diverged, or at the end far below the best that the run had."""
    return row["diverged"] or row["test"][-1] < max(row["test"]) - FALLEN


def _kept_gain(by_arm: dict[str, Any], arm: str, seeds: list[int]) -> dict[str, Any]:
    """The share of the reference's gain that a cheaper setting keeps, and the verdict; nothing where there is none."""
    reference = next((name for name in ("advised", "searched") if name in by_arm), None)
    if reference is None or arm in ("scaled", "matched", reference) or not set(seeds) <= set(by_arm[reference]):
        return {}
    same, own, whole = (_final(by_arm[name], seeds) for name in ("same", arm, reference))
    if interval(whole - same)[1] <= 0:
        return {}
    kept = _verdict(interval(own - same - KEPT * (whole - same)), f"keeps {100 * KEPT:.0f} % of the gain")
    return {"kept": float((own - same).mean() / (whole - same).mean()), "kept_verdict": kept}


def accuracy_at(row: dict[str, Any], update: float) -> float | None:
    """The test accuracy at this update, linear between evaluations; None before the first one."""
    updates = row["updates"]
    if update < updates[0] - 1e-9:
        return None
    return float(np.interp(update, updates, row["test"]))


def _mean_at(rows: Rows, share: float) -> list[float] | None:
    """The interval over runs at this share of their updates; None before the first evaluation."""
    found = [accuracy_at(row, share * row["updates"][-1]) for row in rows]
    return None if None in found else interval(np.array(found))


def _verdict(found: list[float], claim: str) -> dict[str, Any]:
    outcome = "agrees" if found[1] > 0 else "disagrees" if found[2] < 0 else "undecided"
    return {"claim": claim, "margin": found, "outcome": outcome}


def show(made: dict[str, Any]) -> None:
    for name, found in made.items():
        print(f"\n{name}: lost {_shown(found['lost'])}")
        print(f"test accuracy, %, mean and 95 % interval over seeds {found['seeds']}\n")
        print(
            "| arm | B | ε | λ or ρ | every | equal updates | equal epochs | equal time | price | won back | diverged |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for arm, entry in found["arms"].items():
            amount = entry["strength"] or entry["radius"] or 0
            accuracies = [_shown(entry.get(key)) for key in ("equal_updates", "equal_epochs", "equal_time")]
            price = "" if entry["price"] is None else f"{entry['price']:.2f}"
            back = f"{100 * entry['won_back']:.0f} %, " if "won_back" in entry else ""
            verdict = back + entry["verdict"]["outcome"] if "verdict" in entry else ""
            if "kept" in entry:
                verdict += f"; keeps {100 * entry['kept']:.0f} %: {entry['kept_verdict']['outcome']}"
            facts = [arm, entry["batch_size"], f"{entry['learning_rate']:.4g}", f"{amount:.3g}", entry["every"]]
            print("| " + " | ".join(map(str, [*facts, *accuracies, price, verdict, entry["diverged"]])) + " |")


def _shown(found: list[float] | None) -> str:
    if found is None:
        return ""
    mean, low, high = (100 * number for number in found)
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def prices(task: Task, rows: Rows, optimizer: str, *, rounds: int = 40) -> dict[str, Any]:
    """The fastest step of each arm with `tacit.GradientPenalty`, in plain steps at B', averaged over `every`."""
    arrays = load_task(task)
    model = mlp(task.sizes, generator(0, "init"))
    inputs, targets = (part[: task.new_batch_size] for part in arrays.train)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(x), y)

    def seconds(step: Any) -> float:
        times = []
        for _ in range(rounds):
            model.zero_grad(set_to_none=True)
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        return min(times)  # what else the machine does only adds

    def plain() -> None:
        loss(inputs, targets).backward()

    base, made, costs = seconds(plain), {}, {}
    firsts = {
        row["arm"]: row
        for row in rows
        if row["kind"] == "run" and (row["task"], row["optimizer"]) == (task.name, optimizer)
    }
    for arm, row in firsts.items():
        cost, every = 1.0, row["every"]
        if row["strength"]:
            micro = row["micro_batch_size"] if row["micro_batch_size"] < task.new_batch_size else None
            if micro not in costs:  # the strength costs nothing
                penalty = tacit.GradientPenalty(model, row["strength"], micro_batch_size=micro)
                costs[micro] = seconds(lambda penalty=penalty: penalty.backward(loss, inputs, targets)) / base
            cost = costs[micro]
        elif row["radius"]:
            cost = 2.0  # two gradients; what moving the parameters takes is left out in SAM's favour
        made[arm] = row["batch_size"] / task.new_batch_size if arm == "small" else (cost + every - 1) / every
    return {"plain_seconds": base, "times_plain": made}


WAYS = {
    "same": "plain",
    "advised": "λ on every step",
    "searched": "λ searched",
    "every-2": "1 in 2",
    "every-4": "1 in 4",
    "every-8": "1 in 8",
    "held-4": "1 in 4, held",
    "held-8": "1 in 8, held",
    "micro-4x": "larger micro-batches",
    "whole-batch": "no micro-batches",
    "whole-4": "none, 1 in 4",
    "whole-8": "none, 1 in 8",
    "sam": "SAM",
    "sam-4": "SAM, 1 in 4",
}
COLUMNS, CHEAP, FAR = 3, 1.3, 6.0


def draw(made: dict[str, Any], path: Path) -> None:
    """Price against gain where the reference gains: a panel per task, accuracy over `same` against the step's price."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = {name: gain for name, found in made.items() if (gain := _reference_gain(found)) is not None}
    lines = -(-len(shown) // COLUMNS)
    figure, panels = plt.subplots(lines, COLUMNS, figsize=(3.6 * COLUMNS, 3.1 * lines), squeeze=False)
    for panel in panels.flat[len(shown) :]:
        panel.set_visible(False)
    for panel, (name, gain) in zip(panels.flat, shown.items(), strict=False):
        found = made[name]
        panel.axvspan(0.9, CHEAP, color="tab:green", alpha=0.12)
        panel.axhline(100 * KEPT * gain, color="tab:green", linestyle="--", linewidth=1)
        panel.axhline(100 * found["arms"]["small"]["minus_same"][0], color="black", linestyle=":", linewidth=1)
        for arm, words in WAYS.items():
            entry = found["arms"].get(arm, {})
            repeated = arm == "searched" and "advised" in found["arms"]
            if entry.get("price") is None or "minus_same" not in entry or repeated:
                continue
            mean, low, high = (100 * number for number in entry["minus_same"])
            colour = "tab:gray" if arm == "same" else "tab:orange" if arm.startswith("sam") else "tab:blue"
            below = arm in ("sam-4", "whole-4", "whole-8")  # neighbours of others: words on the other side
            panel.errorbar(entry["price"], mean, yerr=[[mean - low], [high - mean]], fmt="o", color=colour, capsize=2)
            far = entry["price"] > FAR  # words to the left, or they leave the panel
            place, side = (-5 if far else 5, -11 if below else 4), "right" if far else "left"
            point = (entry["price"], mean)
            panel.annotate(words, point, textcoords="offset points", xytext=place, fontsize=9, ha=side)
        panel.set_xscale("log")
        panel.set_xlim(0.9, 14)
        panel.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        panel.tick_params(labelbottom=True)
        panel.set_xticks([], minor=True)
        panel.set_ylim(-2, min(14, panel.get_ylim()[1] + 1))
        panel.set_title(name, fontsize=11)
    words = f"shaded: at most {CHEAP:g}; dashed: {100 * KEPT:.0f} % of what λ on every step gains; dotted: small batch"
    figure.supxlabel(f"price of a step, in plain steps ({words})", fontsize=11)
    figure.supylabel("test accuracy over the large batch alone, points", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _reference_gain(found: dict[str, Any]) -> float | None:
    """What the advised (AdamW: searched) strength gains; None where its interval reaches zero or has no price."""
    entry = found["arms"].get("advised") or found["arms"].get("searched")
    if entry is None or entry["price"] is None or "minus_same" not in entry or entry["minus_same"][1] <= 0:
        return None
    return entry["minus_same"][0]
