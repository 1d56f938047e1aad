"""`tacit studies`: the study files that come with tacit, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List and copy the study files that come with tacit.", no_args_is_help=True)
    group.command(name="list")(list_)
    group.command(name="copy")(copy)
    app.add_typer(group, name="studies", rich_help_panel=None)


def list_() -> None:
    """Show the names of all study files. `tacit run NAME` trains one, `tacit studies copy NAME` copies one to change.

    Example: `tacit studies list`
    """
    from tacit.studies.describe.library import study_names

    print("\n".join(study_names()))


def copy(
    name: Annotated[str, typer.Argument(help="A name of `tacit studies list`.", show_default=False)],
    into: Annotated[Path, typer.Option(help="The folder of the copy.")] = Path(),
) -> None:
    """Copy a study file, to change it and run it as one's own. A file that is there is not replaced.

    Example: `tacit studies copy mnist1d/quick/rates`
    """
    from tacit._errors import InputError
    from tacit._files import write_atomically
    from tacit.studies.describe.library import find_study_file

    source = find_study_file(Path(name))
    if not source.is_file():
        raise InputError(f"there is no study {name}; use a name of `tacit studies list`.")
    target = into / source.name
    if target.exists():
        raise InputError(f"{target} is there already; move it away, or choose another folder with --into.")
    print(write_atomically(target, source.read_bytes()))
