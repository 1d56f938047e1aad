"""Rows on disk → figures with verdicts → one self-contained HTML file. Needs no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Criterion": "tacit.report.verdict",
    "Drawing": "tacit.report.figure",
    "Figure": "tacit.report.figure",
    "Quote": "tacit.report.figure",
    "Report": "tacit.report.build",
    "Source": "tacit.report.figure",
    "build_report": "tacit.report.build",
    "catalogue": "tacit.report.registry",
    "read_parts": "tacit.report.build",
    "render": "tacit.report.page",
    "write_page": "tacit.report.page",
}

__all__ = [
    "Criterion",
    "Drawing",
    "Figure",
    "Quote",
    "Report",
    "Source",
    "build_report",
    "catalogue",
    "read_parts",
    "render",
    "write_page",
]

if TYPE_CHECKING:
    from tacit.report.build import Report, build_report, read_parts
    from tacit.report.figure import Drawing, Figure, Quote, Source
    from tacit.report.page import render, write_page
    from tacit.report.registry import catalogue
    from tacit.report.verdict import Criterion


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tacit.report' has no attribute {name!r}")
