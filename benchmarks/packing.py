"""Which runs should train together: seconds per update of one run, in fleets of several sizes, on one thread.

    python benchmarks/packing.py --json benchmarks/results/packing.json
    python benchmarks/packing.py --quick

Two questions. MLPs with a run axis (`batched_mlp`): how many runs per fleet, for widths from 64 to 4096? Wide-ResNets:
is a run axis (`torch.func.vmap` over stacked models, one minibatch each) faster than one model after the other? All
sizes of one model run in turns, round by round; `times_alone` is the median over rounds of the time per run in a fleet
over the time of a fleet of one in the same round: below 1 the fleet pays. The rule in `tacit.studies.train.packing` is
read off this.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from tacit._util.provenance import provenance
from tacit._util.random_generators import generator
from tacit.studies.data.datasets import FACTS
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train import batched_mlp, operations
from tacit.studies.train.models import wide_resnet
from tacit.studies.train.module_program import Single
from tacit.studies.train.packing import ALONE

BATCH_SIZE, RATE, STRENGTH = 32, 2**-20, 2**-6  # a rate so small that the models stay where they are
WIDTHS = {64: (1, 4, 8, 16, 24, 32), 128: (1, 4, 8, 16, 24), 256: (1, 4, 8, 16, 24), 512: (1, 2, 4, 8)}
WIDTHS |= {1024: (1, 2, 4, 8), 2048: (1, 2, 4), 4096: (1, 2)}
Update = Callable[[], object]


def in_turns(updates: dict[int, Update], *, rounds: int) -> list[dict[str, Any]]:
    """Seconds per run and update for every fleet size, and the ratio to a fleet of one."""
    seconds: dict[int, list[float]] = {runs: [] for runs in updates}
    for update in updates.values():
        update()
    for _ in range(rounds):
        for runs, update in updates.items():
            repeats = max(1, max(updates) // runs)  # about as much work in every turn
            begun = time.perf_counter()
            for _ in range(repeats):
                update()
            seconds[runs].append((time.perf_counter() - begun) / repeats / runs)
    return [
        {
            "runs": runs,
            "milliseconds_per_run_update": 1e3 * statistics.median(taken),
            "times_alone": statistics.median(a / b for a, b in zip(taken, seconds[1], strict=True)),
        }
        for runs, taken in seconds.items()
    ]


# -- MLPs -----------------------------------------------------------------------------------------------------------
def mlps(sizes: list[int], runs: int, *, penalized: bool) -> Update:
    draws = generator(0, "probe")
    layers = batched_mlp.initialise(sizes, list(range(runs)))
    inputs = torch.randn(runs, BATCH_SIZE, sizes[0], generator=draws)
    targets = F.one_hot(torch.randint(10, (runs, BATCH_SIZE), generator=draws), 10).float()
    rate, strength, decay = (torch.full((runs, 1, 1), value) for value in (RATE, STRENGTH, 0.0))
    rates = batched_mlp.Rates(rate, strength, decay, penalized=penalized, decayed=False)
    return lambda: batched_mlp.update(layers, inputs, targets, rates=rates)


# -- Wide-ResNets ---------------------------------------------------------------------------------------------------
def one_after_the_other(runs: int, size: int, *, penalized: bool) -> Update:
    common: dict[str, Any] = {"dataset": "cifar10", "model": "wide_resnet", "depth": 10, "width": 1, "epochs": 1}
    specs = [
        RunSpec(**common, learning_rate=RATE, strength=STRENGTH if penalized else 0.0, seed=seed)
        for seed in range(runs)
    ]
    cpu = torch.device("cpu")
    programs = [Single((spec,), FACTS[spec.dataset], device=cpu, dtype=torch.float32) for spec in specs]
    images, labels = pictures(runs, size)

    def update() -> None:
        for program, rows, targets in zip(programs, images, labels, strict=True):
            program.update(rows, targets, rates=[RATE])

    return update


def with_a_run_axis(runs: int, size: int, *, penalized: bool) -> Update:
    models = [wide_resnet(10, 1, generator=generator(seed, "init")) for seed in range(runs)]
    parameters, _ = stack_module_state(models)  # type: ignore[arg-type]
    images, labels = pictures(runs, size)

    def loss(one: dict[str, Tensor], rows: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(models[0], one, (rows,)), targets)

    def objective(one: dict[str, Tensor], rows: Tensor, targets: Tensor) -> Tensor:
        value = loss(one, rows, targets)
        if not penalized:
            return value
        gradients = grad(loss)(one, rows, targets)
        return value + STRENGTH / 4 * sum(gradient.square().sum() for gradient in gradients.values())

    gradient_of_all = vmap(grad(objective))

    def update() -> None:
        with torch.no_grad():
            gradients = gradient_of_all(parameters, images, labels)
            for name, parameter in parameters.items():
                parameter.sub_(gradients[name], alpha=RATE)

    return update


def pictures(runs: int, size: int) -> tuple[Tensor, Tensor]:
    draws = generator(0, "probe")
    images = torch.randn(runs, BATCH_SIZE, 3, size, size, generator=draws)
    return images, torch.randint(10, (runs, BATCH_SIZE), generator=draws)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="few rounds, small models: to see that it works")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # as a worker has
    rounds = 3 if options.quick else 15
    result: dict[str, Any] = {"threads": 1, "batch_size": BATCH_SIZE, "rounds": rounds, "alone_beyond": ALONE}
    result["mlps"], result["wide_resnets"] = [], []
    for width, fleets in WIDTHS.items():
        if options.quick and width > 512:
            continue
        sizes = [784, width, width, width, 10]
        for penalized in (False, True):
            found = in_turns(
                {runs: mlps(sizes, runs, penalized=penalized) for runs in fleets},
                rounds=rounds if width < 2048 else max(3, rounds // 3),
            )
            best = min(found, key=lambda row: row["times_alone"])
            row = {"sizes": sizes, "multiply_adds": operations.mlp(sizes).multiply_adds, "penalized": penalized}
            result["mlps"].append({**row, "fleets": found, "best": best["runs"]})
            print(f"MLP width {width:4} penalized={penalized!s:5} " + in_words(found), flush=True)
    for size in (8,) if options.quick else (16, 32):
        for penalized in (False, True):
            fleets = (1, 2) if options.quick else (1, 2, 4, 8)
            found = compare(size, fleets, penalized=penalized, rounds=3 if options.quick else 7)
            result["wide_resnets"].append({"size": size, "penalized": penalized, "fleets": found})
            text = "  ".join(f"{row['runs']}: {row['run_axis_over_one_by_one']:.2f}" for row in found)
            print(f"WRN-10-1 {size}x{size} penalized={penalized!s:5} run axis over one by one  {text}", flush=True)
    result |= provenance()
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def compare(size: int, fleets: Sequence[int], *, penalized: bool, rounds: int) -> list[dict[str, Any]]:
    """Both ways for every number of runs, in turns."""
    rows = []
    for runs in fleets:
        ways = {
            "one_by_one": one_after_the_other(runs, size, penalized=penalized),
            "run_axis": with_a_run_axis(runs, size, penalized=penalized),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for round_ in range(rounds + 1):  # the first one warms up
            for name, update in ways.items():
                begun = time.perf_counter()
                update()
                if round_:
                    seconds[name].append((time.perf_counter() - begun) / runs)
        pairs = zip(seconds["run_axis"], seconds["one_by_one"], strict=True)
        row = {f"{name}_milliseconds": 1e3 * statistics.median(taken) for name, taken in seconds.items()}
        rows.append({"runs": runs, **row, "run_axis_over_one_by_one": statistics.median(a / b for a, b in pairs)})
    return rows


def in_words(found: list[dict[str, Any]]) -> str:
    alone = found[0]["milliseconds_per_run_update"]
    return f"alone {alone:8.2f} ms  " + "  ".join(f"{row['runs']}: {row['times_alone']:.2f}" for row in found[1:])


if __name__ == "__main__":
    main()
