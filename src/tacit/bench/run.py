"""One benchmark: every step of every chosen model, as a dictionary that can be written as JSON."""

from __future__ import annotations

import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from tacit import __version__
from tacit._util.errors import InputError
from tacit._util.files import write_atomically
from tacit._util.provenance import commit, processor
from tacit._util.timing import time_interleaved, waits_for
from tacit.bench.accuracy import oracle, relative_error
from tacit.bench.memory import peak_bytes
from tacit.bench.models import SEED, BenchModel, Workload
from tacit.bench.paired import median_with_interval
from tacit.bench.steps import (
    LEARNING_RATE,
    NAIVE,
    STRENGTH,
    TWO_PASSES,
    Step,
    make_penalty,
    steps_for,
)

SCHEMA = "tacit-bench/1"
QUICK_ROUNDS = 3  # of every model; a full run takes as many as the model says
CPU = torch.device("cpu")


def run(
    models: list[BenchModel],
    *,
    quick: bool,
    device: torch.device = CPU,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Times, peak memory and errors of every step on every given model, with what is needed to repeat them."""
    started, begun = datetime.now(UTC), time.perf_counter()
    measured = []
    for model in models:
        say(f"measuring {model.title}")
        measured.append(measure_model(model, rounds=QUICK_ROUNDS if quick else model.rounds, device=device))
    return {
        "schema": SCHEMA,
        "tacit": __version__,
        "commit": commit(),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - begun, 1),
        "quick": quick,
        "settings": {"strength": STRENGTH, "learning_rate": LEARNING_RATE, "dtype": "float32", "seed": SEED},
        "machine": machine(device),
        "definitions": {
            "times_plain": "median time of a step / median time of a plain torch.optim.SGD step, in turns",
            "times_naive": f"median over rounds of a step's time / that of {NAIVE} in the same round; order "
            "statistics that enclose it with at least 95 %",
            "microseconds_above_naive": "the same of their difference",
            "times_two_passes": f"as times_naive, with {TWO_PASSES}: a finite difference written by hand",
            "peak_times_plain": "peak bytes alive in torch's allocator, state included / the same of plain",
            "relative_error": "‖G − G₆₄‖ / ‖(λ/2)∇²Ĉ∇Ĉ‖: applied float32 gradient against double backward in float64",
        },
        "models": measured,
    }


def measure_model(model: BenchModel, *, rounds: int, device: torch.device = CPU) -> dict[str, Any]:
    """The rows of one model. A step that refuses the model becomes a row with the reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # approximate methods warn about their error, which is a column of the table
        costs = _costs(model.make().to(device), rounds=rounds)
        workload = model.make().to(device)  # the oracle and every step see the parameters as they were drawn
        reference = oracle(workload)
        for row in costs:
            if row["status"] == "measured":
                kind = steps_for(workload)[row["step"]]
                row["relative_error"] = relative_error(kind, workload, reference) if kind.penalised else None
    return {
        "name": model.name,
        "title": model.title,
        "batch_size": model.batch_size,
        "micro_batch_size": workload.micro_batch_size,
        "momentum": workload.momentum,
        "memory_format": model.memory_format,
        "parameters": sum(parameter.numel() for parameter in workload.model.parameters()),
        "rows": costs,
    }


def _costs(workload: Workload, *, rounds: int) -> list[dict[str, Any]]:
    steps: dict[str, Step] = {}
    refused: dict[str, str] = {}
    kinds = steps_for(workload)
    for name, kind in kinds.items():
        try:
            step = kind.make(workload, LEARNING_RATE)
            step()  # some refuse only once they have seen the model run
            steps[name] = step
        except InputError as error:
            refused[name] = str(error)
    timings = time_interleaved(steps, rounds=rounds, synchronise=waits_for(workload.inputs.device))
    peaks = {name: peak_bytes(workload, step) for name, step in steps.items()}
    rows: list[dict[str, Any]] = []
    for name, kind in kinds.items():
        row: dict[str, Any] = {"step": name, "exact": kind.exact}
        if name in refused:
            rows.append({**row, "status": "refused", "reason": refused[name]})
            continue
        if name == "auto":
            row["method"] = make_penalty(workload, name).method
        seen = timings[name]
        rows.append(
            {
                **row,
                "status": "measured",
                "milliseconds": 1e3 * median(seen),
                "milliseconds_quartiles": _quartiles([1e3 * seconds for seconds in seen]),
                "rounds": len(seen),
                "times_plain": median(seen) / median(timings["plain"]),
                **(_beside_rivals(name, timings) if kind.penalised else {}),
                "peak_bytes": peaks[name],
                "peak_times_plain": peaks[name] / peaks["plain"],
            }
        )
    return rows


def _quartiles(values: list[float]) -> list[float]:
    return quantiles(values, n=4, method="inclusive")[::2] if len(values) > 1 else 2 * values


def _beside_rivals(name: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """The step against the hand-written ones, pair by pair."""
    pairs = list(zip(seconds[name], seconds[NAIVE], strict=True))
    columns = {
        "times_naive": [ours / naive for ours, naive in pairs],
        "microseconds_above_naive": [1e6 * (ours - naive) for ours, naive in pairs],
    }
    if name == "finite_difference":
        rival = seconds[TWO_PASSES]
        columns["times_two_passes"] = [ours / theirs for ours, theirs in zip(seconds[name], rival, strict=True)]
    numbers: dict[str, Any] = {}
    for column, values in columns.items():
        numbers[column], numbers[f"{column}_interval"] = median_with_interval(values)
    return numbers


def machine(device: torch.device = CPU) -> dict[str, Any]:
    """What the numbers depend on, and nothing that names the machine."""
    return {
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write(result: dict[str, Any], path: Path) -> None:
    """The result as JSON, under its name only once it is complete."""
    write_atomically(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
