"""The tables of paper-scale.md, made from study files and stored results: run this to write them; a test compares."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tacit.studies.cost import cost, in_digits
from tacit.studies.describe.library import library
from tacit.studies.describe.spec import RunSpec

PAGE = Path(__file__).parent / "paper-scale.md"


def costs() -> str:
    """One row per study of the paper's scale: its figures, and what is counted."""
    lines = ["| study | figures | runs | updates | FLOP |", "| --- | --- | ---: | ---: | ---: |"]
    studies = library(None, "paper")
    for name, study in studies.items():
        lines.append(f"| `{name}` | {', '.join(study.figures)} | {_numbers(study.runs)} |")
    everything = [run for study in studies.values() for run in study.runs]
    lines.append(f"| all | | {_numbers(everything)} |")
    return "\n".join(lines)


def _numbers(runs: list[RunSpec] | tuple[RunSpec, ...]) -> str:
    found = cost(runs)
    return f"{found.runs:,} | {in_digits(found.updates)} | {in_digits(found.operations)}"


# -- from stored results: benchmarks/paper_scale.py and benchmarks/cluster_simulation.py -----------------------------
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def _stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def figures() -> str:
    """Figure 1, figure 4 and all runs: operations, hours on one GPU of each kind, price, storage."""
    stored = _stored("paper_scale")
    peaks = [gpu["tflops"] for gpu in stored["all"]["gpus"]]
    columns = " | ".join(f"{peak:g} TFLOP/s: hours alone / packed | price" for peak in peaks)
    lines = [
        f"| figure | runs it reads | FLOP | {columns} | longest run alone, h | rows, MB |",
        "| --- | ---: | ---: |" + " ---: | ---: |" * len(peaks) + " ---: | ---: |",
    ]
    groups: dict[str, tuple[list[str], dict[str, Any]]] = {}  # figures that read the same runs share a row
    for name, entry in {**stored["figures"], "all": stored["all"]}.items():
        groups.setdefault(json.dumps(entry), ([], entry))[0].append(name)
    for names, entry in groups.values():
        if not {"1b", "4a", "all"} & set(names):
            continue
        cells = [", ".join(names), f"{entry['runs']:,}", in_digits(entry["flop"])]
        for gpu in entry["gpus"]:
            cells += [f"{gpu['hours_alone']:,.0f} / {gpu['hours_packed']:,.0f}", f"{gpu['cost_packed']:,.0f}"]
        longest = " / ".join(f"{gpu['hours_of_longest_run']:.0f}" for gpu in entry["gpus"])
        lines.append("| " + " | ".join([*cells, longest, f"{entry['megabytes_of_rows']:.1f}"]) + " |")
    return "\n".join(lines)


def simulation() -> str:
    """One row per workload on 100 workers of which 1 % are lost per hour."""
    stored = _stored("cluster_simulation")
    lines = [
        "| workload | hours | no scheduler below | used | lost workers | given up |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in stored["rows"]:
        if (row["workers"], row["failures_per_hour"]) != (100, 0.01):
            continue
        cells = [
            row["workload"], f"{row['hours']:,.1f}",
            f"{row['hours_at_least']:,.1f}", f"{100 * row['utilisation']:.1f} %", str(row["losses"]),
            f"{row['given_up']} of {row['fleets']:,}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def filled(text: str) -> str:
    """The page with each table between its markers."""
    tables = {"costs": costs, "figures": figures, "simulation": simulation}
    for marker, make in tables.items():
        table = make()
        pattern = rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)"
        text = re.sub(pattern, lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
