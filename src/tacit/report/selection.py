"""Which rows a figure reads, and the variables its axes show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tacit._errors import InputError
from tacit.report.ensemble import Row, group, scores
from tacit.report.verdict import LEARNED
from tacit.studies.describe.study import Study

Spec = Mapping[str, Any]


@dataclass(frozen=True)
class Variable:
    """One axis: words with the symbol, and its value for a run."""

    words: str
    symbol: str
    of: Callable[[Spec], float]

    @property
    def label(self) -> str:
        return f"{self.words} {self.symbol}"


VARIABLES = {
    "learning_rate": Variable("learning rate", "ε", lambda spec: spec["learning_rate"]),
    "strength": Variable("strength", "λ", lambda spec: spec["strength"]),
    "total": Variable("strength plus learning rate", "λ + ε", lambda spec: spec["strength"] + spec["learning_rate"]),
    "temperature": Variable("learning rate over batch size", "ε/B", lambda s: s["learning_rate"] / s["batch_size"]),
    "strength_ratio": Variable("strength over batch size", "λ/B", lambda spec: spec["strength"] / spec["batch_size"]),
    "bare_learning_rate": Variable("bare learning rate", "α", lambda s: s["learning_rate"] / s["inner_steps"]),
    "effective_learning_rate": Variable("effective learning rate", "nα", lambda spec: spec["learning_rate"]),
    "batch_size": Variable("batch size", "B", lambda spec: spec["batch_size"]),
    "inner_steps": Variable("inner steps", "n", lambda spec: spec["inner_steps"]),
    "epochs": Variable("epochs", "", lambda spec: spec["epochs"] or np.nan),
    "width": Variable("width", "", lambda spec: spec["width"]),
    "train_size": Variable("training examples", "N", lambda spec: spec["train_size"]),
    "weight_decay": Variable("weight decay", "μ", lambda spec: spec["weight_decay"]),
}


@dataclass(frozen=True)
class Source:
    """The rows that feed one figure, and how runs become points: mean of the best `best` of `of` by `score`."""

    rows: Sequence[Row]
    best: int
    of: int
    score: str = "best_test_accuracy"
    options: Mapping[str, Any] = field(default_factory=dict)

    def where(self, **conditions: Any) -> list[Row]:
        """Rows whose spec has these values; a function as a value is a condition."""

        def holds(spec: Spec) -> bool:
            return all(
                wanted(spec[key]) if callable(wanted) else spec[key] == wanted for key, wanted in conditions.items()
            )

        return [row for row in self.rows if holds(row["spec"])]


class MissingRowsError(InputError):
    """The rows at hand do not hold what this figure needs."""


def need(rows: Sequence[Row], what: str, *, points: int = 1, key: str | None = None) -> list[Row]:
    """The rows, or a sentence that says what the figure lacks."""
    distinct = len({row["spec"][key] for row in rows}) if key else len(rows)
    if distinct < points:
        raise MissingRowsError(f"needs {what}; the rows at hand have {distinct} of at least {points}.")
    return list(rows)


# -- what a figure states about its runs is checked -------------------------------------------------------------------
SGD: dict[str, Any] = {"order": "shuffled", "schedule": "constant", "inner_steps": 1}
# 6400 epochs at B = 32 and 10 million steps are the same length in the paper (figures 1b and 3b). With the whole
# batches that 50,000 images have, they differ by 0.16 %.
SAME_LENGTH = 0.005
APPENDIX_D: dict[str, Any] = {**SGD, "model": "mlp", "weight_decay": 0.0, "augmentation": "none"}


def alike(rows: Sequence[Row], *, varying: Sequence[str], length: str | None = "epochs", **protocol: Any) -> list[Row]:
    """The rows, or a sentence: all follow the protocol and differ in nothing but `varying` and the seed.

    `length` names what has to be equal besides, epochs or updates, however the study file gave it, within
    `SAME_LENGTH`. Without this check runs of different settings would be taken for runs of different seeds.
    """
    for key, wanted in protocol.items():
        others = {row["spec"][key] for row in rows} - {wanted}
        if others:
            raise MissingRowsError(f"needs runs with {key} = {wanted}; those at hand also have {_listed(others)}.")
    lengths = {"epochs": epochs_of, "updates": planned_updates}
    free = {*varying, "seed", "epochs", "updates"}
    found = {key: {row["spec"][key] for row in rows} for key in (rows[0]["spec"] if rows else {}) if key not in free}
    if length is not None:
        found[length] = _as_one({lengths[length](row) for row in rows})
    for key, values in found.items():
        if len(values) > 1:
            raise MissingRowsError(
                f"needs runs that differ in {', '.join(varying)} and seed alone; those at hand also differ in "
                f"{key}: {_listed(values)}."
            )
    seen: set[tuple[Any, ...]] = set()
    for row in rows:
        place = (*[row["spec"][key] for key in varying], epochs_of(row), row["spec"]["seed"])
        if place in seen:
            raise MissingRowsError(f"needs each seed once per grid point; seed {row['spec']['seed']} is there twice.")
        seen.add(place)
    return list(rows)


def _as_one(lengths: set[float]) -> set[float]:
    """One of the lengths if they are the same but for whole batches, else all of them."""
    return lengths if lengths and max(lengths) > (1 + SAME_LENGTH) * min(lengths) else set(list(lengths)[:1])


def _listed(values: set[Any]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in sorted(values, key=str))


def planned_updates(row: Row) -> int:
    """Updates the run was to make: a diverged run has made fewer."""
    spec = row["spec"]
    if spec["updates"] is not None:
        return int(spec["updates"])
    return int(spec["epochs"] * (spec["train_size"] // spec["batch_size"]) * spec["inner_steps"])


def epochs_of(row: Row) -> float:
    """Epochs the run was to make, also when its length was given in updates."""
    spec = row["spec"]
    if spec["epochs"] is not None:
        return float(spec["epochs"])
    return float(spec["updates"] / (spec["train_size"] // spec["batch_size"]) / spec["inner_steps"])


def learned(rows: Sequence[Row]) -> bool:
    """Whether the runs of one point end up knowing their training set: mean final training accuracy at least 90 %.

    A collapse is judged on such points alone. Below, a point shows a run that is too short or unstable: at fixed
    epochs ε/B (or nα) is also the time that gradient flow has had, so unfinished runs collapse on it whatever the
    regularizer does.
    """
    return float(scores(rows, "final_train_accuracy").mean()) >= LEARNED


def plain(source: Source) -> Source:
    """The runs without penalty alone: a study of rates may hold strengths too."""
    return replace(source, rows=source.where(strength=0.0))


def small_rate(rows: Sequence[Row]) -> float:
    """The small learning rate at which strengths were swept: the one that most penalized runs share."""
    rates = [row["spec"]["learning_rate"] for row in rows if row["spec"]["strength"] > 0]
    if not rates:
        raise MissingRowsError("needs runs with a strength λ > 0; the rows at hand have none.")
    return float(max(set(rates), key=lambda rate: (rates.count(rate), -rate)))


def shared_strength(rows: Sequence[Row]) -> float:
    """The λ > 0 that was run at the most learning rates."""
    rates: dict[float, set[float]] = {}
    for row in rows:
        if row["spec"]["strength"] > 0:
            rates.setdefault(row["spec"]["strength"], set()).add(row["spec"]["learning_rate"])
    if not rates:
        raise MissingRowsError("needs runs with a strength λ > 0; the rows at hand have none.")
    return max(rates, key=lambda strength: len(rates[strength]))


def shared_budgets(rows: Sequence[Row]) -> list[int]:
    """Numbers of epochs at which every n was run: tuning over others would favour the n that has them."""
    budgets = [{row["spec"]["epochs"] for row in of_n} for of_n in group(rows, "inner_steps").values()]
    return sorted(set.intersection(*budgets) - {None}) if budgets else []


def unshared_seeds(studies: Sequence[Study]) -> frozenset[int]:
    """Seeds that some studies of a figure planned and others did not; none where that would leave fewer than two.

    The best 4 of 5 runs lie above the mean of 3, whatever was trained: points of one figure need equal numbers of runs.
    What was planned decides, so that an unfinished study leaves nothing out.
    """
    planned = [frozenset(run.seed for run in study.runs) for study in studies]
    shared = frozenset.intersection(*planned) if planned else frozenset()
    return frozenset().union(*planned) - shared if len(shared) > 1 else frozenset()
