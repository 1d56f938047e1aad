"""`tacit figures`: which figures there are, what they show, and what they cost."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command(name="figures")(figures)


def figures(
    dataset: Annotated[str, typer.Option(help="The task.")] = "mnist1d",
    scale: Annotated[str, typer.Option(help="quick or standard.")] = "quick",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes the times are for; all cores.")] = None,
) -> None:
    """List the figures that `tacit reproduce` makes. A figure's cost is that of the studies it reads.

    Studies are shared: all figures together cost less than their sum.

    Examples:

    * `tacit figures`

    * `tacit figures --scale standard`
    """
    from rich.console import Console
    from rich.table import Table

    from tacit.report import CATALOGUE
    from tacit.studies import runner
    from tacit.studies.estimate import in_words
    from tacit.studies.library import library, studies_for

    studies = library(dataset, scale)
    plans = {name: runner.plan(study, f".none/{name}", workers=workers) for name, study in studies.items()}
    about = "roughly" if any(plan.rough for plan in plans.values()) else "about"
    table = Table(title=f"Figures on {dataset}, {scale}", box=None, pad_edge=False)
    for column in ("figure", "shows", "reads"):
        table.add_column(column)
    for column in ("runs", about):
        table.add_column(column, justify="right")
    for id, entry in CATALOGUE.items():
        needed = {name: study for name, study in studies.items() if id in study.figures}
        if not needed:
            continue
        runs = sum(len(study.runs) for study in studies_for([id], studies).values())
        seconds = sum(plans[name].seconds for name in needed)
        table.add_row(id, entry.shows, ", ".join(needed), str(runs), in_words(seconds))
    total = sum(len(study.runs) for study in studies.values())
    everything = in_words(sum(plan.seconds for plan in plans.values()))
    table.add_row("all", "everything above; shared runs are trained once", "", str(total), everything)
    Console().print(table)
    if about == "roughly":
        typer.echo("times are rough: nothing was trained on this machine yet.", err=True)
