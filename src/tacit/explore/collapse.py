"""What the page of the collapse shows: runs of several batch sizes, alike in all but ε (or λ) and seed, and the
distances between their curves as the report computes them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit._util.errors import InputError
from tacit._util.plural import counted
from tacit.report.figures.collapses import RATES, STRENGTHS, Question
from tacit.report.points import Points, accuracy, points_of
from tacit.report.rows import Row, epochs_of, planned_updates

SHOWN = "best_test_accuracy"  # what the report's figures of the collapse show
# Not part of what has to be alike: the axis, the curves, the seed, and the length, which is compared in its own unit.
FREE = ("batch_size", "seed", "epochs", "updates")


@dataclass(frozen=True)
class Sweep:
    """Rates without a penalty, or strengths at one rate, at several batch sizes."""

    question: Question
    rows: list[Row]

    @property
    def points(self) -> Points:
        return points_of(self.rows, accuracy(SHOWN))


def collapse_sweeps(rows: Sequence[Row]) -> list[Sweep]:
    """The largest set of alike runs of each kind: rates without a penalty first, then strengths.

    A run that several studies have counts once. The curves need at least two batch sizes with two points each.
    """
    plain = [row for row in rows if row["spec"]["inner_steps"] == 1]
    rates = [row for row in plain if row["spec"]["strength"] == 0]
    strengths = [row for row in plain if row["spec"]["strength"] > 0]
    # At fixed epochs rates are compared, at fixed updates strengths: as in figures 3a and 3b.
    found = [
        Sweep(RATES, _largest(rates, "learning_rate", updates=False)),
        Sweep(STRENGTHS, _largest(strengths, "strength", updates=True)),
    ]
    kept = [sweep for sweep in found if sweep.rows]
    if not kept:
        raise InputError(
            "the rows have fewer than two batch sizes with at least two learning rates, or two strengths, each; "
            "expected a study such as that of figure 3a or 6b."
        )
    return kept


def as_json(sweeps: Sequence[Sweep]) -> str:
    """The sweeps as the page takes them, safe inside a script element."""
    return json.dumps({"sweeps": [_sweep_json(sweep) for sweep in sweeps]}, allow_nan=False).replace("<", "\\u003c")


def _sweep_json(sweep: Sweep) -> dict[str, Any]:
    points, question = sweep.points, sweep.question
    counts = question.counted(points)
    judged = question.judged(points)
    ratio = judged.ratio.interval()
    return {
        "facts": _facts(sweep),
        "symbol": question.rival.symbol,
        "ratioSymbol": question.x.symbol,
        "words": question.rival.words,
        # The report's own numbers, null where too few points lie over each other.
        "report": {
            "ratio": ratio.text(2) if judged.points and math.isfinite(ratio.value) else None,
            "gap": judged.gap if judged.points else None,
            "rivalGap": judged.rival_gap if judged.points else None,
            "points": judged.points,
        },
        "points": [
            {
                "batchSize": points.specs[index]["batch_size"],
                "x": question.rival.of(points.specs[index]),
                "accuracy": float(points.layout.means[index]),
                # With one seed the scatter is not known: nothing is taken away for it.
                "variance": float(np.nan_to_num(points.layout.error(index) ** 2)),
                "counts": counts[index],
                "runs": [
                    {"accuracy": row[SHOWN], "diverged": row["status"] != "finished"}
                    for row in points.rows[index]
                    if row[SHOWN] is not None
                ],
            }
            for index in range(len(points.specs))
        ],
    }


def _facts(sweep: Sweep) -> str:
    rows = sweep.rows
    spec = rows[0]["spec"]
    length = (
        f"{planned_updates(rows[0]):,} updates" if sweep.question is STRENGTHS else f"{epochs_of(rows[0]):g} epochs"
    )
    seeds = len({row["spec"]["seed"] for row in rows})
    text = (
        f"{len(rows)} runs on {spec['dataset']}: {spec['train_size']:,} training examples, {spec['model']}, {length}, "
        f"{counted(seeds, 'seed')}. Highest test accuracy of each run."
    )
    lost = sum(row[SHOWN] is None for row in rows)
    return text + (f" Of these, {lost} diverged before they were first evaluated and are not drawn." if lost else "")


def _largest(rows: Sequence[Row], axis: str, *, updates: bool) -> list[Row]:
    """The runs that are alike in all but the axis, batch size and seed: of most batch sizes, then of most runs."""
    alike: dict[str, dict[str, Row]] = {}
    for row in rows:
        rest: Mapping[str, Any] = {k: v for k, v in row["spec"].items() if k not in (axis, *FREE)}
        length = planned_updates(row) if updates else f"{epochs_of(row):.6g}"
        alike.setdefault(json.dumps([rest, length], sort_keys=True), {})[row["run"]] = row
    groups = [list(group.values()) for group in alike.values()]
    found = max(groups, key=lambda group: (len(_batch_sizes(group, axis)), len(group)), default=[])
    kept = _batch_sizes(found, axis)
    return _of_shared_seeds([row for row in found if row["spec"]["batch_size"] in kept]) if len(kept) > 1 else []


def _of_shared_seeds(rows: list[Row]) -> list[Row]:
    """Without the runs of seeds that not every batch size has, unless fewer than two are shared: as in the report."""
    seeds: dict[int, set[int]] = {}
    for row in rows:
        seeds.setdefault(row["spec"]["batch_size"], set()).add(row["spec"]["seed"])
    shared = set.intersection(*seeds.values())
    return [row for row in rows if row["spec"]["seed"] in shared] if len(shared) > 1 else rows


def _batch_sizes(rows: Sequence[Row], axis: str) -> set[int]:
    """Those with at least two places that can be drawn: fewer make no curve."""
    places: dict[int, set[float]] = {}
    for row in rows:
        if row[SHOWN] is not None:
            places.setdefault(row["spec"]["batch_size"], set()).add(row["spec"][axis])
    return {size for size, found in places.items() if len(found) >= 2}
