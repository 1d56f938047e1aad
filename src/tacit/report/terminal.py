"""The verdict table for the terminal, a line or two for each figure at 80 columns; the page has the claims in full."""

from __future__ import annotations

from tacit.report.build import Report
from tacit.report.figure import FigureResult, shown_counts
from tacit.report.ten_seeds import stored_beside

STYLES = {"agrees": "green", "disagrees": "red", "undecided": "yellow", "undecided so far": "yellow"}
SHORT = {"with augmentation": "augmented", "without augmentation": "unaltered"}  # of `build`: regimes


def print_verdicts(report: Report) -> None:
    """Print one row per judged figure: its outcome and the number that decides."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    judged = [figure for figure in report.figures if figure.verdict]
    stored = stored_beside(report)
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("", min_width=max((len(figure.id) for figure in judged), default=0))
    verdicts = [judged[0].regime, next(iter(report.beside.values())).regime] if report.beside else []
    for name in [SHORT.get(regime, regime) for regime in verdicts] or ["verdict"]:
        table.add_column(name, max_width=9)
    if stored:
        table.add_column("ten seeds")
    table.add_column(r"number that decides \[95 % interval]", overflow="fold")
    for figure in judged:
        assert figure.verdict is not None
        shown = [figure, report.beside.get(figure.id)] if report.beside else [figure]
        cells = [_coloured(each.verdict.label) if each and each.verdict else "" for each in shown]
        cells += [_coloured(stored.of(figure))] if stored else []
        table.add_row(figure.id, *cells, escape(figure.verdict.number_text))
    console = Console()
    if judged:
        console.print(table)
        console.print(_counts(report.figures), highlight=False)
    for figure in report.figures:
        if figure.answer:
            console.print(figure.answer, markup=False, highlight=False)
    for id, reason in report.absent.items():
        console.print(f"figure {id} is not shown: {reason}", markup=False, highlight=False)


def _coloured(label: str) -> str:
    return f"[{STYLES[label]}]{label}[/]" if label else ""


def _counts(figures: tuple[FigureResult, ...]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in shown_counts(figures).items())
