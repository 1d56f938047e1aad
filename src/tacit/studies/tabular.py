"""Rows as a table for other tools: one line per run, the run's settings and what came out of it."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit._errors import InputError
from tacit._files import write_atomically
from tacit.studies.store.folder import Row, read_rows

RESULTS = (
    "status", "diverged_at", "best_test_accuracy", "final_test_accuracy", "best_train_accuracy",
    "final_train_accuracy", "full_loss", "implicit_regularizer",
)  # fmt: skip


def records(folder: str | Path) -> list[dict[str, Any]]:
    """Every run of a folder of results as one flat dict: `run`, the keys of its spec, and its results.

    Tables inside a spec (`model_arguments`, `own_code`) become JSON text. The history is left out: it has one value per
    evaluation, and `tacit.studies.read_rows` has it.
    """
    return [_flat(row) for row in read_rows(folder)]


def _flat(row: Row) -> dict[str, Any]:
    spec = {key: json.dumps(value) if isinstance(value, dict) else value for key, value in row["spec"].items()}
    return {"run": row["run"], **spec, **{key: row[key] for key in RESULTS}}


def table(folder: str | Path) -> Any:
    """`records` as a DataFrame of pandas, or of polars where pandas is not installed."""
    found = records(folder)
    for name in ("pandas", "polars"):
        if (library := _installed(name)) is not None:
            return library.DataFrame(found)
    raise InputError(
        "neither pandas nor polars is installed; expected one of them for a DataFrame. "
        "Use `pip install pandas`, tacit.studies.records(folder) for plain dicts, or `tacit export --csv`."
    )


def write_csv(folder: str | Path, path: Path) -> int:
    """The records as CSV, with a header; returns how many."""
    found = records(folder)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=_columns(found), restval="")
    writer.writeheader()
    writer.writerows(found)
    write_atomically(path, text.getvalue())
    return len(found)


def write_parquet(folder: str | Path, path: Path) -> int:
    """The records as Parquet, by polars, or by pandas with pyarrow; returns how many."""
    found = records(folder)
    content = io.BytesIO()
    if (polars := _installed("polars")) is not None:
        polars.DataFrame(found, infer_schema_length=None).write_parquet(content)
    elif (pandas := _installed("pandas")) is not None and _installed("pyarrow") is not None:
        pandas.DataFrame(found).to_parquet(content)
    else:
        raise InputError(
            "Parquet needs polars, or pandas with pyarrow, and they are not installed; use `pip install polars`, "
            "or --csv."
        )
    write_atomically(path, content.getvalue())
    return len(found)


def _columns(found: Sequence[dict[str, Any]]) -> list[str]:
    """Every key of any record, in the order in which they first come, results last."""
    keys = dict.fromkeys(key for record in found for key in record)
    return [*[key for key in keys if key not in RESULTS], *RESULTS]


def _installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
