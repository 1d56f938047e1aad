"""`tacit run`: train a study file, or go on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command(name="run")(run)


def run(
    file: Annotated[Path, typer.Argument(help="A study file (TOML).", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Values that replace those of the file.", show_default=False),
    ] = None,
    into: Annotated[Path | None, typer.Option(help="The study's folder; runs/NAME without it.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes, one core each; all cores without it.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and about how long.")] = False,
) -> None:
    """Train every run of a study file that has no result yet.

    A study that was stopped or killed goes on from its last checkpoints: run the same command again.

    Examples:

    * `tacit run studies/fig1b-mnist1d.toml --dry-run`

    * `tacit run studies/fig1b-mnist1d.toml seeds=0:3 epochs=50 --into runs/try`
    """
    from tacit.studies import runner
    from tacit.studies.progress import Display

    given = overrides or []
    if dry_run:
        print(runner.plan(file, into, workers=workers, overrides=given))
        return
    try:
        rows = runner.run(file, into, workers=workers, overrides=given, watcher=Display())
    except KeyboardInterrupt:
        typer.echo("stopped; checkpoints are stored: run the same command again to go on.", err=True)
        raise typer.Exit(130) from None
    diverged = sum(row["status"] == "diverged" for row in rows)
    folder = into or Path("runs") / runner.load_study(file).name
    print(f"{len(rows)} rows ({diverged} diverged) in {folder}")
