"""Figures and verdicts of the rows that are there so far, as the report makes them, in JSON for the page."""

from __future__ import annotations

from typing import Any

from tacit.report.build import Part, build_report
from tacit.report.draw import class_name, colour, panel_svg
from tacit.report.figure import FigureResult
from tacit.studies.store.status import FolderStatus


def figures_of(status: FolderStatus) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Figures in the report's order, and the reasons why others cannot be shown.

    A figure that a study brings as "module:name" is not drawn: opening a folder must not run code that it names.
    """
    parts = [Part(each.study, status.contents.rows_of(each.study.runs), [], each.study.name) for each in status.studies]
    wanted = dict.fromkeys(id for part in parts for id in (part.study.figures or {part.study.name: {}}))
    own = [id for id in wanted if any("figure" in part.study.figures.get(id, {}) for part in parts)]
    left_out = {id: "its drawing is code of your own, which this page does not run; `tacit report` does." for id in own}
    only = [id for id in wanted if id not in own]
    if not only:
        return [], left_out
    report = build_report(parts, only=only)
    shown = []
    for number, figure in enumerate(report.figures):
        shown.append(_shown(figure, f"f{number}"))
        if figure.id in report.beside:
            shown.append(_shown(report.beside[figure.id], f"f{number}b"))
    # A study alone feeds figures that need others beside it: of those there is nothing to say.
    return shown, {**(report.absent if len(parts) > 1 else {}), **left_out}


def _shown(figure: FigureResult, key: str) -> dict[str, Any]:
    verdict = figure.verdict
    curves = {curve.label: curve for panel in figure.panels for curve in panel.curves}
    return {
        "key": key,
        "id": figure.id,
        "name": figure.name,
        "title": figure.title,
        "regime": figure.regime,
        "runs": figure.runs,
        "caption": figure.caption,
        "outcome": verdict.outcome if verdict else None,
        "claim": verdict.claim if verdict else "",
        "number": verdict.number_text if verdict else "",
        "seen": verdict.seen if verdict else "",
        "rule": verdict.rule if verdict else "",
        "advice": verdict.advice_beside_number if verdict else "",
        "panels": [panel_svg(figure, index, key=key) for index in range(len(figure.panels))],
        "legend": [
            {"label": label, "class": class_name(curve), "style": curve.style, "colours": colour(curve.colour)}
            for label, curve in curves.items()
        ],
    }
