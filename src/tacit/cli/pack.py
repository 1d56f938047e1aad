"""`tacit pack`: the rows of a folder of results in one compressed file per study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command(name="pack")(pack)


def pack(
    folders: Annotated[list[Path], typer.Argument(help="Folders of results.", show_default=False)],
) -> None:
    """Store the rows of each study in one compressed file.

    Nothing is trained and no row changes; `tacit report` and `tacit run` read packed rows as any others.

    Examples:

    * `tacit pack runs/mnist1d-standard`
    """
    from tacit.studies.store.pack import pack_results

    for folder in folders:
        done = pack_results(folder)
        files = sum(path.stat().st_size for path in done.written)
        print(f"{folder}: {done.rows} rows in {len(done.written)} files of {files:,} bytes; removed {done.removed}")
