"""Rows as a table for other tools: one line per run, the run's settings and what came out of it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit._util.files import write_atomically
from tacit.studies.store.folder import Row, read_rows
from tacit.studies.store.rows import MEASURED, MEASURED_LATER

# Without the counts that a spec has under the same names.
RESULTS = ("status", *[name for name in (*MEASURED, *MEASURED_LATER) if name not in ("updates", "epochs")])


def records(folder: str | Path) -> list[dict[str, Any]]:
    """Every run of a folder of results as one flat dict: `run`, the keys of its spec, and its results.

    Tables inside a spec (`model_arguments`, `own_code`) become JSON text. The history is left out: it has one value per
    evaluation, and `tacit.studies.read_rows` has it. `pandas.DataFrame(records(folder))` is a table of them, and
    polars takes them too.
    """
    return [_flat(row) for row in read_rows(folder)]


def _flat(row: Row) -> dict[str, Any]:
    spec = {key: json.dumps(value) if isinstance(value, dict) else value for key, value in row["spec"].items()}
    return {"run": row["run"], **spec, **{key: row[key] for key in RESULTS}}


def write_csv(folder: str | Path, path: Path) -> int:
    """The records as CSV, with a header; returns how many."""
    found = records(folder)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=_columns(found), restval="")
    writer.writeheader()
    writer.writerows(found)
    write_atomically(path, text.getvalue())
    return len(found)


def _columns(found: Sequence[dict[str, Any]]) -> list[str]:
    """Every key of any record, in the order in which they first come, results last."""
    keys = dict.fromkeys(key for record in found for key in record)
    return [*[key for key in keys if key not in RESULTS], *RESULTS]
