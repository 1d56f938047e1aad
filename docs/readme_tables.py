"""The README's two tables, made from stored results: run this file to write them; a test compares them."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "benchmarks" / "results" / "bench.json"
VERDICTS = ROOT / "docs" / "results" / "mnist1d" / "results.json"
COLUMNS = ("naive double backward", "double_backward", "gram", "FactoredSGD", "finite_difference", "ascent")


def costs() -> str:
    """One row per benchmarked model: time of a step, and for exact methods of ours the peak memory in brackets."""
    lines = [
        "| model | " + " | ".join(f"`{name}`" if " " not in name else name for name in COLUMNS) + " |",
        "| --- |" + " --- |" * len(COLUMNS),
    ]
    for model in json.loads(BENCH.read_text())["models"]:
        rows = {row["step"]: row for row in model["rows"]}
        cells = []
        for name in COLUMNS:
            row = rows[name]
            if row["status"] != "measured":
                cells.append("refused")
                continue
            cell = f"{row['times_plain']:.2f}"
            if name in ("gram", "FactoredSGD"):
                cell = f"{'**' if row['times_plain'] <= 1 else ''}{cell}{'**' if row['times_plain'] <= 1 else ''}"
                cell += f" ({row['peak_times_plain']:.2f})"
            cells.append(cell)
        lines.append(f"| {model['title']} | " + " | ".join(cells) + " |")
    lines += ["", "Time, (memory) as multiples of plain. The last two are approximations, the others exact."]
    return "\n".join(lines)


def verdicts() -> str:
    """One row per figure: what the paper says, what was seen, the number with its interval, the verdict."""
    lines = ["| figure | the claim | seen here | number [95 %] | verdict |", "| --- | --- | --- | --- | --- |"]
    for figure in json.loads(VERDICTS.read_text())["figures"]:
        verdict = figure["verdict"]
        value, low, high = verdict["number"]
        number = f"{value:.2f} [{low:.2f}, {high:.2f}] {verdict['unit']}"
        cells = [figure["figure"], verdict["claim"], verdict["seen"], number, f"**{verdict['outcome']}**"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)


def filled(text: str) -> str:
    """The README with both tables put between their markers."""
    for marker, table in (("costs", costs()), ("verdicts", verdicts())):
        pattern = rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)"
        text = re.sub(pattern, lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))
