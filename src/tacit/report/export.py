"""The report's numbers and pictures as files for documents: JSON and SVG, made from the same figures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tacit._util.files import write_atomically
from tacit.report.build import Report, environment_facts
from tacit.report.draw import write_figure
from tacit.report.figure import FigureResult, outcome_counts
from tacit.report.numbers import Interval
from tacit.report.points import Curve
from tacit.report.verdict import Criterion

Y_IS = {"log2": "log2 of the quantity", "percent": "a share"}


def export(report: Report, folder: Path, *, command: str) -> list[Path]:
    """Write results.json and one SVG per figure; returns what was written."""
    written = [folder / "results.json"]
    text = json.dumps(report_json(report, command=command), indent=1, ensure_ascii=False) + "\n"
    write_atomically(written[0], text.encode())
    for figure in report.figures:
        written.append(folder / f"figure-{figure.id}.svg")
        write_figure(figure, written[-1])
    return written


def report_json(report: Report, *, command: str) -> dict[str, Any]:
    return {
        "command": command,
        "outcomes": outcome_counts(report.figures),
        "runs": len(report.rows),
        "environment": environment_facts(report),
        "studies": {part.study.name: part.study.hash for part in report.parts},
        "figures": [figure_json(figure) for figure in report.figures],
        "beside": [figure_json(figure) for figure in report.beside.values()],
        "absent": report.absent,
    }


def curve_json(curve: Curve) -> dict[str, Any]:
    """A curve for the JSON export: what is drawn, number by number."""
    return {
        "label": curve.label,
        "points": [
            {
                "x": point.x,
                "summary": _triple(point.summary),
                "mean_of_all_runs": _triple(point.mean),
                "runs": [value for value, _ in point.runs],
                "diverged": point.diverged,
                "counts": point.counts,
            }
            for point in curve.points
        ],
    }


def _triple(number: Interval) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in (number.value, number.low, number.high)]


def criterion_json(criterion: Criterion) -> dict[str, Any]:
    return {
        "name": criterion.name, "number": _triple(criterion.number.interval()), "unit": criterion.unit,
        "rule": criterion.rule, "paper": criterion.paper,
    }  # fmt: skip


def figure_json(figure: FigureResult) -> dict[str, Any]:
    verdict = figure.verdict
    return {
        "figure": figure.id,
        "title": figure.title,
        "regime": figure.regime,
        "caption": figure.caption,
        "runs": figure.runs,
        "diverged": figure.diverged,
        "core_minutes": round(figure.seconds / 60, 1),
        "not_as_in_the_paper": {each.name: [each.here, each.paper] for each in figure.settings if each.differs},
        "verdict": None if verdict is None else {
            "claim": verdict.claim, "seen": verdict.seen, "number": _triple(verdict.number),
            "unit": verdict.deciding.unit, "rule": verdict.rule, "outcome": verdict.outcome, "advice": verdict.advice,
            "criteria": [criterion_json(criterion) for criterion in verdict.criteria],
            "quote": verdict.quote, "where": verdict.where,
        },
        "panels": [
            {
                "x": panel.x_label, "y": panel.y_label, "y_is": Y_IS.get(panel.y_scale, "the quantity"),
                "curves": [curve_json(curve) for curve in panel.curves],
            }
            for panel in figure.panels
        ],
    }  # fmt: skip
