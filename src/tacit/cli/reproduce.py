"""`tacit reproduce`: the paper's figures on a small task, from nothing to a report with verdicts."""

from __future__ import annotations

import os
import sys
from contextlib import closing, redirect_stdout
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli._output_file import check_output_folder

if TYPE_CHECKING:
    from tacit.studies.describe.study import Study


def register(app: typer.Typer) -> None:
    app.command(name="reproduce")(reproduce)


def reproduce(
    figure: Annotated[
        list[str] | None, typer.Option("--figure", "-f", help="A figure, such as 1b; repeat for more. All without it.")
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="quick: 3 to 6 seeds, coarse grids. standard: 10 seeds, best 7 drawn. small: real images, cut to "
            "hours. paper: as published, for a cluster."
        ),
    ] = "quick",
    dataset: Annotated[
        str | None, typer.Option(help="The task: mnist1d for quick and standard, all tasks for small and paper.")
    ] = None,
    into: Annotated[Path | None, typer.Option(help="Folder of results; runs/DATASET-SCALE without it.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes, one core each; all cores without it.")] = None,
    executor: Annotated[str, typer.Option(help="local or ray, as for `tacit run`.")] = "local",
    address: Annotated[str | None, typer.Option(help="A running Ray cluster, as for `tacit run`.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps, as for `tacit run`.")] = None,
    list_figures: Annotated[
        bool, typer.Option("--list", help="List the figures of this scale: what they show, read and cost.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and what it costs.")] = False,
) -> None:
    """Train what the paper's figures need, judge every claim and write report.html.

    Runs that are already in the folder are not trained again, so a stopped command goes on when repeated.

    Figures share studies: all of them together cost less than their sum. Operations are counted, two per multiply-add.

    Examples:

    * `tacit reproduce`

    * `tacit reproduce --list --scale paper --dataset cifar10`

    * `tacit reproduce --figure 1b --figure 3a`

    * `tacit reproduce --scale standard --into runs/standard`

    * `tacit reproduce --scale paper --figure 7a --dry-run`

    * `tacit reproduce --scale paper --dataset fashion_mnist --device cuda --workers 4`
    """
    from tacit._counted import counted
    from tacit._errors import InputError
    from tacit.report.terminal import print_verdicts
    from tacit.studies import runner
    from tacit.studies.cost import cost
    from tacit.studies.describe.library import library, results_name, studies_for
    from tacit.studies.execute.executor import FleetsFailedError
    from tacit.studies.execute.signals import exit_code
    from tacit.studies.plan import make_plan
    from tacit.studies.progress import ProgressBar
    from tacit.studies.store.folder import ResultsFolder
    from tacit.studies.store.status import stopped_message

    if address is not None and executor != "ray":
        raise InputError(f"--address {address} is for --executor ray; found --executor {executor}.")
    check_output_folder("--into", into)
    wanted = figure or []
    studies = studies_for(wanted, library(dataset, scale))
    if list_figures:
        _print_figures(wanted, studies, title=f"Figures of {results_name(dataset, scale)}")
        return
    folder = ResultsFolder(into or Path("runs") / results_name(dataset, scale))  # read once, for all studies
    plans = {name: make_plan(study, folder, executor=executor, device=device) for name, study in studies.items()}
    runs = sum(len(study.runs) for study in studies.values())
    left = cost(run for plan in plans.values() for fleet in plan.fleets for run in fleet.runs)
    studies_text = "1 study" if len(studies) == 1 else f"{len(studies)} studies"
    print(f"{counted(runs, 'run')} in {studies_text}, {left.runs} left: {left}, into {folder.path}")
    if dry_run:
        for plan in plans.values():
            print(indent(str(plan), "  "))
        return
    failures: list[str] = []
    try:
        # The same processes serve every study: torch is imported once.
        with closing(runner.make_executor(executor, workers, address=address, device=device)) as chosen:
            for name, study in studies.items():
                try:
                    with redirect_stdout(sys.stderr):  # Ray prints pages about lost workers
                        runner.run(study, folder, executor=chosen, workers=workers, watcher=ProgressBar())
                except FleetsFailedError as failed:
                    failures.append(f"{name}: {failed}")
    except KeyboardInterrupt as stopped:
        typer.echo(stopped_message(folder.path), err=True)
        raise typer.Exit(exit_code(stopped)) from None
    from tacit.report import build_report, write_page
    from tacit.report.build import parts_of

    report = build_report(parts_of(folder, list(studies.values())), only=wanted)
    command = " ".join(
        ["tacit reproduce", *[f"--figure {id}" for id in wanted], f"--scale {scale}"]
        + ([f"--dataset {dataset}"] if dataset is not None else [])
        + ([f"--into {into}"] if into is not None else [])
    )
    # A page of a few figures has a name of its own: it must not take the place of the whole report.
    name = "-".join(["report", *wanted]) + ".html"
    page = write_page(report, folder.path / name, command=command)
    print_verdicts(report)
    print(f"report: {page}")
    for failure in failures:
        typer.echo(f"tacit: {failure}", err=True)
    if failures:
        raise typer.Exit(1)


def _print_figures(wanted: list[str], studies: dict[str, Study], *, title: str) -> None:
    """A table of the wanted figures, or of all: what each shows, the studies that it reads, and their cost."""
    from rich.console import Console
    from rich.table import Table

    from tacit.report import catalogue
    from tacit.studies.cost import cost, in_digits
    from tacit.studies.describe.library import studies_for

    table = Table(title=title, box=None, pad_edge=False)
    for column in ("figure", "shows", "reads"):
        table.add_column(column)
    for column in ("runs", "updates", "FLOP"):
        table.add_column(column, justify="right")

    def add(id: str, shows: str, reads: str, read: dict[str, Study]) -> None:
        total = cost(run for study in read.values() for run in study.runs)
        table.add_row(id, shows, reads, str(total.runs), in_digits(total.updates), in_digits(total.operations))

    for id, entry in catalogue().items():
        if id in wanted or (not wanted and any(id in study.figures for study in studies.values())):
            read = studies_for([id], studies)
            add(id, entry.shows, ", ".join(read), read)
    add("all", "everything above; shared runs are trained once", "", studies)
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=180)  # a file or a pipe has no width of its own
    console.print(table)
