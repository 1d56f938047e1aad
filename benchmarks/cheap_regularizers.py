"""What the sampled penalty and sharpness-aware minimization cost: multiples of a plain step, beside hand-written code.

In every round each step takes its turn: plain SGD, the penalty of one drawn micro-batch of b rows (`auto`), SAM with
its direction from b rows and from the whole batch, and the same three as an engineer writes them in ten lines. Printed
is the median over rounds of the ratio to the plain step of the same round, an interval that encloses it with at least
95 %, and how far the package lies above the hand-written step: as a ratio, or in microseconds where a plain step takes
less than 5 ms. Targets: 1.03, or 150 µs. Then the peak memory of a step in plain ones. The number of rounds is fixed
before the first. Run it on an idle machine: one thread, then two. Measured on CPU cores; a GPU was not measured.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tacit
from tacit._util.provenance import provenance
from tacit._util.timing import time_interleaved
from tacit.bench.memory import peak_bytes
from tacit.bench.models import (
    Workload,
    _language_model_workload,
    _mlp_workload,
    _narrow_mlp,
    _transformer_workload,
    _wide_resnet_workload,
)
from tacit.bench.paired import median_with_interval
from tacit.bench.steps import LEARNING_RATE, STRENGTH, Step, plain

EXAMPLES = """examples:
  python benchmarks/cheap_regularizers.py
  python benchmarks/cheap_regularizers.py --json benchmarks/results/cheap_regularizers.json
  python benchmarks/cheap_regularizers.py --models "MLP 40-64³" --quick
