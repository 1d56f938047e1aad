"""Rows on disk → figures with verdicts → one self-contained HTML file. Needs no torch."""

from tacit.report.build import Report, build_report, read_parts
from tacit.report.figure import Drawing, Figure, Quote, Source
from tacit.report.page import render, write_page
from tacit.report.registry import catalogue
from tacit.report.verdict import Criterion

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
