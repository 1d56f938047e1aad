"""`tacit figures`: which figures there are, what they show, and what they cost."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command(name="figures")(figures)


def figures(
    dataset: Annotated[
        str | None, typer.Option(help="The task: mnist1d for quick and standard, all tasks for small and paper.")
    ] = None,
    scale: Annotated[str, typer.Option(help="quick, standard, small or paper.")] = "quick",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes the times are for; all cores.")] = None,
    tflops: Annotated[
        float, typer.Option(help="Peak of another device, in TFLOP/s; the default is one A100 in float32.")
    ] = 19.5,
    utilisation: Annotated[
        float, typer.Option(help="Share of that peak that training reaches; small batches reach little.")
    ] = 0.1,
) -> None:
    """List the figures that `tacit reproduce` makes. A figure's cost is that of the studies it reads.

    Studies are shared: all figures together cost less than their sum. Operations are counted (two per multiply-add),
    the time on this machine comes from what was measured on it, the time on another device from its peak.

    Examples:

    * `tacit figures`

    * `tacit figures --scale standard`

    * `tacit figures --scale paper --dataset cifar10 --tflops 35 --utilisation 0.2`
    """
    from rich.console import Console
    from rich.table import Table

    from tacit._errors import InputError
    from tacit.report import catalogue
    from tacit.studies.cost import cost, in_digits
    from tacit.studies.describe.library import library, results_name, studies_for
    from tacit.studies.estimate import in_words
    from tacit.studies.plan import make_plan

    if not 0 < tflops < float("inf"):
        raise InputError(f"tflops is {tflops:g}; expected a number greater than 0, such as 19.5.")
    if not 0 < utilisation <= 1:
        raise InputError(f"utilisation is {utilisation:g}; expected a share greater than 0 and at most 1, such as 0.1.")
    studies = library(dataset, scale)
    plans = {name: make_plan(study, f".none/{name}", workers=workers) for name, study in studies.items()}
    count = next(iter(plans.values())).workers
    about = "roughly" if any(plan.rough for plan in plans.values()) else "about"

    table = Table(title=f"Figures of {results_name(dataset, scale)}", box=None, pad_edge=False)
    for column in ("figure", "shows", "reads"):
        table.add_column(column)
    for column in ("runs", "updates", "FLOP", f"here, {about}", "device"):
        table.add_column(column, justify="right")

    def add(id: str, shows: str, reads: str, names: list[str]) -> None:
        total = cost(run for name in names for run in studies[name].runs)
        here = in_words(sum(plans[name].seconds for name in names))
        there = in_words(total.device_seconds(tflops=tflops, utilisation=utilisation))
        numbers = (str(total.runs), in_digits(total.updates), in_digits(total.operations), here, there)
        table.add_row(id, shows, reads, *numbers)

    for id, entry in catalogue().items():
        if any(id in study.figures for study in studies.values()):
            needed = list(studies_for([id], studies))
            add(id, entry.shows, ", ".join(needed), needed)
    add("all", "everything above; shared runs are trained once", "", list(studies))
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)  # a file or a pipe has no width of its own
    console.print(table)
    typer.echo(
        f"here: {count} workers of this machine. device: {tflops:g} TFLOP/s used to {utilisation:.0%}.", err=True
    )
    if about == "roughly":
        typer.echo("times here are rough: nothing was trained on this machine yet.", err=True)
