"""The report: one HTML file that opens offline, verdicts first, then figures, then where it all comes from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit._files import write_atomically
from tacit.report.build import Report
from tacit.report.draw import colour_of, panel_svg
from tacit.report.figure import FigureResult
from tacit.report.numbers import Interval
from tacit.report.points import Panel
from tacit.report.settings import DATASET_NAMES
from tacit.report.text import power
from tacit.report.verdict import OUTCOMES


def render(report: Report, *, command: str, title: str | None = None) -> str:
    """The page as text. `command` is what a reader types to make it again."""
    from jinja2 import Environment, PackageLoader, select_autoescape

    environment = Environment(
        loader=PackageLoader("tacit.report", "."), autoescape=select_autoescape(default=True), trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html.j2").render(
        title=title or _title(report),
        counts=outcome_counts(report),
        figures=[_shown(figure) for figure in report.figures],
        absent=report.absent,
        runs=len(report.rows),
        diverged=sum(row["status"] != "finished" for row in report.rows.values()),
        environment=environment_facts(report),
        studies=[_study_facts(part) for part in report.parts],
        command=command,
        notes=_notes(report),
    )


def write_page(report: Report, path: Path, *, command: str, title: str | None = None) -> Path:
    """The page as a file; a reader sees the old page or the new one."""
    return write_atomically(path, render(report, command=command, title=title).encode())


def outcome_counts(report: Report) -> dict[str, int]:
    found = Counter(figure.verdict.outcome for figure in report.figures if figure.verdict)
    return {outcome: found[outcome] for outcome in OUTCOMES}


def _title(report: Report) -> str:
    datasets = sorted({row["spec"]["dataset"] for row in report.rows.values()})
    names = [DATASET_NAMES.get(name, name) for name in datasets or ["no data"]]
    return "Implicit regularization in SGD, on " + " and ".join(names)


FEW_SEEDS = 3


def _notes(report: Report) -> list[str]:
    """What a reader has to know about the verdicts, as far as it is true of these runs."""
    specs = [row["spec"] for row in report.rows.values()]
    fixed = (
        "Rules and thresholds are part of the program; they were fixed with the quick runs on MNIST-1D in view "
        "(seeds 0 to 2)"
    )
    if any(spec["dataset"] != "mnist1d" for spec in specs):
        fixed += (
            " and taken over for other data. Accuracies spread over ten points there: where all of them lie close "
            "together, a margin of one or two points asks little of a claim that two things are alike, and much of a "
            "claim that they differ"
        )
    elif specs and all(spec["seed"] > 2 for spec in specs):
        fixed += "; none of the runs on this page had been looked at by then"
    notes = [f"{fixed}.", "Brackets are 95 % bootstrap intervals over seeds."]
    if specs and len({spec["seed"] for spec in specs}) <= FEW_SEEDS:
        notes.append("So few seeds leave much undecided.")
    if report.twins:
        pairs = ", ".join(f"{id} on those of {twin}" for id, twin in report.twins.items())
        notes.append(f"Verdicts that rest on the same runs are not independent: {pairs}.")
    return notes


# -- figures ----------------------------------------------------------------------------------------------------------
def _shown(figure: FigureResult) -> dict[str, Any]:
    return {
        "id": figure.id,
        "name": figure.name,
        "title": figure.title,
        "verdict": figure.verdict,
        "caption": figure.caption,
        "cut": [setting for setting in figure.settings if setting.differs],
        "kept": [setting for setting in figure.settings if not setting.differs],
        "panels": [panel_svg(figure, index) for index in range(len(figure.panels))],
        "legend": _legend(figure),
        "tables": [_table(panel) for panel in figure.panels[:1]],
    }


def _legend(figure: FigureResult) -> list[dict[str, Any]]:
    """One entry per curve; switching it switches the curve of that label in every panel."""
    entries: dict[str, dict[str, Any]] = {}
    for index, panel in enumerate(figure.panels):
        for number, curve in enumerate(panel.curves):
            entry = entries.setdefault(curve.label, {"label": curve.label, "colour": colour_of(curve), "ids": []})
            entry["style"] = {"line": "solid", "dashed": "dashed", "level": "dotted"}[curve.style]
            entry["ids"].append(f"{figure.id}-p{index}-c{number}-")
    return list(entries.values())


def _table(panel: Panel) -> dict[str, Any]:
    rows = [
        {
            "curve": curve.label,
            "x": power(point.x) if panel.x_scale == "log2" else f"{point.x:g}",
            "summary": _number(point.summary, panel),
            "mean": _number(point.mean, panel),
            "runs": len(point.runs),
            "diverged": point.diverged,
        }
        for curve in panel.curves
        if curve.style != "level" and not curve.traces
        for point in curve.points
    ]
    return {"x": panel.x_label, "y": panel.y_label, "rows": rows}


def _number(number: Interval, panel: Panel) -> str:
    if panel.y_scale == "percent":
        return Interval(100 * number.value, 100 * number.low, 100 * number.high).text(1)
    if panel.y_scale == "log2":
        ends = [2**value if math.isfinite(value) else math.nan for value in (number.value, number.low, number.high)]
        return f"{ends[0]:.3g}" + ("" if math.isnan(ends[1]) else f" [{ends[1]:.3g}, {ends[2]:.3g}]")
    return number.text(3)


# -- where it comes from ----------------------------------------------------------------------------------------------
def environment_facts(report: Report) -> dict[str, str]:
    """Versions, commit and machine of the runs; several values are listed when fleets differ."""
    metas = [meta for part in report.parts for meta in part.metas]
    versions: dict[str, set[str]] = {}
    for meta in metas:
        for name, value in (meta.get("versions") or {}).items():
            versions.setdefault(name, set()).add(str(value))
    facts = {name: ", ".join(sorted(found)) for name, found in versions.items()}
    facts["commit"] = _distinct([meta.get("commit") for meta in metas])
    machines = [meta.get("machine") or {} for meta in metas]
    facts["machine"] = _distinct(
        [
            ", ".join(str(value) for value in (machine.get("processor"), machine.get("architecture")) if value)
            + (f", {machine['cores']} cores" if machine.get("cores") else "")
            for machine in machines
        ]
    )
    facts["training"] = f"{sum(float(meta.get('seconds') or 0) for meta in metas) / 60:.1f} core-minutes"
    facts["ended"] = max((str(meta.get("ended") or "") for meta in metas), default="")
    return {key: value for key, value in facts.items() if value}


def _distinct(values: Sequence[object]) -> str:
    return "; ".join(dict.fromkeys(str(value) for value in values if value))


def _study_facts(part: Any) -> dict[str, Any]:
    study = part.study
    return {
        "name": study.name,
        "question": study.question,
        "hash": study.hash,
        "runs": len(part.rows),
        "missing": part.missing,
        "fixed": ", ".join(f"{key} = {_written(value)}" for key, value in study.fixed.items()),
        "grids": [
            "; ".join(f"{key}: {_written(values)}" for key, values in table.items()) for table in study.grid
        ],
    }  # fmt: skip


def _written(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_written(each) for each in value)
    text = str(value)
    return power(2.0 ** float(text[2:])) if text.startswith("2^") else text
