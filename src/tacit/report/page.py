"""The report: one HTML file that opens offline. First the question and its answer, then figures, then their origin."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit._util.files import write_atomically
from tacit.report import rules
from tacit.report.build import Part, Report, environment_facts
from tacit.report.draw import class_name, panel_svg, stylesheet, thumbnail
from tacit.report.figure import FigureResult, shown_counts
from tacit.report.gauge import gauge
from tacit.report.numbers import Interval
from tacit.report.points import Panel, Point
from tacit.report.settings import DATASET_NAMES
from tacit.report.style import PAGE_COLOURS, SHAPES
from tacit.report.ten_seeds import TenSeeds, stored_beside
from tacit.report.text import percent, power, readable
from tacit.report.verdict import Criterion, Outcome

HERO = "1b"  # the figure that the paper's question is answered by
GAIN = "6a"  # and the one that says how much of the gain a penalty gives
QUESTION = "Does a large learning rate work like an explicit penalty on gradients?"
FEW_SEEDS = 3
SHORT_UNIT = 4  # words of a unit that the table of verdicts has place for; others stand at their figure


def render(report: Report, *, command: str, title: str | None = None) -> str:
    """The page as text. `command` is what a reader types to make it again."""
    from jinja2 import Environment, PackageLoader, select_autoescape

    environment = Environment(
        loader=PackageLoader("tacit.report", "."), autoescape=select_autoescape(default=True), trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["nobreak"] = lambda text: text.replace(" = ", "\u00a0=\u00a0").replace(" %", "\u00a0%")
    figures = [*report.figures, *report.beside.values()]
    environment.filters["thousands"] = lambda number: f"{number:,}"
    light, dark = stylesheet(class_name(curve) for f in figures for panel in f.panels for curve in panel.curves)
    stored = stored_beside(report)
    hero = next((figure for figure in report.figures if figure.id == HERO), next(iter(report.figures), None))
    page = environment.get_template("page.html.j2").render(
        title=title or _title(report),
        question=_question(report),
        answer=answer(report),
        stored=stored,
        hero=hero
        and {"id": hero.id, "name": hero.name, "svg": panel_svg(hero, 0, key="hero"), "legend": _legend(hero)},
        counts=shown_counts(report.figures),
        beside_counts=shown_counts(report.beside.values()),
        regimes=_regimes(report),
        decided_by_regime=decided_by_regime(report),
        claims=[_claim(figure, report.beside.get(figure.id), stored) for figure in report.figures],
        absent=report.absent,
        runs=len(report.rows),
        diverged=sum(row["status"] != "finished" for row in report.rows.values()),
        environment=environment_facts(report),
        studies=[_study_facts(part) for part in report.parts],
        command=command,
        notes=_notes(report),
        rules=[re.split(r"^- ", block, flags=re.M) for block in (rules.__doc__ or "").strip().split("\n\n")],
        css={"light": PAGE_COLOURS[0], "dark": PAGE_COLOURS[1], "curves": light, "dark_curves": dark, "shapes": SHAPES},
    )
    return readable(page)


def write_page(report: Report, path: Path, *, command: str, title: str | None = None) -> Path:
    """The page as a file; a reader sees the old page or the new one."""
    return write_atomically(path, render(report, command=command, title=title))


# -- the first screen -------------------------------------------------------------------------------------------------
def _is_own(report: Report) -> bool:
    """Whether these are studies of somebody's own: no figure of theirs has a claim."""
    return not any(figure.verdict for figure in report.figures)


def _title(report: Report) -> str:
    datasets = sorted({row["spec"]["dataset"] for row in report.rows.values()})
    names = " and ".join(DATASET_NAMES.get(name, name) for name in datasets or ["no data"])
    if _is_own(report) and report.parts:
        return f"{', '.join(part.study.name for part in report.parts)}, on {names}"
    return f"Implicit regularization in SGD, on {names}"


def _question(report: Report) -> str:
    own = [part.study.question for part in report.parts if part.study.question]
    if _is_own(report):
        return own[0] if own else _title(report)
    return QUESTION


