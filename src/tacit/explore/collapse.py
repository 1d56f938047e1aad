"""Which rows the page of the collapse shows: plain SGD at several batch sizes, alike in everything else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tacit._errors import InputError

SHOWN = "best_test_accuracy"  # what the report's figures of the collapse show
FREE = ("learning_rate", "batch_size", "seed", "method")  # the method of the penalty: there is none here


def collapse_runs(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The largest set of rows without penalty and inner steps that differ in learning rate, batch size and seed alone.

    A run that several studies have counts once. The curves need at least two batch sizes with two learning rates each.
    """
    alike: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        spec = row["spec"]
        if spec["strength"] == 0 and spec["inner_steps"] == 1:
            rest = json.dumps({key: value for key, value in spec.items() if key not in FREE}, sort_keys=True)
            alike.setdefault(rest, {})[row["run"]] = row
    candidates = [list(group.values()) for group in alike.values()]
    found = max(candidates, key=lambda group: (len(_batch_sizes(group)), len(group)), default=[])
    if len(_batch_sizes(found)) < 2:
        raise InputError(
            "the rows have fewer than two batch sizes with at least two learning rates each; expected a study such as "
            "that of figure 3a or 6b."
        )
    kept = _batch_sizes(found)
    return [row for row in found if row["spec"]["batch_size"] in kept]


def as_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as the page takes them, safe inside a script element."""
    spec = rows[0]["spec"]
    length = f"{spec['epochs']} epochs" if spec["epochs"] is not None else f"{spec['updates']} updates"
    seeds = {row["spec"]["seed"] for row in rows}
    facts = (
        f"{len(rows)} runs on {spec['dataset']}: {spec['train_size']:,} training examples, {spec['model']}, {length}, "
        f"{len(seeds)} seeds. Highest test accuracy of each run."
    )
    lost = sum(row[SHOWN] is None for row in rows)
    if lost:
        facts += f" Of these, {lost} diverged before they were first evaluated and are not drawn."
    runs = [
        {
            "batchSize": row["spec"]["batch_size"],
            "rate": row["spec"]["learning_rate"],
            "accuracy": row[SHOWN],
            "diverged": row["status"] != "finished",
        }
        for row in rows
        if row[SHOWN] is not None
    ]
    return json.dumps({"facts": facts, "runs": runs}).replace("<", "\\u003c")


def _batch_sizes(rows: Sequence[Mapping[str, Any]]) -> set[int]:
    """Those with at least two learning rates that can be drawn: fewer make no curve."""
    rates: dict[int, set[float]] = {}
    for row in rows:
        if row[SHOWN] is not None:
            rates.setdefault(row["spec"]["batch_size"], set()).add(row["spec"]["learning_rate"])
    return {size for size, found in rates.items() if len(found) >= 2}
