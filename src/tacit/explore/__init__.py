"""Pages to explore the theory with: one HTML file each, no network. The formulas are in theory.js and walks.js."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit._util.page_files import page_text


def explore_page() -> str:
    """The page of SGD's modified loss in two dimensions, as one HTML text.

    >>> "/* include" in explore_page()
    False
    """
    return page_text(__name__, "explore.html")


def collapse_page(rows: list[Mapping[str, Any]]) -> str:
    """The page on which curves of several batch sizes move together when ε becomes ε/B, or λ becomes λ/B.

    Rows are those of a study folder; see `collapse_sweeps` for which of them are shown. Distances between the curves
    are those of `tacit.report.collapse_score`.
    """
    from tacit.explore.collapse import as_json, collapse_sweeps

    return page_text(__name__, "collapse.html").replace("/* data */", as_json(collapse_sweeps(rows)))
