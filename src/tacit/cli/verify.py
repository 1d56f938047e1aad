"""`tacit verify`: every equation of the paper, or an update of one's own: orders predicted and observed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit._util.errors import InputError
from tacit.cli._output_file import check_output_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacit.problem import Problem
    from tacit.theory.landscape import Landscape
    from tacit.theory.study import ConvergenceStudy
    from tacit.theory.update_study import UpdateStudy


def register(app: typer.Typer) -> None:
    app.command("verify")(verify)


def verify(
    problem: Annotated[
        list[str] | None,
        typer.Option(
            help="quadratic, logistic, tanh_mlp, or module:function that returns a tacit.Problem. Repeatable."
        ),
    ] = None,
    update: Annotated[
        str | None,
        typer.Option(
            help="Check one update against its own modified flow instead: sam, adamw, extragradient, … (a wrong name "
            "prints them all), or module:function that takes a landscape and returns the update."
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write every finding, with its errors, to this file.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw errors against learning rates into this file (png, svg, pdf).")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Only draw SGD and its flows in two dimensions into this file, and stop.")
    ] = None,
) -> None:
    """Check every equation of the paper: predicted order, observed order, pass or fail. Exits 1 when one is missed.

    Examples:

        tacit verify

        tacit verify --problem logistic --json verify.json --figure verify.svg

        tacit verify --problem mypackage.mymodule:make_problem

        tacit verify --update sam --problem tanh_mlp

        tacit verify --update mypackage.mymodule:make_update

        tacit verify --picture docs/modified-flow.png
    """
    from tacit._util.files import write_atomically
    from tacit.theory import figures
    from tacit.theory.problems import PROBLEMS
    from tacit.theory.update_study import UpdateStudy

    check_output_file("--json", json, endings=(".json",))
    check_output_file("--figure", figure, endings=figures.FORMATS)
    check_output_file("--picture", picture, endings=figures.FORMATS)
    if figure is not None or picture is not None:
        figures.pyplot()  # refused before minutes are spent
    if picture is not None:
        print(f"wrote {figures.draw_picture(picture)}")
        return
    names = list(dict.fromkeys(problem or PROBLEMS))
    for name in names:
        _maker(name)  # a misspelt name is refused before minutes are spent on the other problems
    if update is not None:
        _update_maker(update)
    parts = _verify_each(names, update)
    study = parts[0]
    for part in parts[1:]:
        study = study + part  # type: ignore[operator]
    orders = study.orders if isinstance(study, UpdateStudy) else study
    _print(orders)
    if isinstance(study, UpdateStudy):
        print("\n".join(study.followed()))
    if json is not None:
        write_atomically(json, study.to_json() + "\n")
        print(f"wrote {json}")
    if figure is not None:
        print(f"wrote {figures.draw_study(orders, figure)}")
    if not study.passed:
        raise typer.Exit(1)


def _verify_each(names: list[str], update: str | None) -> list[ConvergenceStudy] | list[UpdateStudy]:
    """One process per problem where there are cores and the system can fork; else one after the other."""
    import multiprocessing
    import os
    from concurrent.futures import ProcessPoolExecutor

    workers = len(names) if (os.cpu_count() or 1) > 1 else 1  # three on two cores end sooner than two and then one
    if workers == 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [_verify_one(name, update) for name in names]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        return list(pool.map(_verify_one, names, [update] * len(names)))


def _verify_one(name: str, update: str | None) -> Any:
    import torch

    from tacit.theory import verify as verify_problem

    torch.set_num_threads(1)  # these tensors have a dozen entries: threads would only wait for each other
    problem, short = _maker(name)(), name.rpartition(":")[2]
    if update is None:
        return verify_problem(problem, name=short)
    from tacit.theory import Landscape, verify_update

    scape = Landscape(problem)
    order = 1 if update.endswith("_over_orders") else 2  # an epoch in all orders, differentiated three times, is slow
    return verify_update(
        _update_maker(update)(scape), scape, name=update.rpartition(":")[2], problem_name=short, order=order
    )


def _maker(name: str) -> Callable[[], Problem]:
    from tacit._util.own_code import call_for, import_function
    from tacit.problem import Problem
    from tacit.theory.problems import PROBLEMS

    if name in PROBLEMS:
        return PROBLEMS[name]
    if ":" not in name:
        raise InputError(f"problem {name!r} is unknown; use one of {', '.join(PROBLEMS)}, or package.module:function.")
    import_function(name)
    return lambda: call_for(name, Problem, "a tacit.Problem")


def _update_maker(name: str) -> Callable[[Landscape], Any]:
    from tacit._util.own_code import call, import_function
    from tacit.theory.memory import WithMemory
    from tacit.theory.named_updates import EXAMPLES

    if name in EXAMPLES:
        return EXAMPLES[name]
    if ":" not in name:
        raise InputError(f"update {name!r} is unknown; use one of {', '.join(EXAMPLES)}, or package.module:function.")
    import_function(name)

    def make(scape: Landscape) -> Any:
        made = call(name, scape)
        if not (callable(made) or isinstance(made, WithMemory)):
            raise InputError(
                f"{name} returned a {type(made).__name__}; expected a function of (parameters, learning rate) or a "
                "tacit.theory.MemoryMethod."
            )
        return made

    return make


def _print(study: ConvergenceStudy) -> None:
    """A table on a terminal, the same rows as plain text in a file or a pipe."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        print(study)
        return
    from tacit.theory.study import row_verdict

    table = Table("statement", "where", "predicted", *study.problems, "verdict", title="orders in the learning rate ε")
    for statement, where, predicted, by_problem in study.rows():
        cells = []
        for name in study.problems:
            finding = by_problem.get(name)
            seen = finding.observed if finding is not None else None
            colour = {"pass": "green", "fail": "red"}.get(finding.status if finding else "", "dim")
            cells.append(f"[{colour}]{'–' if seen is None else format(seen, '.3f')}[/]")
        verdict = row_verdict(by_problem)
        colour = "red" if verdict == "fail" else "green"
        table.add_row(statement, where, f"{predicted:g}", *cells, f"[{colour}]{verdict}[/]")
    console.print(table)
    for finding in study.findings:
        if finding.not_measured:
            console.print(f"not measured, {finding.problem}: {finding.statement}: {finding.not_measured}", markup=False)
    console.print(study.summary())