def answer(report: Report) -> str:
    """What figures 1b and 6a say, with their numbers: where the best penalty lies, and how much it gives.

    Studies of somebody's own have their best settings there.
    """
    if _is_own(report):
        return " ".join(figure.answer for figure in report.figures if figure.answer)
    place, gain = (_judged(report, id) for id in (HERO, GAIN))
    share = gain.verdict.shown_outcome if gain and gain.verdict else None
    words = [_answer_by_place(place, share)] if place else []
    if gain and gain.verdict and math.isfinite(gain.verdict.number.value):
        words.append(
            f"{'It' if place else 'The best penalty'} gives {100 * gain.verdict.number.value:.0f} % of the learning "
            f"rate’s gain in test accuracy, {_COUNTS_AS[gain.verdict.shown_outcome]} (figure {GAIN})."
        )
    return " ".join(words)


_COUNTS_AS = {
    "agrees": "which counts as similar",
    "disagrees": "which does not count as similar",
    "undecided": "with an interval that does not decide whether they are similar",
}
# A yes to the whole question needs both: the same place, and as much of a gain there.
_YES = {"agrees": "Yes", "disagrees": "Partly", "undecided": "In its place, yes", None: "In its place, yes"}


def _judged(report: Report, id: str) -> FigureResult | None:
    return next((figure for figure in report.figures if figure.id == id and figure.verdict), None)


def _answer_by_place(figure: FigureResult, share: Outcome | None) -> str:
    assert figure.verdict is not None
    rates, strengths, base = figure.panels[0].curves
    rate, strength = _highest(rates.points), _highest(strengths.points)
    start = {
        "agrees": f"{_YES[share]}: the best penalty and the best learning rate coincide within a factor of two",
        "disagrees": "Not at the same place: the best penalty and the best learning rate lie more than a factor of two "
        "apart",
        "undecided": "These runs do not decide whether the best penalty and the best learning rate coincide",
    }[figure.verdict.shown_outcome]
    return (
        f"{start}. The penalty λ = {power(strength.x)} reaches {percent(strength.mean.value)} test accuracy, the "
        f"learning rate ε = {power(rate.x)} {percent(rate.mean.value)}, the small rate alone "
        f"{percent(base.points[0].mean.value)}."
    )


def _highest(points: Sequence[Point]) -> Point:
    return max(points, key=lambda point: point.mean.value)


def _regimes(report: Report) -> list[str]:
    """The regimes shown side by side; none when there is one."""
    if not report.beside:
        return []
    return [next(figure.regime for figure in report.figures if figure.id in report.beside),
            next(iter(report.beside.values())).regime]  # fmt: skip


def decided_by_regime(report: Report) -> list[str]:
    """Figures whose claim holds in one regime and fails in the other."""
    pairs = [(figure, report.beside.get(figure.id)) for figure in report.figures]
    return [
        figure.id
        for figure, other in pairs
        if other and figure.verdict and other.verdict
        and {figure.verdict.shown_outcome, other.verdict.shown_outcome} == {"agrees", "disagrees"}
    ]  # fmt: skip


def _notes(report: Report) -> list[str]:
    """What a reader has to know about the verdicts, as far as it is true of these runs."""
    if report.figures and _is_own(report):
        return []  # they are about claims
    specs = [row["spec"] for row in report.rows.values()]
    notes = []
    if any(spec["dataset"] not in ("mnist1d", "mnist1d_16k") for spec in specs):
        notes.append(
            "The margins were chosen for MNIST-1D, where accuracies spread over ten points, and taken over for other "
            "data: where all of them lie close together, they ask little of a claim that two things are alike."
        )
    if specs and len({spec["seed"] for spec in specs}) <= FEW_SEEDS:
        notes.append("So few seeds leave some claims undecided.")
    if report.twins:
        pairs = ", ".join(f"{id} on those of {twin}" for id, twin in report.twins.items())
        notes.append(f"Verdicts that rest on the same runs are not independent: {pairs}.")
    return notes