"""
RADIUS = 0.05
LARGEST_RATIO, MICROSECONDS, SMALL_STEP = 1.03, 150, 5e-3
PENALTY, SAM_ROWS, SAM = "penalty of one micro-batch", "SAM, direction from b rows", "SAM"
BY_HAND = {PENALTY: "penalty by hand", SAM_ROWS: "SAM from b rows by hand", SAM: "SAM by hand"}


@dataclass(frozen=True)
class Setting:
    make: Callable[[], Workload]
    rows: int  # b
    rounds: int


contiguous = torch.contiguous_format
MODELS = {
    "WRN-10-1, B=256, b=16": Setting(lambda: _wide_resnet_workload(256, contiguous), 16, 15),
    "WRN-10-1, B=128, b=32": Setting(lambda: _wide_resnet_workload(128, contiguous), 32, 15),
    "MLP 784-512², B=512, b=16": Setting(lambda: _mlp_workload(512, 512, hidden=2), 16, 61),
    "GPT-2 2x256, B=32, b=2": Setting(lambda: _language_model_workload(32, 64), 2, 15),
    "transformer block, B=64, b=4": Setting(lambda: _transformer_workload(64, 32), 4, 31),
    "MLP 40-64³, B=256, b=16": Setting(lambda: _narrow_mlp(256), 16, 301),
    "MLP 784-4096³, B=256, b=16": Setting(lambda: _mlp_workload(4096, 256), 16, 7),
}


def sampled_penalty(work: Workload, rows: int) -> Step:
    penalty = tacit.GradientPenalty(work.model, STRENGTH, micro_batch_size=rows, sampled=1)
    optimizer = torch.optim.SGD(work.model.parameters(), lr=LEARNING_RATE)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = penalty.backward(work.loss_on, work.inputs, work.targets)
        optimizer.step()
        return loss

    return step


def sharpness_aware(work: Workload, rows: int | None) -> Step:
    sam = tacit.SharpnessAware(work.model, RADIUS, sampled=rows)
    optimizer = torch.optim.SGD(work.model.parameters(), lr=LEARNING_RATE)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = sam.backward(work.loss_on, work.inputs, work.targets)
        optimizer.step()
        return loss

    return step


def penalty_by_hand(work: Workload, rows: int) -> Step:
    parameters = list(work.model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)

    def step() -> Tensor:
        optimizer.zero_grad()
        chosen = torch.randperm(len(work.inputs))[:rows]
        loss = work.loss()
        loss.backward()
        with work.twice_differentiable():
            of_rows = work.loss_on(work.inputs[chosen], work.targets[chosen])
        gradients = torch.autograd.grad(of_rows, parameters, create_graph=True)
        part = torch.autograd.grad(STRENGTH / 4 * sum(each.square().sum() for each in gradients), parameters)
        torch._foreach_add_([parameter.grad for parameter in parameters], part)
        optimizer.step()
        return loss

    return step


def sam_by_hand(work: Workload, rows: int | None) -> Step:
    parameters: list[Tensor] = list(work.model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)

    def step() -> Tensor:
        optimizer.zero_grad()
        if rows is None:
            first = work.loss()
        else:
            chosen = torch.randperm(len(work.inputs))[:rows]
            first = work.loss_on(work.inputs[chosen], work.targets[chosen])
        direction = torch.autograd.grad(first, parameters)
        with torch.no_grad():
            length = torch.stack(torch._foreach_norm(direction)).norm()
            before = [parameter.clone() for parameter in parameters]
            torch._foreach_mul_(direction, RADIUS / length)
            torch._foreach_add_(parameters, direction)
        loss = work.loss()
        loss.backward()
        with torch.no_grad():
            torch._foreach_copy_(parameters, before)
        optimizer.step()
        return loss

    return step


def steps_of(work: Workload, rows: int) -> dict[str, Step]:
    return {
        "plain": plain(work, LEARNING_RATE),
        PENALTY: sampled_penalty(work, rows),
        BY_HAND[PENALTY]: penalty_by_hand(work, rows),
        SAM_ROWS: sharpness_aware(work, rows),
        BY_HAND[SAM_ROWS]: sam_by_hand(work, rows),
        SAM: sharpness_aware(work, None),
        BY_HAND[SAM]: sam_by_hand(work, None),
    }


def prices(setting: Setting, *, rounds: int) -> dict[str, Any]:
    """Ratios to the plain step of the same round, for each step, and the distance from the hand-written ones."""
    steps = steps_of(setting.make(), setting.rows)
    for step in steps.values():
        step()  # what is computed once is not the price of a step
    seconds = time_interleaved(steps, rounds=rounds)
    plain_step = median_with_interval(seconds["plain"])[0]
    found: dict[str, Any] = {"plain_milliseconds": 1e3 * plain_step, "rounds": rounds}
    for name in (name for name in steps if name != "plain"):
        found[name] = _median(seconds[name], seconds["plain"], lambda ours, base: ours / base)
    for name, hand in BY_HAND.items():
        small = plain_step < SMALL_STEP
        how = (lambda ours, base: 1e6 * (ours - base)) if small else (lambda ours, base: ours / base)
        kind = "microseconds" if small else "ratio"
        found[f"{name}, above by hand"] = {"in": kind, **_median(seconds[name], seconds[hand], how)}
    return found


def _median(ours: list[float], base: list[float], how: Callable[[float, float], float]) -> dict[str, Any]:
    middle, interval = median_with_interval([how(a, b) for a, b in zip(ours, base, strict=True)])
    return {"median": middle, "interval": interval}


def memory(setting: Setting) -> dict[str, float]:
    """The peak of a step in those of a plain one."""
    found = {}
    for name in ("plain", PENALTY, SAM_ROWS, SAM):
        work = setting.make()
        step = steps_of(work, setting.rows)[name]
        step()
        step()
        found[name] = float(peak_bytes(work, step))
    return {name: value / found["plain"] for name, value in found.items()}


def measure(names: Sequence[str], *, quick: bool) -> dict[str, Any]:
    before = torch.get_num_threads()
    result: dict[str, Any] = {
        "measured_on": "CPU cores; GPU not measured",
        "targets": {"ratio": LARGEST_RATIO, "microseconds": MICROSECONDS, "plain_seconds": SMALL_STEP},
        "radius": RADIUS,
        "strength": STRENGTH,
        "threads": {},
    }
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            result["threads"][str(threads)] = found = {}
            for name in names:
                found[name] = prices(MODELS[name], rounds=3 if quick else MODELS[name].rounds)
                print(line(name, threads, found[name]), flush=True)
        result["memory"] = {name: memory(MODELS[name]) for name in names}
    finally:
        torch.set_num_threads(before)
    for name, row in result["memory"].items():
        print(f"{name:30} memory " + "  ".join(f"{step} {value:.2f}" for step, value in row.items()))
    return {**result, **provenance()}


def line(name: str, threads: int, row: dict[str, Any]) -> str:
    cells = []
    for step in BY_HAND:
        above = row[f"{step}, above by hand"]
        value = f"{above['median']:+.0f} µs" if above["in"] == "microseconds" else f"{above['median']:.3f} x"
        cells.append(f"{step} {row[step]['median']:.2f} (by hand {row[BY_HAND[step]]['median']:.2f}, {value})")
    return f"{name:30} {threads} thr, plain {row['plain_milliseconds']:7.1f} ms: " + "  ".join(cells)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=[], help="parts of names; all without it")
    parser.add_argument("--quick", action="store_true", help="three rounds: to see that it works")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    options = parser.parse_args(arguments)
    names = [name for name in MODELS if not options.models or any(part in name for part in options.models)]
    if not names:
        parser.error(f"--models {' '.join(options.models)}; expected parts of {', '.join(MODELS)}.")
    if options.json and not options.json.resolve().parent.is_dir():
        parser.error(f"--json {options.json}: its folder does not exist; make it, or name another.")
    logging.getLogger("tacit").setLevel(logging.ERROR)
    result = measure(names, quick=options.quick)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
