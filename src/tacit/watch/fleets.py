"""One fleet as the page shows it: how far it is, its settings, and one metric of its runs as they train."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tacit.report.text import power
from tacit.studies.store.rows import Meta, Row
from tacit.studies.store.status import FleetStatus

METRICS = ("test_accuracy", "train_accuracy", "full_loss")
MOST_PLACES = 60  # of a learning curve: more cannot be told apart in a picture
LAST_LINES, MOST_LINE = 12, 300  # of an error
SHOWN = (("learning_rate", "ε"), ("strength", "λ"), ("batch_size", "B"), ("inner_steps", "n"), ("seed", "seed"))


def finished_fleet(id: str, rows: Sequence[Row], meta: Meta, metric: str) -> dict[str, Any]:
    """A fleet whose runs have rows."""
    machine = meta.get("machine")
    places = [meta.get("device"), machine.get("processor") if isinstance(machine, Mapping) else None]
    specs = [row["spec"] for row in rows]
    return {
        "id": id,
        "state": "finished",
        "done": 1.0,
        "runs": len(rows),
        "diverged": sum(row["status"] != "finished" for row in rows),
        "settings": settings_text(specs),
        "seconds": _number(meta.get("seconds")),
        "ended": str(meta.get("ended") or "")[:40],
        "where": ", ".join(str(place)[:80] for place in places if place),
        **learning_curves(specs, [row["history"] for row in rows], metric),
    }


def unfinished_fleet(status: FleetStatus, metric: str) -> dict[str, Any]:
    """A fleet that waits, trains, was stopped or was given up; curves are those of its last checkpoint."""
    specs = [run.model_dump() for run in status.fleet.runs]
    stored = status.checkpoint.get("history")
    histories = stored if isinstance(stored, list) and len(stored) == len(specs) else []
    return {
        "id": status.fleet.id,
        "state": status.state,
        "done": round(status.done, 3),
        "runs": len(specs),
        "settings": settings_text(specs),
        "failure": failure_lines(status.failure),
        "problem": status.problem,
        **learning_curves(specs if histories else [], histories, metric),
    }


def failure_lines(failure: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """How often a fleet failed, and the last lines of its error."""
    if failure is None:
        return None
    lines = str(failure.get("error", "")).strip().splitlines()[-LAST_LINES:]
    attempts = failure.get("attempts")
    return {"attempts": attempts if isinstance(attempts, int) else None, "lines": [line[:MOST_LINE] for line in lines]}


def settings_text(specs: Sequence[Mapping[str, Any]]) -> str:
    """What the runs of a fleet have in common and over which ranges they differ, in symbols.

    >>> settings_text([{"learning_rate": 0.5, "seed": 0}, {"learning_rate": 0.125, "seed": 1}])
    'ε = 2⁻³ … 2⁻¹, seed = 0 … 1'
    """
    parts = []
    for key, symbol in SHOWN:
        values = sorted({spec[key] for spec in specs if key in spec})
        if not values or (key == "strength" and values == [0]) or (key == "inner_steps" and values == [1]):
            continue
        shown = [str(value) if isinstance(value, int) else power(value) for value in values]
        parts.append(f"{symbol} = {shown[0]}" if len(shown) == 1 else f"{symbol} = {shown[0]} … {shown[-1]}")
    return ", ".join(parts)


def learning_curves(specs: Sequence[Mapping[str, Any]], histories: Sequence[Any], metric: str) -> dict[str, Any]:
    """`epochs`, which the runs of a fleet share, and `curves`: settings and values of the metric of each run."""
    histories = [history if isinstance(history, Mapping) else {} for history in histories]
    epochs = max((_numbers(history.get("epochs")) for history in histories), key=len, default=[])
    stride = max(1, math.ceil(len(epochs) / MOST_PLACES))
    kept = range(len(epochs) - 1, -1, -stride)[::-1]  # the last one among them
    curves = []
    for spec, history in zip(specs, histories, strict=True):
        heights = _numbers(history.get(metric))
        shown = [float(f"{heights[k]:.4g}") for k in kept if k < len(heights)]
        curves.append({**{key: spec.get(key) for key, _ in SHOWN}, "values": shown})
    return {"epochs": [float(f"{epochs[k]:.4g}") for k in kept], "curves": curves}


def _numbers(values: Any) -> list[float]:
    """The numbers of a list up to the first that is none: a checkpoint's history is not checked."""
    found: list[float] = []
    for value in values if isinstance(values, list) else []:
        number = _number(value)
        if number is None:
            break
        found.append(number)
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 else None
