"""`tacit reproduce`: the paper's figures on a small task, from nothing to a report with verdicts."""

from __future__ import annotations

import sys
from contextlib import closing, redirect_stdout
from pathlib import Path
from textwrap import indent
from typing import Annotated

import typer

from tacit.cli._output_file import check_output_folder


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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and about how long.")] = False,
) -> None:
    """Train what the paper's figures need, judge every claim and write report.html.

    Runs that are already in the folder are not trained again, so a stopped command goes on when repeated.

    Examples:

    * `tacit reproduce`

    * `tacit reproduce --figure 1b --figure 3a`

    * `tacit reproduce --scale standard --into runs/standard`

    * `tacit reproduce --scale paper --figure 7a --dry-run`

    * `tacit reproduce --scale paper --dataset fashion_mnist --device cuda --workers 4`
    """
    from tacit._counted import counted
    from tacit._errors import InputError
    from tacit.report.terminal import print_verdicts
    from tacit.studies import runner
    from tacit.studies.describe.library import library, results_name, studies_for
    from tacit.studies.estimate import in_words
    from tacit.studies.execute.attempts import FleetsFailedError
    from tacit.studies.execute.signals import exit_code
    from tacit.studies.plan import make_plan
    from tacit.studies.progress import Display
    from tacit.studies.store.folder import ResultsFolder
    from tacit.studies.store.status import stopped_message

    if address is not None and executor != "ray":
        raise InputError(f"--address {address} is for --executor ray; found --executor {executor}.")
    check_output_folder("--into", into)
    wanted = figure or []
    studies = studies_for(wanted, library(dataset, scale))
    folder = ResultsFolder(into or Path("runs") / results_name(dataset, scale))  # read once, for all studies
    plans = {
        name: make_plan(study, folder, executor=executor, device=device, workers=workers)
        for name, study in studies.items()
    }
    seconds = sum(plan.seconds for plan in plans.values())
    runs = sum(len(study.runs) for study in studies.values())
    count = next(iter(plans.values())).workers
    # A time that nothing was measured for is a guess, and was five times too long: each study announces its own then.
    about = "" if any(plan.rough for plan in plans.values()) else f"about {in_words(seconds)} "
    studies_text = "1 study" if len(studies) == 1 else f"{len(studies)} studies"
    print(f"{counted(runs, 'run')} in {studies_text}, {about}on {counted(count, 'worker')}, into {folder.path}")
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
                        runner.run(study, folder, executor=chosen, workers=workers, watcher=Display())
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
