"""The grid of a study: lists and ranges of values, expanded into runs."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

from tacit._util.errors import InputError
from tacit.studies.describe.error_messages import shorten, unknown_key
from tacit.studies.describe.spec import RUN_KEYS, RunSpec, make_run

MOST_RUNS = 100_000  # a typing error in a grid should be a sentence, not a full memory
RANGE = re.compile(r"\s*(\d{1,18}):(\d{1,18})\s*")

Table = dict[str, Any]


def expand(fixed: Table, grid: list[Table], *, where: str) -> list[RunSpec]:
    """The union of the products of all grid tables over the fixed values; duplicates are dropped by hash."""
    _one_of_seed_and_seeds(fixed, where=f"{where} [fixed]")
    base = {run_key(key, f"{where} [fixed]"): value for key, value in fixed.items()}
    tables = [_axes(table, base, where=f"{where} [grid]") for table in grid] or [{}]
    size = sum(math.prod(len(values) for values in axes.values()) for axes in tables)
    if size > MOST_RUNS:
        raise InputError(f"{where}: the grid has {size} runs; expected at most {MOST_RUNS}.")
    runs: dict[str, RunSpec] = {}
    for axes in tables:
        for values in itertools.product(*axes.values()):
            run = make_run({**base, **dict(zip(axes, values, strict=True))}, where=where)
            runs.setdefault(run.hash, run)
    return list(runs.values())


def _axes(table: Table, base: Table, *, where: str) -> dict[str, list[Any]]:
    _one_of_seed_and_seeds(table, where=where)
    axes: dict[str, list[Any]] = {}
    for given, values in table.items():
        key = run_key(given, where)
        listed = as_range(values, given, where=where) if isinstance(values, str) else values
        if not isinstance(listed, list) or not listed:
            raise InputError(f"{where}: {given} is {shorten(values)}; expected a list with at least one value.")
        if key in base:
            raise InputError(f"{where}: {key} is both fixed and in the grid; expected it in one of them.")
        axes[key] = listed
    return axes


def _one_of_seed_and_seeds(table: Table, *, where: str) -> None:
    if {"seed", "seeds"} <= table.keys():
        raise InputError(f"{where}: seed and seeds are both given, and mean the same; expected one of them.")


def run_key(key: str, where: str) -> str:
    key = "seed" if key == "seeds" else key
    if key not in RUN_KEYS:
        raise InputError(unknown_key(where, key, RUN_KEYS))
    return key


def as_range(text: str, key: str, *, where: str) -> list[int] | None:
    """`"0:3"` is [0, 1, 2]; None when the text is no range."""
    found = RANGE.fullmatch(text)
    if found is None:
        return None
    first, end = int(found[1]), int(found[2])
    if not 0 < end - first <= MOST_RUNS:
        size = "empty" if end <= first else f"longer than {MOST_RUNS}"
        raise InputError(f"{where}: {key} is the range {text.strip()}, which is {size}; 0:3 means 0, 1, 2.")
    return list(range(first, end))


def grid_tables(grid: Any) -> list[Any]:
    return [grid] if isinstance(grid, Mapping) else list(grid)
