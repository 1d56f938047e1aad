"""The verdict table for the terminal."""

from __future__ import annotations

from tacit.report.build import Report
from tacit.report.page import outcome_counts


def print_verdicts(report: Report) -> None:
    """Print one line per judged figure: outcome, the number that decides, the claim, and what would decide it."""
    from rich.console import Console
    from rich.table import Table

    styles = {"agrees": "green", "disagrees": "red", "undecided": "yellow"}
    table = Table(box=None, pad_edge=False, show_edge=False)
    regimes = [next(iter(report.beside.values())).regime] if report.beside else []
    for column in ("figure", "verdict", *regimes, r"number \[95 % interval]", "the paper's claim"):
        table.add_column(column, overflow="fold")
    for figure in report.figures:
        if figure.verdict is None:
            continue
        beside = report.beside.get(figure.id)
        row = [figure.id, f"[{styles[figure.verdict.outcome]}]{figure.verdict.outcome}[/]"]
        if report.beside:
            other = beside.verdict.outcome if beside and beside.verdict else None
            row.append(f"[{styles[other]}]{other}[/]" if other else "")
        said = f"{figure.verdict.claim} {figure.verdict.advice_beside_number}".strip()
        table.add_row(*row, _plain(figure.verdict.number_text), _plain(said))
    console = Console()
    if table.row_count:
        console.print(table)
        counts = outcome_counts(report.figures)
        console.print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()), highlight=False)
    for id, reason in report.absent.items():
        console.print(f"figure {id} is not shown: {reason}", markup=False, highlight=False)


def _plain(text: str) -> str:
    """Square brackets are markup to rich."""
    return text.replace("[", r"\[")
