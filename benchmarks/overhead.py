"""What a penalised step costs beyond hand-written double backward, on models so small that little else is left.

Microseconds a step above naive double backward, for `auto`, `double_backward` and `gram` with `torch.optim.SGD`: in
every round all steps take their turn, the difference is that of the same round, and printed is the median over rounds
with an interval that encloses it with at least 95 % (order statistics). The number of rounds is fixed before the first.
Three models are those that the penalty's steps are tuned on; the five held-out ones are not looked at while tuning.
Then, for the second step of a two-layer MLP: how many calls of functions of src/tacit `penalty.backward` makes, and in
how many files. Comprehensions, generator expressions and lambdas are counted apart: Python 3.12 makes no calls of most.
Targets: at most 150 µs; 60 calls in 12 files for `double_backward`, 250 in 18 for `gram`. Exit code 0 also where they
are missed. One thread. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from tacit._util.provenance import provenance
from tacit._util.timing import time_interleaved
from tacit.bench.models import SEED, Workload
from tacit.bench.paired import median_with_interval
from tacit.bench.steps import LEARNING_RATE, NAIVE, STEPS, STRENGTH, make_penalty

EXAMPLES = """examples:
  python benchmarks/overhead.py
  python benchmarks/overhead.py --rounds 501 --json benchmarks/results/overhead.json
  python benchmarks/overhead.py --quick --json /tmp/overhead.json
"""
METHODS = ("auto", "double_backward", "gram")
ROUNDS, QUICK_ROUNDS = 301, 6
MICROSECONDS = 150
CALLS_AND_FILES = {"double_backward": (60, 12), "gram": (250, 18)}
SOURCE = str(Path(tacit.__file__).parent)


class EncoderLayer(nn.Module):
    """One `nn.TransformerEncoderLayer` on 16 tokens of width 32, then the mean and ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 2, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.layer(rows).mean(1))


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, rows: Tensor) -> Tensor:
        return rows + self.inner(rows)


