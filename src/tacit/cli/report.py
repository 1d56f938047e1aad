"""`tacit report`: rows on disk → verdicts, figures and one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli._output_file import check_output_folder


def register(app: typer.Typer) -> None:
    app.command(name="report")(report)


def report(
    folders: Annotated[list[Path], typer.Argument(help="Study folders, or folders of study folders.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The page; report.html in the first folder.")] = None,
    figure: Annotated[list[str] | None, typer.Option("--figure", "-f", help="Only these figures.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="Also write results.json and one SVG per figure into this folder.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    command: Annotated[str | None, typer.Option(help="The command the page names for making it again.")] = None,
) -> None:
    """Write one self-contained HTML page about finished (or unfinished) studies. Needs no torch.

    Examples:

    * `tacit report runs/mnist1d-quick`

    * `tacit report runs/mnist1d-standard --export docs/results/mnist1d`
    """
    from tacit.report import build_report, read_parts, write_page
    from tacit.report.export import export as export_files
    from tacit.report.terminal import print_verdicts

    check_output_folder("--export", export)
    found = build_report(read_parts(folders), only=figure or [])
    chosen = [f"--figure {id}" for id in figure or []]
    remake = command or " ".join(["tacit report", *[str(folder) for folder in folders], *chosen])
    page = write_page(found, out or folders[0] / "report.html", command=remake, title=title)
    if export is not None:
        written = export_files(found, export, command=remake)
        typer.echo(f"{len(written)} files in {export}", err=True)
    print_verdicts(found)
    print(f"report: {page}")
