"""The verdicts of the stored ten-seed run (docs/results/mnist1d), for pages and tables of runs of the same task.

`python docs/ten_seeds.py` writes `ten_seeds.json` from those rows; a test compares the two.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tacit.report import rules
from tacit.report.build import Report
from tacit.report.figure import FigureResult

FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class TenSeeds:
    answer: str
    runs: int
    studies: frozenset[str]
    verdicts: dict[str, dict[str, str]]  # regime → figure → verdict

    def of(self, figure: FigureResult) -> str:
        """The stored verdict of this figure in its regime; empty if there is none."""
        return self.verdicts.get(figure.regime, {}).get(figure.id, "")


@cache
def ten_seeds() -> TenSeeds:
    stored = json.loads(FILE.read_text())
    return TenSeeds(stored["answer"], stored["runs"], frozenset(stored["studies"]), stored["verdicts"])


def stored_beside(report: Report) -> TenSeeds | None:
    """The stored run, for a report of fewer seeds on the same task: `tacit reproduce`, or a part of it."""
    specs = [row["spec"] for row in report.rows.values()]
    stored = ten_seeds()
    same_task = {(spec["dataset"], spec["model"], spec["width"]) for spec in specs} == {("mnist1d_16k", "mlp", 64)}
    same_studies = {part.study.name for part in report.parts} <= stored.studies
    few_seeds = len({spec["seed"] for spec in specs}) < rules.ENOUGH_SEEDS
    return stored if same_task and same_studies and few_seeds else None


def as_json(report: Report, answer: str) -> dict[str, Any]:
    """What is stored of a report."""
    verdicts: dict[str, dict[str, str]] = {}
    for figure in [*report.figures, *report.beside.values()]:
        if figure.verdict:
            verdicts.setdefault(figure.regime, {})[figure.id] = figure.verdict.outcome
    names = sorted(part.study.name for part in report.parts)
    return {"answer": answer, "runs": len(report.rows), "studies": names, "verdicts": verdicts}
