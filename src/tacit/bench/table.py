"""A benchmark's numbers as tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tacit.bench.steps import NAIVE, TWO_PASSES

SHORT = 5.0  # milliseconds of a naive step


def tables(result: dict[str, Any]) -> list[Table]:
    """One table per model: time, memory and error of every step."""
    return [model_table(model) for model in result["models"]]


def model_table(model: dict[str, Any]) -> Table:
    made = Table(title=model["title"], title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    made.caption = _against_rivals({row["step"]: row for row in model["rows"] if row["status"] == "measured"})
    made.caption_justify = "left"
    made.add_column("step", min_width=len(NAIVE))
    made.add_column("ms", justify="right")
    made.add_column("x plain", justify="right")
    made.add_column("x naive", justify="right")
    made.add_column("MB", justify="right")
    made.add_column("x plain", justify="right")
    made.add_column("error", justify="right")
    for row in model["rows"]:
        if row["status"] == "refused":
            made.add_row(row["step"], "refused", "", "", "", "", "")
            continue
        error = row["relative_error"]
        made.add_row(
            f"{row['step']} ({row['method']})" if "method" in row else row["step"],
            f"{row['milliseconds']:.2f}",
            f"{row['times_plain']:.2f}",
            _number(row, "times_naive", with_interval=row["step"] == "auto"),
            f"{row['peak_bytes'] / 1e6:.0f}",
            f"{row['peak_times_plain']:.2f}",
            "" if error is None else f"{error:.0e}",
        )
    return made


def _against_rivals(rows: dict[str, dict[str, Any]]) -> str | None:
    """Against two plain passes, and in microseconds where a naive step is so short that a ratio says little."""
    parts = []
    if "finite_difference" in rows:
        parts.append(f"finite_difference: {_number(rows['finite_difference'], 'times_two_passes')} x {TWO_PASSES}")
    if "auto" in rows and rows[NAIVE]["milliseconds"] < SHORT:
        parts.append(f"auto: {_number(rows['auto'], 'microseconds_above_naive', digits=0)} µs above naive")
    return "\n".join(parts) or None


def _number(row: dict[str, Any], column: str, *, digits: int = 2, with_interval: bool = True) -> str:
    if column not in row:
        return ""
    shown = f"{row[column]:.{digits}f}"
    interval = row[f"{column}_interval"]
    return f"{shown} [{','.join(f'{end:.{digits}f}' for end in interval)}]" if interval and with_interval else shown


def legend(result: dict[str, Any]) -> str:
    facts = result["machine"]
    return (
        f"λ = {result['settings']['strength']}; error: of the applied gradient, relative to the penalty's part, "
        f"against float64; x naive: of {NAIVE}, round by round, [95 %]. "
        f"{facts['device']}: {facts['device_name']}, {facts['threads']} threads, torch {facts['torch']}, "
        f"{result['seconds']} s."
    )