class Mean(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows.mean(1)


class LastState(nn.Module):
    """An Elman network written as a loop over the signal: one cell used at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.head = nn.Linear(4, 24), nn.Linear(24, 24), nn.Linear(24, 10)

    def forward(self, signals: Tensor) -> Tensor:
        state = signals.new_zeros(len(signals), 24)
        for position in signals.unbind(1):
            state = torch.tanh(self.enter(position) + self.again(state))
        return self.head(state)


def perceptron(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])


def convolutional() -> nn.Module:
    enter, again = nn.Conv2d(1, 8, 3, stride=2), nn.Conv2d(8, 16, 3, stride=2)
    return nn.Sequential(enter, nn.ReLU(), again, nn.ReLU(), nn.Flatten(), nn.Linear(16 * 3 * 3, 10))


def signal_convolutions() -> nn.Module:
    enter, again = nn.Conv1d(1, 12, 5, stride=2), nn.Conv1d(12, 12, 3, stride=2)
    return nn.Sequential(enter, nn.Tanh(), again, nn.Tanh(), nn.Flatten(), nn.Linear(12 * 8, 10))


def residual_mlp() -> nn.Module:
    inner = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    return nn.Sequential(nn.Linear(20, 32), Residual(inner), nn.LayerNorm(32), nn.Linear(32, 10))


def bag_of_words() -> nn.Module:
    return nn.Sequential(nn.Embedding(100, 24), Mean(), nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 10))


def numbers(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "MLP 40-64³-10, B=32": (lambda: perceptron(40, 64, 64, 64, 10), numbers(32, 40)),
    "two convolutions on 16x16, B=32": (convolutional, numbers(32, 1, 16, 16)),
    "encoder layer, width 32, B=16": (EncoderLayer, numbers(16, 16, 32)),
}
HELD_OUT: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "tanh MLP 10-24⁶-10, B=16": (lambda: perceptron(10, *[24] * 6, 10, activation=nn.Tanh), numbers(16, 10)),
    "convolutions on signals of 40, B=32": (signal_convolutions, numbers(32, 1, 40)),
    "residual MLP with layer norm, B=64": (residual_mlp, numbers(64, 20)),
    "bag of words, B=32": (bag_of_words, lambda: torch.randint(100, (32, 12))),
    "recurrent, 8 positions, B=16": (LastState, numbers(16, 8, 4)),
}


def workload(make: Callable[[], nn.Module], inputs: Callable[[], Tensor]) -> Workload:
    """The same model and minibatch in every run of this file."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model, drawn = make(), inputs()
        return Workload(model, drawn, torch.randint(10, (len(drawn),)), attention=isinstance(model, EncoderLayer))


def above_naive(made: Workload, *, rounds: int) -> dict[str, Any]:
    """Microseconds of a step above naive double backward in the same round: median and interval, for each method."""
    steps = {name: STEPS[name].make(made, LEARNING_RATE) for name in (NAIVE, *METHODS)}
    for step in steps.values():
        step()  # what is computed once is not the price of a step
    seconds = time_interleaved(steps, rounds=rounds)
    result: dict[str, Any] = {"naive_microseconds": 1e6 * median_with_interval(seconds[NAIVE])[0]}
    result["auto_is"] = make_penalty(made, "auto").method
    for name in METHODS:
        pairs = zip(seconds[name], seconds[NAIVE], strict=True)
        middle, interval = median_with_interval([1e6 * (ours - naive) for ours, naive in pairs])
        result[name] = {"microseconds_above_naive": middle, "interval": interval}
    return result


def traced(method: str) -> dict[str, int]:
    """Calls of functions of src/tacit, resumed generators among them, and their files, in the second step."""
    made = workload(lambda: perceptron(40, 64, 10), numbers(16, 40))
    penalty = tacit.GradientPenalty(made.model, STRENGTH, method=method)
    seen: list[tuple[str, str]] = []

    def closure() -> Tensor:
        return F.cross_entropy(made.model(made.inputs), made.targets)

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            seen.append((frame.f_code.co_filename, frame.f_code.co_name))

    penalty.backward(closure)
    made.model.zero_grad()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        penalty.backward(closure)
    finally:
        sys.setprofile(before)
    named = [name for _, name in seen if not name.startswith("<")]
    return {
        "calls": len(named),
        "comprehensions_and_lambdas": len(seen) - len(named),
        "files": len({file for file, _ in seen}),
    }


def measure(*, rounds: int) -> dict[str, Any]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        kinds = {"models": MODELS, "held_out": HELD_OUT}
        timed = {
            kind: {name: above_naive(workload(*parts), rounds=rounds) for name, parts in models.items()}
            for kind, models in kinds.items()
        }
        return {
            "threads": 1, "rounds": rounds, "strength": STRENGTH, **timed,
            "second_step_of_a_two_layer_mlp": {method: traced(method) for method in CALLS_AND_FILES},
            "targets": {"microseconds": MICROSECONDS, "calls_and_files": CALLS_AND_FILES},
            **provenance(),
        }  # fmt: skip
    finally:
        torch.set_num_threads(before)


def table(result: dict[str, Any]) -> str:
    lines = [f"{'µs a step above naive':38} {'naive':>7}" + "".join(f" {name:>24}" for name in METHODS)]
    for kind in ("models", "held_out"):
        for name, row in result[kind].items():
            cells = "".join(f" {_cell(row[method]):>24}" for method in METHODS)
            lines.append(
                f"{name:38} {row['naive_microseconds']:7.0f}{cells}{'  held out' if kind == 'held_out' else ''}"
            )
    lines.append(f"target: at most {result['targets']['microseconds']}; [95 %] of {result['rounds']} rounds")
    for method, seen in result["second_step_of_a_two_layer_mlp"].items():
        calls, files = result["targets"]["calls_and_files"][method]
        lines.append(
            f"{method}: {seen['calls']} calls in {seen['files']} files (at most {calls} in {files}), "
            f"and {seen['comprehensions_and_lambdas']} of comprehensions and lambdas"
        )
    return "\n".join(lines)


def _cell(number: dict[str, Any]) -> str:
    interval = number["interval"]
    ends = "" if interval is None else f" [{interval[0]:.0f}, {interval[1]:.0f}]"
    return f"{number['microseconds_above_naive']:.0f}{ends}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of every model, fixed before the first ({ROUNDS})")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds: to see that it works")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}; expected at least 1.")
    if options.json and not options.json.resolve().parent.is_dir():
        parser.error(f"--json {options.json}: its folder does not exist; make it, or name another.")
    logging.getLogger("tacit").setLevel(logging.ERROR)  # the attention backend is the same in the naive step
    result = measure(rounds=QUICK_ROUNDS if options.quick else options.rounds)
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
