"""`tacit export`: the rows of a results folder as CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command(name="export")(export)


def export(
    folder: Annotated[Path, typer.Argument(help="A folder of results, made by `tacit run` or `tacit reproduce`.")],
    csv: Annotated[Path, typer.Option("--csv", help="Write comma-separated values to this file.")],
) -> None:
    """Write one line per run: its settings, its status, accuracies, C and C_reg.

    Examples:

    * `tacit export runs/rates --csv rates.csv`
    """
    from tacit.studies.tabular import write_csv

    print(f"wrote {write_csv(folder, csv)} rows to {csv}")
