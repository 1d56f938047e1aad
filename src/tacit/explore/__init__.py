"""Pages to explore the theory with: one HTML file each, no network. The formulas are in theory.js and walks.js."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

_INCLUDE = re.compile(r"^/\* include ([\w.-]+) \*/$", re.MULTILINE)


def explore_page() -> str:
    """The page of SGD's modified loss in two dimensions, as one HTML text.

    >>> "/* include" in explore_page()
    False
    """
    return _page("explore.html")


def collapse_page(rows: list[Mapping[str, Any]]) -> str:
    """The page on which the curves of several batch sizes move together when ε becomes ε/B, with these rows inside.

    Rows are those of a study folder; see `collapse_runs` for which of them are shown.
    """
    from tacit.explore.collapse import as_json, collapse_runs

    return _page("collapse.html").replace("/* data */", as_json(collapse_runs(rows)))


def _page(name: str) -> str:
    """The page with its style and its scripts put in their places."""
    return _INCLUDE.sub(lambda found: _text(found[1]), _text(name))


def _text(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")
