"""Does batch sharpness settle at 2/ε, and at 2(1±β)/ε with momentum? An MLP, minutes on a CPU.

    python benchmarks/batch_sharpness.py                    # all arms, writes results/batch_sharpness.json
    python benchmarks/batch_sharpness.py --arm sgd-16       # one of them, printed only

MNIST-1D, one-hot targets and squared error (the losses for which the limit is reported), 40-64-64-10 with tanh. Batch
sharpness is E⟨g, Hg⟩/E‖g‖² over 32 minibatches (the full batch: one), 40 times per run; the verdict compares the median
of the last quarter with the reported limit: confirmed within 10 %.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit._files import write_atomically
from tacit._provenance import provenance
from tacit._random import generator
from tacit.batching import epoch_batches
from tacit.studies.data.load import load
from tacit.theory.sharpness import batch_sharpness_of, reported_limit, settling

RESULT = Path(__file__).parent / "results" / "batch_sharpness.json"
TRAIN_SIZE, WIDTH, CHECKS, MEASURED = 512, 64, 40, 32


@dataclass(frozen=True)
class Arm:
    name: str
    learning_rate: float
    batch_size: int
    steps: int
    momentum: float = 0.0


ARMS = (
    Arm("gd", 0.2, TRAIN_SIZE, 12_000),
    Arm("sgd-16-fast", 0.4, 16, 12_000),
    Arm("sgd-16", 0.2, 16, 16_000),
    Arm("sgd-16-slow", 0.1, 16, 24_000),
    Arm("sgd-64", 0.2, 64, 12_000),
    Arm("momentum-gd", 0.2, TRAIN_SIZE, 8_000, momentum=0.5),
    Arm("momentum-16", 0.1, 16, 16_000, momentum=0.5),
)


def run(arm: Arm, *, seed: int = 0, scale: float = 1.0) -> dict[str, Any]:
    data = load("mnist1d")
    inputs, labels = (torch.from_numpy(rows[:TRAIN_SIZE]) for rows in (data.train_inputs, data.train_targets))
    targets = nn.functional.one_hot(labels, 10).float()
    torch.manual_seed(seed)
    sizes = (inputs.shape[1], WIDTH, WIDTH, 10)
    model = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.Tanh(), nn.Linear(sizes[1], sizes[2]), nn.Tanh(),
                          nn.Linear(sizes[2], sizes[3]))  # fmt: skip
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=arm.learning_rate, momentum=arm.momentum)

    def loss_of(batch: Tensor) -> Tensor:
        return 0.5 * (model(inputs[batch]) - targets[batch]).square().sum(1).mean()

    steps = round(arm.steps * scale)
    every, measured, done, epoch = max(1, steps // CHECKS), [], 0, 0
    probes = generator(seed, "probe")
    while done < steps:
        for batch in epoch_batches(TRAIN_SIZE, arm.batch_size, order="shuffled", seed=seed, epoch=epoch):
            optimizer.zero_grad()
            loss = loss_of(batch)
            loss.backward()
            optimizer.step()
            done += 1
            if done % every == 0:
                count = 1 if arm.batch_size == TRAIN_SIZE else MEASURED
                picked = [torch.randperm(TRAIN_SIZE, generator=probes)[: arm.batch_size] for _ in range(count)]
                sharpness = batch_sharpness_of([lambda b=b: loss_of(b) for b in picked], parameters)
                measured.append(
                    {"step": done, "loss": loss_of(torch.arange(TRAIN_SIZE)).item(), "sharpness": sharpness}
                )
            if done == steps or not math.isfinite(loss.item()):
                break
        epoch += 1
        if not math.isfinite(loss.item()):
            break
    limit = reported_limit(arm.learning_rate, momentum=arm.momentum, full_batch=arm.batch_size == TRAIN_SIZE)
    found = settling([row["sharpness"] for row in measured], limit=limit)
    seen = {"limit": limit, "ratio": found.ratio, "verdict": found.verdict}
    return {**seen, **asdict(found), "arm": asdict(arm), "seed": seed, "history": measured}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", choices=[arm.name for arm in ARMS])
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the steps, for a try")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for arm in ARMS:
        if options.arm in (None, arm.name):
            row = run(arm, scale=options.scale)
            rows.append(row)
            settings = f"ε = {arm.learning_rate:g}, B = {arm.batch_size}, β = {arm.momentum:g}"
            found = f"settled at {row['settled']:.1f}, {row['ratio']:.2f} of the limit {row['limit']:.1f}"
            print(f"{arm.name:<12} {settings:<26} {found}: {row['verdict']}", flush=True)
    if options.arm is None and options.scale == 1.0:
        write_atomically(RESULT, json.dumps({"provenance": provenance(), "rows": rows}, indent=1) + "\n")
        print(f"wrote {RESULT.name}")


if __name__ == "__main__":
    main()
