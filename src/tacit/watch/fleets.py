"""One fleet as the page shows it: how far it is, its settings, and the test accuracy of its runs as they train."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tacit.report.text import power
from tacit.studies.store.rows import Meta, Row
from tacit.studies.store.status import FleetProgress

MOST_PLACES = 60  # of a learning curve: more cannot be told apart in a picture
MOST_CURVES = 64  # of a fleet: packed fleets have at most 24 runs
LAST_LINES, MOST_LINE = 12, 300  # of an error
SHOWN = (("learning_rate", "ε"), ("strength", "λ"), ("batch_size", "B"), ("inner_steps", "n"), ("seed", "seed"))


def finished_fleet(rows: Sequence[Row], meta: Meta) -> dict[str, Any]:
    """A fleet whose runs have rows."""
    machine = meta.get("machine")
    places = [meta.get("device"), machine.get("processor") if isinstance(machine, Mapping) else None]
    return {
        "state": "finished",
        "done": 1.0,
        "runs": len(rows),
        "diverged": sum(row["status"] != "finished" for row in rows),
        "settings": settings_text([row["spec"] for row in rows]),
        "seconds": _number(meta.get("seconds")),
        "ended": str(meta.get("ended") or "")[:40],
        "where": ", ".join(str(place)[:80] for place in places if place),
        **learning_curves([row["spec"] for row in rows], [row["history"] for row in rows]),
    }


def unfinished_fleet(specs: Sequence[Mapping[str, Any]], progress: FleetProgress, *, state: str) -> dict[str, Any]:
    """A fleet that waits, trains, was stopped or was given up; curves are those of its last checkpoint."""
    stored = progress.checkpoint.get("history")
    histories = stored if isinstance(stored, list) and len(stored) == len(specs) else []
    return {
        "state": state,
        "done": round(progress.done, 3),
        "runs": len(specs),
        "settings": settings_text(specs),
        "failure": failure_lines(progress.failure),
        "problem": progress.unreadable,
        **learning_curves(specs if histories else [], histories),
    }


def failure_lines(failure: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """How often a fleet failed, when, and the last lines of its error."""
    if failure is None:
        return None
    lines = str(failure.get("error", "")).strip().splitlines()[-LAST_LINES:]
    attempts = failure.get("attempts")
    return {
        "attempts": attempts if isinstance(attempts, int) else None,
        "ended": str(failure.get("ended") or "")[:40],
        "lines": [line[:MOST_LINE] for line in lines],
    }


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


def learning_curves(specs: Sequence[Mapping[str, Any]], histories: Sequence[Any]) -> dict[str, Any]:
    """`epochs`, which the runs of a fleet share, and `curves`: the settings and test accuracies of each run."""
    epochs: list[float] = []
    curves = []
    for spec, history in list(zip(specs, histories, strict=True))[:MOST_CURVES]:
        history = history if isinstance(history, Mapping) else {}
        places, heights = _numbers(history.get("epochs")), _numbers(history.get("test_accuracy"))
        epochs = places if len(places) > len(epochs) else epochs
        curves.append((spec, heights))
    kept = _kept(len(epochs))
    shown = [
        {**{key: spec.get(key) for key, _ in SHOWN}, "test": [round(heights[k], 4) for k in kept if k < len(heights)]}
        for spec, heights in curves
    ]
    return {"epochs": [float(f"{epochs[k]:.4g}") for k in kept], "curves": shown}


def _kept(length: int) -> list[int]:
    """At most MOST_PLACES places of a list, the last one among them."""
    stride = max(1, math.ceil(length / MOST_PLACES))
    return list(range(length - 1, -1, -stride))[::-1]


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
