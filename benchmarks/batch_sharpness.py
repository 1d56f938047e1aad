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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tacit._util.arguments import finite_number
from tacit._util.errors import InputError
from tacit._util.files import write_atomically
from tacit._util.provenance import provenance
from tacit._util.random_generators import generator
from tacit.batching import epoch_batches
from tacit.studies.data.load import load

Verdict = Literal["confirmed", "below", "above", "diverged"]
TOLERANCE = 0.1  # of the limit: what the study calls settled at it
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


def batch_sharpness_of(losses: Sequence[Callable[[], Tensor]], parameters: Sequence[Tensor]) -> float:
    """E⟨g_B, H_B g_B⟩/E‖g_B‖² of a model in training: each function returns the loss of one minibatch.

    One Hessian product per minibatch, by double backward; nothing is changed, `.grad` neither.
    """
    if not losses:
        raise InputError("losses is empty; expected at least one function that returns the loss of a minibatch.")
    above, below = 0.0, 0.0
    for loss in losses:
        with torch.enable_grad():
            gradients = torch.autograd.grad(loss(), list(parameters), create_graph=True, materialize_grads=True)
            squared = torch.stack([g.square().sum() for g in gradients]).sum()
            held = [g.detach() for g in gradients]
            if squared.requires_grad:  # else the loss is linear, and its curvature zero
                # ∇(½‖g‖²) = H g.
                products = torch.autograd.grad(squared / 2, list(parameters), materialize_grads=True)
                above += sum((p * g).sum().item() for p, g in zip(products, held, strict=True))
        below += squared.item()
    return above / below if below else 0.0


def reported_limit(learning_rate: float, *, momentum: float = 0.0, full_batch: bool = False) -> float:
    """The value at which batch sharpness is reported to settle: 2/ε, 2(1−β)/ε small batches, 2(1+β)/ε full batch."""
    rate = finite_number("learning_rate", learning_rate, positive=True)
    beta = finite_number("momentum", momentum)
    return 2 * (1 + beta if full_batch else 1 - beta) / rate


@dataclass(frozen=True)
class Settling:
    """Where batch sharpness settled in one run, beside the reported limit."""

    limit: float
    settled: float  # the median over the last quarter of the run
    lowest: float
    highest: float

    @property
    def ratio(self) -> float:
        return self.settled / self.limit

    @property
    def verdict(self) -> Verdict:
        if not self.ratio < float("inf"):
            return "diverged"
        return "confirmed" if abs(self.ratio - 1) <= TOLERANCE else "below" if self.ratio < 1 else "above"


def settling(values: Sequence[float], *, limit: float) -> Settling:
    """The last quarter of a run's values beside the limit."""
    last = sorted(values[-max(1, len(values) // 4) :])
    if not last:
        raise InputError("values is empty; expected the batch sharpness along a run.")
    return Settling(limit, last[len(last) // 2], last[0], last[-1])


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
