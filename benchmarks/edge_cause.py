"""Why were strengths below the deterministic edge unstable with momentum? The same steps on larger and larger batches.

    python benchmarks/edge_cause.py                            # writes results/edge_cause.json, about two minutes

The first grid of `edge.py` at β = 0.9 on MNIST-1D saw 7 of 12 settings at most at 0.75 λ* unstable. Three
explanations, and what each expects of the same (ε, λ) on batches of 256, 1,024 and all 2,048 examples (micro-batches of
16 in all of them):

- the formula of heavy ball, 2(1+β), is wrong: unstable on all batch sizes;
- curvature grows after it was measured: λ_max, measured again on the way, is larger where a run is unstable, on all
  batch sizes;
- curvature differs from minibatch to minibatch, and momentum amplifies that: unstable on small batches only, and the
  edge in the mean square, 2(1+β)/(1 + c²(1+β)/(1−β)), orders the settings of all batch sizes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from edge import SHARES, STEPS, losses, starting_point, walk
from large_batch_fleet import as_model
from large_batch_tasks import TASKS, load_task
from torch.nn.functional import cross_entropy

import tacit
from tacit._util.files import write_atomically
from tacit._util.provenance import provenance
from tacit.edges import Step, largest_stable_strength, stability_limit

RESULT = Path(__file__).parent / "results" / "edge_cause.json"
START_SEED, SEEDS = 70, (71, 72, 73)  # those of the first grid, which this explains
BETA, SHARE_OF_EDGE = 0.9, 0.75
BATCH_SIZES = (256, 1024, 2048)


def main() -> None:
    torch.set_num_threads(1)
    task = TASKS["mnist1d"]
    arrays = load_task(task)
    start, seen = starting_point(task, arrays, START_SEED)
    assert seen.spectrum is not None
    h, spread = seen.spectrum.largest, seen.spectrum.curvature_spread(task.batch_size)
    rates = [share * stability_limit(momentum=BETA) / h for share in SHARES]
    step = Step(momentum=BETA, curvature_spread=spread)
    strengths = [SHARE_OF_EDGE * largest_stable_strength(rate, h, step=step) for rate in rates]
    settings = [*zip(rates, strengths, strict=True), *[(rate, 0.0) for rate in rates]]
    rows: list[dict[str, Any]] = []
    for size in BATCH_SIZES:
        layers, worst = walk(replace(task, new_batch_size=size), arrays, start, settings, beta=BETA, seeds=SEEDS)
        for number, (rate, strength) in enumerate(settings):
            first = number * len(SEEDS)
            after = None
            if all(loss is not None for loss in worst[first : first + len(SEEDS)]):
                model = as_model(task, layers, first)
                found = tacit.measure(model, cross_entropy, arrays.train, batch_size=size, curvature=True)
                after = found.largest_eigenvalue.value if found.largest_eigenvalue is not None else None
            rows.append(
                {
                    "batch_size": size,
                    "learning_rate": rate,
                    "strength": strength,
                    "curvature_spread_of_batch": seen.spectrum.curvature_spread(size),
                    "worst_losses": worst[first : first + len(SEEDS)],
                    "largest_eigenvalue_after": after,
                }
            )
            print(rows[-1], flush=True)
    found = {"provenance": provenance(), "momentum": BETA, "steps": STEPS, "largest_eigenvalue": h}
    found |= {"curvature_spread": spread, "starting_loss": float(losses(start, arrays)[0]), "rows": rows}
    write_atomically(RESULT, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
