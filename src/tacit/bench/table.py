"""A benchmark's numbers as tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def tables(result: dict[str, Any]) -> list[Table]:
    """One table per model: time, memory and error of every step; then the fleets, if they were measured."""
    made = [model_table(model) for model in result["models"]]
    return [*made, fleet_table(result["fleets"])] if result["fleets"] else made


def model_table(model: dict[str, Any]) -> Table:
    made = Table(title=model["title"], title_justify="left", title_style="bold")
    made.add_column("step")
    made.add_column("time, ms", justify="right")
    made.add_column("x plain", justify="right")
    made.add_column("memory, MB", justify="right")
    made.add_column("x plain", justify="right")
    made.add_column("error", justify="right")
    for row in model["rows"]:
        if row["status"] == "refused":
            made.add_row(row["step"], "refused", "", "", "", "")
            continue
        error = row["relative_error"]
        made.add_row(
            row["step"],
            f"{row['milliseconds']:.2f}",
            f"{row['times_plain']:.2f}",
            f"{row['peak_bytes'] / 1e6:.0f}",
            f"{row['peak_times_plain']:.2f}",
            "" if error is None else f"{error:.0e}",
        )
    return made


def fleet_table(fleets: dict[str, Any]) -> Table:
    sizes = "-".join(str(size) for size in fleets["sizes"])
    title = f"{fleets['runs']} runs at once, MLP {sizes}, B={fleets['batch_size']}, one thread"
    made = Table(title=title, title_justify="left", title_style="bold")
    made.add_column("step")
    made.add_column("run-updates per second", justify="right")
    made.add_column("x plain", justify="right")
    for row in fleets["rows"]:
        made.add_row(row["step"], f"{row['run_updates_per_second']:.0f}", f"{row['times_plain']:.2f}")
    return made


def legend(result: dict[str, Any]) -> str:
    facts = result["machine"]
    return (
        f"λ = {result['settings']['strength']}; error: of the applied gradient, relative to the penalty's part, "
        f"against float64. {facts['processor']}, {facts['threads']} threads, torch {facts['torch']}, "
        f"{result['seconds']} s."
    )
