"""The verdict table for the terminal."""

from __future__ import annotations

from tacit.report.build import Report
from tacit.report.page import outcome_counts


def print_verdicts(report: Report) -> None:
    """Print one line per judged figure: the claim, the number that decides, the outcome."""
    from rich.console import Console
    from rich.table import Table

    styles = {"agrees": "green", "disagrees": "red", "undecided": "yellow"}
    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("figure", "verdict", "number [95 % interval]", "the paper's claim"):
        table.add_column(column, overflow="fold")
    for figure in report.figures:
        if figure.verdict is None:
            continue
        outcome = f"[{styles[figure.verdict.outcome]}]{figure.verdict.outcome}[/]"
        table.add_row(figure.id, outcome, _plain(figure.verdict.number_text), _plain(figure.verdict.claim))
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
