"""The tables of paper-scale.md, made from study files and stored results: run this to write them; a test compares."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tacit.report import catalogue
from tacit.report.settings import compared, planned
from tacit.studies.cost import cost, in_digits, in_words, operations
from tacit.studies.describe.library import library
from tacit.studies.describe.spec import RunSpec

DEVICE = 0.1 * 19.5e12  # a tenth of the peak of one A100 in float32 without TF32
PAGE = Path(__file__).parent / "paper-scale.md"


def costs() -> str:
    """One row per study of the paper's scale; times on a device that reaches `DEVICE` operations per second."""
    lines = [
        "| study | figures | runs | updates | FLOP | device | its longest run |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    studies = library(None, "paper")
    for name, study in studies.items():
        longest = max(study.runs, key=operations)
        lines.append(f"| `{name}` | {', '.join(study.figures)} | {_numbers(study.runs)} | {_device([longest])} |")
    everything = [run for study in studies.values() for run in study.runs]
    lines.append(f"| all | | {_numbers(everything)} | |")
    return "\n".join(lines)


def _numbers(runs: list[RunSpec] | tuple[RunSpec, ...]) -> str:
    found = cost(runs)
    return f"{found.runs:,} | {in_digits(found.updates)} | {in_digits(found.operations)} | {_device(runs)}"


def _device(runs: list[RunSpec] | tuple[RunSpec, ...]) -> str:
    return in_words(cost(runs).operations / DEVICE)


def cuts() -> str:
    """One row per group of figures of the small scale that were cut in the same way."""
    studies = library(None, "small").values()
    found: dict[str, list[str]] = {}
    for id in sorted({id for study in studies for id in study.figures}):
        rows, options = planned(id, studies)
        cut = [each for each in compared(catalogue()[id], rows, options=options) if each.differs]
        found.setdefault("; ".join(f"{each.name}: {each.paper} → {each.here}" for each in cut), []).append(id)
    lines = ["| figures | the paper → small |", "| --- | --- |"]
    lines += [f"| {', '.join(ids)} | {cut} |" for cut, ids in found.items()]
    return "\n".join(lines)


# -- from stored results: benchmarks/paper_scale.py and benchmarks/cluster_simulation.py -----------------------------
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def _stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def steps() -> str:
    """One row per kind of update: what was counted, and the time that follows on each GPU."""
    found = _stored("paper_scale")["steps"]
    peaks = [gpu["tflops"] for gpu in found[0]["gpus"]]
    columns = " | ".join(f"{peak:g} TFLOP/s: ms alone / packed (runs)" for peak in peaks)
    lines = [
        f"| model | B | update | GFLOP | calls | MB moved | GB of a run | {columns} |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |" + " ---: |" * len(peaks),
    ]
    for step in found:
        times = [f"{gpu['alone_ms']:.2f} / {gpu['packed_ms']:.2f} ({gpu['packed']})" for gpu in step["gpus"]]
        cells = [
            step["model"], str(step["batch_size"]), "penalised" if step["penalised"] else "plain",
            f"{step['gflop']:.2f}", str(step["kernels"]), f"{step['megabytes_moved']:.0f}",
            f"{step['gigabytes']:.1f}", *times,
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figures() -> str:
    """One row per group of figures, then all runs: operations, hours on one GPU of each kind, price, storage."""
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
        cells = [", ".join(names), f"{entry['runs']:,}", in_digits(entry["flop"])]
        for gpu in entry["gpus"]:
            cells += [f"{gpu['hours_alone']:,.0f} / {gpu['hours_packed']:,.0f}", f"{gpu['cost_packed']:,.0f}"]
        longest = " / ".join(f"{gpu['hours_of_longest_run']:.0f}" for gpu in entry["gpus"])
        lines.append("| " + " | ".join([*cells, longest, f"{entry['megabytes_of_rows']:.1f}"]) + " |")
    return "\n".join(lines)


def simulation() -> str:
    """One row per simulated cluster."""
    stored = _stored("cluster_simulation")
    lines = [
        "| workload | workers | lost per hour | hours | no scheduler below | used | lost workers | given up |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in stored["rows"]:
        cells = [
            row["workload"], str(row["workers"]), f"{100 * row['failures_per_hour']:g} %", f"{row['hours']:,.1f}",
            f"{row['hours_at_least']:,.1f}", f"{100 * row['utilisation']:.1f} %", str(row["losses"]),
            f"{row['given_up']} of {row['fleets']:,}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def filled(text: str) -> str:
    """The page with each table between its markers."""
    tables = {"costs": costs, "cuts": cuts, "steps": steps, "figures": figures, "simulation": simulation}
    for marker, make in tables.items():
        table = make()
        pattern = rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)"
        text = re.sub(pattern, lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
