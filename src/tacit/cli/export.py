"""`tacit export`: the rows of a results folder as CSV or Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit._errors import InputError


def register(app: typer.Typer) -> None:
    app.command(name="export")(export)


def export(
    folder: Annotated[Path, typer.Argument(help="A folder of results, made by `tacit run` or `tacit reproduce`.")],
    csv: Annotated[Path | None, typer.Option("--csv", help="Write comma-separated values to this file.")] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="Write Parquet to this file (needs polars, or pandas and pyarrow).")
    ] = None,
) -> None:
    """Write one line per run: its settings, its status, accuracies, C and C_reg.

    Examples:

    * `tacit export runs/rates --csv rates.csv`

    * `tacit export runs/mnist1d-quick --parquet rows.parquet`
    """
    from tacit.studies.tabular import write_csv, write_parquet

    if csv is None and parquet is None:
        raise InputError("neither --csv nor --parquet is given; expected a file to write, such as --csv rows.csv.")
    for path, write in ((csv, write_csv), (parquet, write_parquet)):
        if path is not None:
            print(f"wrote {write(folder, path)} rows to {path}")
