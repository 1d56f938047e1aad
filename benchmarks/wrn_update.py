"""Where the time of a WRN-10-1 update on CIFAR-10 goes, and what was tried for a faster one.

    python benchmarks/wrn_update.py --json benchmarks/results/wrn_update.json
    python benchmarks/wrn_update.py --quick

One thread, B = 32, minibatches of the study's own crops, images of 16x16 and 32x32; milliseconds of one update, the
median over rounds in which all ways take turns:
  plain, penalised        what a study does (`Single.update`: the penalised gradient is written out)
  double_backward, gram   the same penalised gradient by these methods of `GradientPenalty`
  convolutions            the convolutions of a plain update alone, forward and backward, on tensors of the same shapes:
                          a plain update has them once, a penalised one does three times as many operations
  data                    gathering, cropping, flipping and standardising
  bfloat16, contiguous    the study's updates with bfloat16 convolutions, or without the channels-last layout
Then the time of an evaluation against the number of images in a forward pass, and updates per second of the machine:
one process with one thread, one process with two threads, two processes with one thread each.
Run it on an idle machine: about four minutes on two cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from tacit._util.provenance import provenance
from tacit.studies.data.load import load
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train.packing import Fleet
from tacit.studies.train.training import Training

BATCH_SIZE, DECAY, RATE, STRENGTH = 32, 5e-4, 2**-12, 2**-6
SIZES = (16, 32)
ROWS = (25, 50, 100, 250, 500)
SPLIT_SECONDS = 10.0  # of each way to use two cores
Way = Callable[[], object]


def training(size: int, *, strength: float, precision: str = "float32") -> Training:
    """A run of studies/cifar10 at a rate so small that it stays where it is."""
    run = RunSpec(
        dataset="cifar10", image_size=size if size < 32 else None, model="wide_resnet", depth=10, width=1,
        augmentation="crop_flip", weight_decay=DECAY, learning_rate=RATE, strength=strength, batch_size=BATCH_SIZE,
        train_size=4096, epochs=1_000_000, evaluations=1, precision=precision,
    )  # fmt: skip
    return Training(Fleet((run,)), load("cifar10"))


def updates(made: Training) -> Way:
    """One minibatch after the other, drawn as in a study; no evaluation."""
    positions = itertools.count()

    def update() -> None:
        made.program.update(*made._batch(next(positions)), rates=[RATE])

    return update


def by_method(made: Training, method: str) -> Way:
    """The penalised update of a study with the gradient of `GradientPenalty`."""
    model: nn.Module = made.program.model  # type: ignore[attr-defined]
    penalty, positions = tacit.GradientPenalty(model, STRENGTH, method=method), itertools.count()
    parameters: list[Tensor] = list(model.parameters())

    def update() -> None:
        inputs, labels = made._batch(next(positions))
        inputs = inputs.contiguous(memory_format=torch.channels_last)

        def loss() -> Tensor:
            flat = torch.cat([parameter.reshape(-1) for parameter in parameters])
            return F.cross_entropy(model(inputs), labels) + DECAY / 2 * flat.dot(flat)

        model.zero_grad(set_to_none=True)
        penalty.backward(loss)
        with torch.no_grad():
            torch._foreach_add_(parameters, [parameter.grad for parameter in parameters], alpha=-RATE)

    return update


def contiguous(made: Training) -> Way:
    made.program.layout = torch.contiguous_format  # type: ignore[attr-defined]
    made.program.model.to(memory_format=torch.contiguous_format)  # type: ignore[attr-defined]
    return updates(made)


def convolutions(made: Training) -> Way:
    """Every convolution of a plain update, forward and backward, with the inputs that it has there."""
    model: nn.Module = made.program.model  # type: ignore[attr-defined]
    seen: list[tuple[nn.Conv2d, Tensor, Tensor]] = []

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d)
        seen.append((layer, inputs[0].detach(), torch.randn_like(outputs)))

    hooks = [layer.register_forward_hook(keep) for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    images = made._batch(0)[0].contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()

    @torch.no_grad()
    def all_of_them() -> None:
        for number, (layer, inputs, gradient) in enumerate(seen):
            settings = (list(layer.stride), list(layer.padding), list(layer.dilation), False, [0, 0], 1)
            torch.ops.aten.convolution(inputs, layer.weight, layer.bias, *settings)
            torch.ops.aten.convolution_backward(
                gradient, inputs, layer.weight, [layer.out_channels], *settings, [number > 0, True, True]
            )

    return all_of_them


def data_alone(made: Training) -> Way:
    positions = itertools.count()
    return lambda: made._batch(next(positions))


def ways(size: int) -> dict[str, Way]:
    return {
        "plain": updates(training(size, strength=0.0)),
        "penalised": updates(training(size, strength=STRENGTH)),
        "penalised, double_backward": by_method(training(size, strength=0.0), "double_backward"),
        "penalised, gram": by_method(training(size, strength=0.0), "gram"),
        "convolutions": convolutions(training(size, strength=0.0)),
        "data": data_alone(training(size, strength=0.0)),
        "plain, bfloat16": updates(training(size, strength=0.0, precision="bfloat16")),
        "penalised, bfloat16": updates(training(size, strength=STRENGTH, precision="bfloat16")),
        "plain, contiguous": contiguous(training(size, strength=0.0)),
        "penalised, contiguous": contiguous(training(size, strength=STRENGTH)),
    }


def milliseconds(turns: dict[str, Way], *, rounds: int, calls: int) -> dict[str, float]:
    """The median over rounds of a call's time; the first round warms up and does not count."""
    seen: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + 1):
        for name, call in turns.items():
            begun = time.perf_counter()
            for _ in range(calls):
                call()
            if number:
                seen[name].append(1e3 * (time.perf_counter() - begun) / calls)
    return {name: round(statistics.median(taken), 3) for name, taken in seen.items()}


