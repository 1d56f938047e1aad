"""Rows on disk → figures with verdicts → one self-contained HTML file. Needs no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "CATALOGUE": "tacit.report.catalogue",
    "Report": "tacit.report.catalogue",
    "build_report": "tacit.report.catalogue",
    "read_parts": "tacit.report.catalogue",
    "render": "tacit.report.page",
    "write_page": "tacit.report.page",
}

__all__ = ["CATALOGUE", "Report", "build_report", "read_parts", "render", "write_page"]

if TYPE_CHECKING:
    from tacit.report.catalogue import CATALOGUE, Report, build_report, read_parts
    from tacit.report.page import render, write_page


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tacit.report' has no attribute {name!r}")
