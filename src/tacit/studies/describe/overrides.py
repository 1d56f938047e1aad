"""`key=value` on the command line: values that replace those of a study file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tacit._util.errors import InputError
from tacit.studies.describe.error_messages import shorten
from tacit.studies.describe.grid import Table, as_range, grid_tables, run_key
from tacit.studies.describe.spec import RUN_KEYS, number

# A run gives one of each pair; overriding one takes the other away.
EXCLUSIVE = [{"epochs", "updates"}, {"learning_rate", "bare_learning_rate"}]


def override(raw: Mapping[str, Any], overrides: Sequence[str], *, top: Iterable[str], summary: Iterable[str]) -> Table:
    """The table of a study with `key=value` texts applied; `top` and `summary` are the keys of those tables."""
    study = {**raw, "fixed": dict(_table(raw, "fixed")), "summary": dict(_table(raw, "summary"))}
    grid = raw.get("grid", [])
    if not isinstance(grid, list | Mapping) or any(not isinstance(table, Mapping) for table in grid_tables(grid)):
        raise InputError("grid is not a table; expected [grid] or [[grid]].")
    study["grid"] = [dict(table) for table in grid_tables(grid)]
    for text in overrides:
        given, equals, value = text.partition("=")
        if not equals or not given.strip() or not value.strip():
            raise InputError(f"the override {shorten(text)} is not key=value; write for example seeds=0:3.")
        _apply(study, given.strip(), value.strip(), top=top, summary=summary)
    return study


def _table(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = raw.get(key, {})
    if not isinstance(found, Mapping):
        raise InputError(f"{key} is {shorten(found)}; expected a table [{key}].")
    return found


def _apply(study: Table, given: str, text: str, *, top: Iterable[str], summary: Iterable[str]) -> None:
    if given.startswith("summary."):
        study["summary"][given.removeprefix("summary.")] = _value(text)
        return
    if given == "keep_weights":
        study[given] = _value(text)
        return
    if given in top or given == "schema":
        raise InputError(
            f"override: {given} is not a value of a run; change it in the file. Overrides take "
            f"{', '.join(RUN_KEYS)}, keep_weights, {', '.join(f'summary.{name}' for name in summary)}."
        )
    key = run_key(given, "override")
    gone = {key} | next((pair for pair in EXCLUSIVE if key in pair), set()) | ({"seeds"} if key == "seed" else set())
    for table in (study["fixed"], *study["grid"]):
        for name in gone & table.keys():
            del table[name]
    listed = _listed(text, given)
    if listed is None:
        study["fixed"][key] = _value(text)
    else:
        study["grid"] = study["grid"] or [{}]
        for table in study["grid"]:
            table[key] = listed


def _listed(text: str, key: str) -> list[Any] | None:
    """The values of `a,b`, `[a,b]` or `0:3`; None for a single value."""
    bracketed = text.startswith("[") and text.endswith("]")
    inside = text[1:-1].strip().removesuffix(",") if bracketed else text
    if bracketed and not inside:
        raise InputError(f"override: {key} is {shorten(text)}; expected at least one value.")
    if bracketed or "," in inside:
        return [_value(part) for part in inside.split(",")]
    return as_range(inside, key, where="override")


def _value(text: str) -> Any:
    """The value as TOML would read it; a bare word is a string."""
    text = text.strip()
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return number(text)
    except ValueError as error:
        raise InputError(f"the override value {shorten(text)} is refused: {error}.") from None