def evaluations(size: int, *, rounds: int) -> dict[str, float]:
    """Milliseconds of a look at 1,000 test images, by the number of rows in a forward pass."""
    made = training(size, strength=0.0)

    def look(rows: int) -> None:
        for start in range(0, 1000, rows):
            made.program.outputs(made.test.inputs.between(start, start + rows))

    turns: dict[str, Way] = {str(rows): lambda rows=rows: look(rows) for rows in ROWS}  # type: ignore[misc]
    return milliseconds(turns, rounds=rounds, calls=1)


def _count_updates(strength: float, threads: int, seconds: float, gate: Any, counts: Any) -> None:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    update = updates(training(16, strength=strength))
    for _ in range(20):
        update()
    gate.wait()
    begun, done = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        update()
        done += 1
    counts.put(done / (time.monotonic() - begun))


def updates_per_second(*, processes: int, threads: int, strength: float, seconds: float) -> float:
    """All processes together, on 16x16 images, between two moments that they share."""
    context = multiprocessing.get_context("spawn")
    gate, counts = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=_count_updates, args=(strength, threads, seconds, gate, counts))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    total = sum(counts.get() for _ in workers)
    for worker in workers:
        worker.join()
    return round(total, 2)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="few and short rounds: to see that it works")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rounds, calls, seconds = (2, 2, 0.5) if options.quick else (15, 10, SPLIT_SECONDS)
    result: dict[str, Any] = {
        "model": "WRN-10-1", "batch_size": BATCH_SIZE, "threads": 1, "rounds": rounds, "calls_in_a_round": calls,
        "milliseconds": {str(size): milliseconds(ways(size), rounds=rounds, calls=calls) for size in SIZES},
        "milliseconds_of_1000_images": {str(size): evaluations(size, rounds=rounds) for size in SIZES},
        "updates_per_second": {
            name: {
                way: updates_per_second(processes=processes, threads=threads, strength=strength, seconds=seconds)
                for way, (processes, threads) in {
                    "one process, one thread": (1, 1), "one process, two threads": (1, 2),
                    "two processes, one thread each": (2, 1),
                }.items()
            }
            for name, strength in {"plain": 0.0, "penalised": STRENGTH}.items()
        },
        **provenance(),
    }  # fmt: skip
    for size, found in result["milliseconds"].items():
        for name, taken in found.items():
            print(f"{size}x{size} {name:28} {taken:8.2f} ms   {taken / found['plain']:.2f} plain")
    print(json.dumps({key: result[key] for key in ("milliseconds_of_1000_images", "updates_per_second")}, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