# -- figures ----------------------------------------------------------------------------------------------------------
def _claim(figure: FigureResult, other: FigureResult | None, stored: TenSeeds | None) -> dict[str, Any]:
    results = [_shown(figure, figure.id, stored)]
    if other is not None:
        second = _shown(other, f"{figure.id}-beside", stored)
        _share_legend(results[0], second)
        results.append(second)
    return {
        "id": figure.id,
        "name": figure.name,
        "title": figure.title,
        "thumbnail": thumbnail(figure),
        "paper": figure.paper,
        "verdict": figure.verdict,
        "results": results,
    }


def _shown(figure: FigureResult, key: str, stored: TenSeeds | None) -> dict[str, Any]:
    verdict = figure.verdict
    return {
        "key": key,
        "regime": figure.regime,
        "verdict": verdict,
        "number": _short(verdict.deciding, words=0) if verdict else "",
        "short": _short(verdict.deciding, words=SHORT_UNIT) if verdict else "",
        "stored": stored.of(figure) if stored else "",
        "gauge": gauge(verdict.deciding) if verdict else "",
        "caption": figure.caption,
        "runs": figure.runs,
        "cut": [setting for setting in figure.settings if setting.differs],
        "kept": [setting for setting in figure.settings if not setting.differs],
        "panels": [panel_svg(figure, index, key=key) for index in range(len(figure.panels))],
        "legend": _legend(figure, key),
        "table": _table(figure.panels[0]),
    }


def _short(criterion: Criterion, *, words: int) -> str:
    """A number for the table of verdicts, with its unit if that has few words."""
    if math.isnan(criterion.number.value):
        return "no number"
    few = len(criterion.unit.split()) <= words
    return criterion.text if few else criterion.number.interval().text(criterion.digits)


def _share_legend(first: dict[str, Any], second: dict[str, Any]) -> None:
    """One legend for two results with the same curves: its buttons switch both."""
    if [entry["label"] for entry in first["legend"]] == [entry["label"] for entry in second["legend"]]:
        for entry, other in zip(first["legend"], second["legend"], strict=True):
            entry["ids"] += other["ids"]
        second["legend"] = []


def _legend(figure: FigureResult, key: str = "hero") -> list[dict[str, Any]]:
    """One entry per curve; switching it switches the curve of that label in every panel."""
    entries: dict[str, dict[str, Any]] = {}
    for index, panel in enumerate(figure.panels):
        for number, curve in enumerate(panel.curves):
            entry = entries.setdefault(curve.label, {"label": curve.label, "class": class_name(curve), "ids": []})
            entry["style"] = {"line": "solid", "dashed": "dashed", "level": "dotted"}[curve.style]
            if key != "hero" or index == 0:
                entry["ids"].append(f"{key}-p{index}-c{number}-")
    return list(entries.values())


def _table(panel: Panel) -> dict[str, Any]:
    rows = [
        {
            "curve": curve.label,
            "x": power(point.x) if panel.x_scale != "linear" else f"{point.x:g}",
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
def _study_facts(part: Part) -> dict[str, Any]:
    study = part.study
    return {
        "name": study.name,
        "question": study.question,
        "hash": study.hash,
        "runs": len(part.rows),
        "missing": part.missing,
        "fixed": ", ".join(_setting(key, value) for key, value in study.fixed.items()),
        "grids": [
            "; ".join(f"{key}: {_written(values)}" for key, values in table.items()) for table in study.grid
        ],
    }  # fmt: skip


def _setting(key: str, value: Any) -> str:
    return f"{key} {_written(value)}" if isinstance(value, Mapping) else f"{key} = {_written(value)}"


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{key} = {_written(each)}" for key, each in value.items()) + ")"
    if isinstance(value, list):
        return ", ".join(_written(each) for each in value)
    text = str(value)
    return power(2.0 ** float(text[2:])) if text.startswith("2^") else text
