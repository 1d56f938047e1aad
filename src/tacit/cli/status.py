"""`tacit status`: how far the studies of a folder are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command(name="status")(status)


def status(
    folder: Annotated[
        Path, typer.Argument(help="A folder of results, or one with several of them.", show_default=False)
    ] = Path("runs"),
) -> None:
    """Show how far the studies of a folder are: runs, fleets that are left, share of the work, and whether it runs.

    Examples:

    * `tacit status runs/rates`

    * `tacit status`
    """
    from tacit.studies.store.status import folder_status

    print("\n\n".join(map(str, folder_status(folder))))
