"""Arguments that every command on a study file has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StudyFile = Annotated[
    Path,
    typer.Argument(help="A study file (TOML), or the name of one of `tacit studies list`.", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Values that replace those of the file.", show_default=False),
]
