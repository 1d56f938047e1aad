"""The tables of paper-scale.md, made from the study files: run this file to write them; a test compares them."""

from __future__ import annotations

import re
from pathlib import Path

from tacit.report import catalogue
from tacit.report.settings import compared, planned
from tacit.studies.cost import cost, in_digits, operations
from tacit.studies.describe.library import library
from tacit.studies.describe.spec import RunSpec
from tacit.studies.estimate import in_words

PAGE = Path(__file__).parent / "paper-scale.md"


def costs() -> str:
    """One row per study of the paper's scale; times on the device that `tacit figures` assumes without options."""
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
    return in_words(cost(runs).device_seconds())


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


def filled(text: str) -> str:
    """The page with each table between its markers."""
    for marker, table in (("costs", costs()), ("cuts", cuts())):
        pattern = rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)"
        text = re.sub(pattern, lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
