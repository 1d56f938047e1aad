"""Rows of runs: which of them a figure reads, whether they belong together, and the variables on axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit._util.errors import InputError
from tacit.studies.describe.study import Study

Row = Mapping[str, Any]
Spec = Mapping[str, Any]
Options = Mapping[str, Any]
Reader = Callable[[Sequence[Row], Options], list[Row]]


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
    "epochs": Variable("epochs", "", lambda spec: epochs_of({"spec": spec})),
    "width": Variable("width", "", lambda spec: spec["width"]),
    "train_size": Variable("training examples", "N", lambda spec: spec["train_size"]),
    "weight_decay": Variable("weight decay", "μ", lambda spec: spec["weight_decay"]),
}


class MissingRowsError(InputError):
    """The rows at hand do not hold what this figure needs."""


# -- readers: which rows a figure takes from its studies, by specs alone ----------------------------------------------
def plain(rows: Sequence[Row], options: Options) -> list[Row]:
    """Runs without penalty: of the epochs or updates that an option names, if it does."""
    found = having(rows, strength=0.0)
    if "epochs" in options:
        found = [row for row in found if epochs_of(row) == options["epochs"]]
    if "updates" in options:
        found = [row for row in found if planned_updates(row) == options["updates"]]
    return found


def penalized(rows: Sequence[Row], options: Options) -> list[Row]:
    """Strengths λ > 0 at the one small rate."""
    return [row for row in having(rows, learning_rate=small_rate(rows)) if row["spec"]["strength"] > 0]


def sweeps(rows: Sequence[Row], options: Options) -> list[Row]:
    """The two sweeps of figure 1: rates at λ = 0, and strengths at one small rate."""
    return [*plain(rows, options), *penalized(rows, options)]


def two_rate_sweeps(rows: Sequence[Row], options: Options) -> list[Row]:
    """Rates at λ = 0, and rates at the λ > 0 that was run at most of them."""
    return [*plain(rows, options), *having(rows, strength=shared_strength(rows))]


def over_budgets(rows: Sequence[Row], options: Options) -> list[Row]:
    """Runs without penalty at the epoch budgets that every n has."""
    found = plain(rows, options)
    shared = shared_budgets(found)
    return [row for row in found if row["spec"]["epochs"] in shared]


def having(rows: Sequence[Row], **values: Any) -> list[Row]:
    """The rows whose spec has these values."""
    return [row for row in rows if all(row["spec"][key] == value for key, value in values.items())]


def group(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by the values of some spec keys, sorted by them."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row["spec"][key] for key in keys), []).append(row)
    return dict(sorted(found.items()))


# -- what a figure states about its runs is checked -------------------------------------------------------------------
# 6400 epochs at B = 32 and 10 million steps are the same length in the paper (figures 1b and 3b). With the whole
# batches that 50,000 images have, they differ by 0.16 %.
SAME_LENGTH = 0.005


def check_alike(
    rows: Sequence[Row], *, varying: Sequence[str], length: str | None = "epochs", protocol: Mapping[str, Any]
) -> None:
    """Refuse rows that do not follow the protocol or differ in more than `varying` and the seed.

    `length` names what has to be equal besides, epochs or updates, however the study file gave it, within
    `SAME_LENGTH`. Without this check runs of different settings would be taken for runs of different seeds.
    """
    for key, wanted in protocol.items():
        others = {row["spec"][key] for row in rows} - {wanted}
        if others:
            raise MissingRowsError(f"needs runs with {key} = {wanted}; those at hand also have {_listed(others)}.")
    lengths = {"epochs": epochs_of, "updates": planned_updates}
    free = {*varying, "seed", "epochs", "updates"}
    keys = [key for key in (rows[0]["spec"] if rows else {}) if key not in free]
    found = {key: {_hashable(row["spec"][key]) for row in rows} for key in keys}
    if length is not None:
        found[length] = _as_one({lengths[length](row) for row in rows})
    for key, values in found.items():
        if len(values) > 1:
            # A hash says nothing to a reader, and other functions differ in their names too, which are checked above.
            how = "own_code: a file changed between them" if key == "own_code" else f"{key}: {_listed(values)}"
            raise MissingRowsError(
                f"needs runs that differ in {', '.join(varying)} and seed alone; those at hand also differ in {how}."
            )
    seen: set[tuple[Any, ...]] = set()
    for row in rows:
        place = (*[row["spec"][key] for key in varying], epochs_of(row), row["spec"]["seed"])
        if place in seen:
            raise MissingRowsError(f"needs each seed once per grid point; seed {row['spec']['seed']} is there twice.")
        seen.add(place)


def _hashable(value: Any) -> Any:
    """The value itself; a table such as `model_arguments` as text."""
    return ", ".join(f"{name} = {entry}" for name, entry in value.items()) if isinstance(value, Mapping) else value


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


def core_seconds(meta: Mapping[str, Any]) -> float:
    """CPU seconds that a fleet used; the seconds that passed where that is not known, or where a GPU did the work."""
    keys = ("cpu_seconds", "seconds") if meta.get("device") in (None, "cpu") else ("seconds",)
    found = [meta.get(key) for key in keys]
    known = [each for each in found if isinstance(each, int | float) and not isinstance(each, bool) and each > 0]
    return float(known[0]) if known else 0.0


def epochs_of(row: Row) -> float:
    """Epochs the run was to make, also when its length was given in updates."""
    spec = row["spec"]
    if spec["epochs"] is not None:
        return float(spec["epochs"])
    return float(spec["updates"] / (spec["train_size"] // spec["batch_size"]) / spec["inner_steps"])


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
