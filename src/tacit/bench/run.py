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
from typing import Any

import torch

from tacit import __version__
from tacit._errors import InputError
from tacit._files import write_atomically
from tacit._provenance import commit, processor
from tacit.bench import fleets
from tacit.bench.accuracy import oracle, relative_error
from tacit.bench.memory import peak_bytes
from tacit.bench.models import SEED, BenchModel, Workload
from tacit.bench.steps import LEARNING_RATE, STRENGTH, Step, steps_for, time_interleaved

SCHEMA = "tacit-bench/1"
QUICK_ROUNDS = 3  # of every model; a full run takes as many as the model says
FLEET_ROUNDS = 50


def run(
    models: list[BenchModel], *, quick: bool, with_fleets: bool = False, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Times, peak memory and errors of every step on every given model, with what is needed to repeat them."""
    started, begun = datetime.now(UTC), time.perf_counter()
    measured = []
    for model in models:
        say(f"measuring {model.title}")
        measured.append(measure_model(model, rounds=QUICK_ROUNDS if quick else model.rounds))
    fleet_rates = None
    if with_fleets:
        say(f"measuring fleets of {fleets.RUNS} runs")
        fleet_rates = fleets.measure(rounds=QUICK_ROUNDS if quick else FLEET_ROUNDS)
    return {
        "schema": SCHEMA,
        "tacit": __version__,
        "commit": commit(),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - begun, 1),
        "quick": quick,
        "settings": {"strength": STRENGTH, "learning_rate": LEARNING_RATE, "dtype": "float32", "seed": SEED},
        "machine": machine(),
        "definitions": {
            "times_plain": "median time of a step / median time of a plain torch.optim.SGD step, in turns",
            "peak_times_plain": "peak bytes alive in torch's allocator, state included / the same of plain",
            "relative_error": "‖G − G₆₄‖ / ‖(λ/2)∇²Ĉ∇Ĉ‖: applied float32 gradient against double backward in float64",
        },
        "models": measured,
        "fleets": fleet_rates,
    }


def measure_model(model: BenchModel, *, rounds: int) -> dict[str, Any]:
    """The rows of one model. A step that refuses the model becomes a row with the reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # approximate methods warn about their error, which is a column of the table
        costs = _costs(model.make(), rounds=rounds)
        workload = model.make()  # the oracle and every step see the parameters as they were drawn
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
    timings = time_interleaved(steps, rounds=rounds)
    peaks = {name: peak_bytes(workload, step) for name, step in steps.items()}
    rows: list[dict[str, Any]] = []
    for name, kind in kinds.items():
        row: dict[str, Any] = {"step": name, "exact": kind.exact}
        if name in refused:
            rows.append({**row, "status": "refused", "reason": refused[name]})
            continue
        seen = timings[name]
        rows.append(
            {
                **row,
                "status": "measured",
                "milliseconds": 1e3 * seen.median,
                "milliseconds_quartiles": [1e3 * seen.low, 1e3 * seen.high],
                "rounds": seen.rounds,
                "times_plain": seen.median / timings["plain"].median,
                "peak_bytes": peaks[name],
                "peak_times_plain": peaks[name] / peaks["plain"],
            }
        )
    return rows


def machine() -> dict[str, Any]:
    """What the numbers depend on, and nothing that names the machine."""
    return {
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
