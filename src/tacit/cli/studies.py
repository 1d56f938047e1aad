"""`tacit studies`: the study files that come with tacit, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List and copy the study files that come with tacit.", no_args_is_help=True)
    group.command(name="list")(list_)
    group.command(name="copy")(copy)
    app.add_typer(group, name="studies", rich_help_panel=None)


def list_() -> None:
    """Show all study files: name, what varies, which figures they feed.

    `tacit run NAME` trains one, `tacit studies copy NAME` copies one to change.

    Example: `tacit studies list`
    """
    import shutil
    import textwrap
    import tomllib

    from tacit.studies.describe.library import library_folder, study_names

    names = study_names()
    width = max(map(len, names)) + 2
    room = max(shutil.get_terminal_size().columns - width, 20)  # COLUMNS, where it is set
    for name in names:
        study = tomllib.loads((library_folder() / f"{name}.toml").read_text())
        print(f"{name:{width}}{textwrap.shorten(_in_words(study), room, placeholder=' …')}")


# Keys of a run in the words of one line; others are shown as they are.
WORDS = {"learning_rate": "ε", "strength": "λ", "batch_size": "B", "inner_steps": "n", "bare_learning_rate": "α"}


def _in_words(study: dict[str, Any]) -> str:
    """What a study file varies, seeds aside, and its figures.

    >>> _in_words({"grid": [{"learning_rate": [1, 2], "seeds": "0:3"}], "figures": {"1b": {}}})
    'ε; figure 1b'
    """
    values: dict[str, set[str]] = {}
    tables = study["grid"] if isinstance(study["grid"], list) else [study["grid"]]
    for key, value in (pair for table in tables for pair in table.items()):
        values.setdefault(key, set()).update(map(str, value if isinstance(value, list) else [value]))
    varied = [WORDS.get(key, key.replace("_", " ")) for key in values if len(values[key]) > 1 and "seed" not in key]
    figures = list(study.get("figures", {}))
    feeds = [f"figure{'s' * (len(figures) > 1)} {' '.join(figures)}"] if figures else []
    return "; ".join([", ".join(varied), *feeds])


def copy(
    name: Annotated[str, typer.Argument(help="A name of `tacit studies list`.", show_default=False)],
    into: Annotated[Path, typer.Option(help="The folder of the copy.")] = Path(),
) -> None:
    """Copy a study file, to change it and run it as one's own. A file that is there is not replaced.

    Example: `tacit studies copy mnist1d/quick/rates`
    """
    from tacit._util.errors import InputError
    from tacit._util.files import write_atomically
    from tacit.studies.describe.library import find_study_file

    source = find_study_file(Path(name))
    if not source.is_file():
        raise InputError(f"there is no study {name}; use a name of `tacit studies list`.")
    target = into / source.name
    if target.exists():
        raise InputError(f"{target} is there already; move it away, or choose another folder with --into.")
    print(write_atomically(target, source.read_bytes()))
