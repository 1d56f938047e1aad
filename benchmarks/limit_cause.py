"""How were advised runs lost, and what does the limit change? Loss and batch sharpness of every step, with and without.

    python benchmarks/limit_cause.py                           # writes results/limit_cause.json, about three minutes

Fashion-MNIST with SGD, B = 256 in micro-batches of 16, λ as advised (the stored advice), seeds 64 to 69, which no pilot
of the limit used on this task. Written before its one run:

- A *spike* begins at an update whose minibatch loss is above 0.3 and above four times the median of the 60 updates
  before, and more than 40 updates after the last such one.
- Beside each spike stand λs/2, the penalty's part of the step beside the plain part, and s/h*, batch sharpness over the
  largest stable curvature (√(1 + 4λ/ε) − 1)/λ: their medians over the 5 updates before it, and over the whole run from
  update 200 on. If single outlying minibatches were the cause, the 5 updates before would look like all others.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import torch
from large_batch_fleet import Fleet, Minibatches, Run, accuracies, gradient, held, make_optimizer, see
from large_batch_tasks import TASKS, load_task, number_of

from tacit._util.files import write_atomically
from tacit._util.provenance import provenance
from tacit.edges import largest_stable_curvature
from tacit.penalty.strength import RatioLimit
from tacit.studies.train import batched_mlp

FOLDER = Path(__file__).parent / "results"
SEEDS, RATIOS = range(64, 70), (None, 1.0)
BEFORE, SETTLED, QUIET, WINDOW, FACTOR, FLOOR = 5, 200, 40, 60, 4.0, 0.3


def spikes(losses: list[float]) -> list[int]:
    """The updates at which a spike begins."""
    found: list[int] = []
    last = -QUIET - 1
    for update in range(WINDOW, len(losses)):
        if not losses[update] <= max(FLOOR, FACTOR * median(losses[update - WINDOW : update])):
            if update - last > QUIET:
                found.append(update)
            last = update
    return found


def main() -> None:
    torch.set_num_threads(1)
    task = TASKS["fashion"]
    arrays, rate = load_task(task), task.rates["sgd"]
    rows = [json.loads(line) for line in (FOLDER / "large_batch.jsonl").read_text().splitlines()]
    wanted = {"kind": "advice", "task": "fashion", "optimizer": "sgd"}
    advice = next(row for row in rows if all(row.get(key) == value for key, value in wanted.items()))["advice"]
    strength = number_of(advice, "strength")
    runs = tuple(Run(seed, rate, strength, largest_ratio=ratio) for ratio in RATIOS for seed in SEEDS)
    fleet = Fleet(runs, task.new_batch_size, task.batch_size, task.updates)
    layers, batches = batched_mlp.initialise(task.sizes, [run.seed for run in runs]), Minibatches(task, arrays, fleet)
    limits = [None if run.largest_ratio is None else RatioLimit(run.largest_ratio) for run in runs]
    step = make_optimizer(fleet, layers, torch.full((len(runs), 1, 1), rate))
    losses, sharpness, strengths = [], [], []
    for update in range(task.updates):
        inputs, targets = batches(update)
        logits = batched_mlp.outputs(layers, inputs)
        losses.append((-(logits.log_softmax(2) * targets).sum(2).mean(1)).tolist())
        now, found = held(torch.full((len(runs), 1, 1), strength), limits), []
        parts = gradient(layers, inputs, targets, strength=now, micro=task.batch_size, batch_sharpness=found)
        see(limits, found)
        step(parts)
        sharpness.append(found[0].tolist())
        strengths.append(now.flatten().tolist())
    accuracy = accuracies(layers, *arrays.test)
    made: list[dict[str, Any]] = []
    for number, run in enumerate(runs):
        s, applied = ([at[number] for at in some] for some in (sharpness, strengths))
        began = spikes([at[number] for at in losses])
        edge = largest_stable_curvature(rate, strength=strength)
        parts_ratio = [a * b / 2 for a, b in zip(applied, s, strict=True)]
        made.append(
            {
                "seed": run.seed,
                "largest_ratio": run.largest_ratio,
                "test_accuracy": accuracy[number],
                "spikes": began,
                "mean_strength": sum(applied) / len(applied),
                "ratio_of_parts": median(parts_ratio[SETTLED:]),
                "sharpness_over_edge": median(s[SETTLED:]) / edge,
                "before_spikes": [
                    {"ratio_of_parts": median(parts_ratio[at - BEFORE : at]),
                     "sharpness_over_edge": median(s[at - BEFORE : at]) / edge} for at in began
                ],
            }
        )  # fmt: skip
        print(made[-1], flush=True)
    found = {"provenance": provenance(), "learning_rate": rate, "strength": strength, "updates": task.updates}
    write_atomically(FOLDER / "limit_cause.json", json.dumps(_finite({**found, "rows": made}), indent=1) + "\n")


def _finite(value: Any) -> Any:
    """A lost run has no numbers: null in JSON."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


if __name__ == "__main__":
    main()
