"""`tacit status`: how far a study is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command(name="status")(status)


def status(
    folder: Annotated[Path, typer.Argument(help="A study's folder, made by `tacit run`.", show_default=False)],
) -> None:
    """Show how many fleets and runs of a study are finished, under way, or waiting.

    Example: `tacit status runs/rates`
    """
    from tacit.studies.store.status import study_status

    print(study_status(folder))
