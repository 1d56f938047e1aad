"""Pages to explore the theory with: one HTML file each, no network. The formulas are in theory.js and walks.js."""

from __future__ import annotations

import re
from importlib import resources

_INCLUDE = re.compile(r"^/\* include ([\w.]+) \*/$", re.MULTILINE)


def explore_page() -> str:
    """The page of SGD's modified loss in two dimensions, as one HTML text.

    >>> "/* include" in explore_page()
    False
    """
    return _page("explore.html")


def _page(name: str) -> str:
    """The page with its style and its scripts put in their places."""
    return _INCLUDE.sub(lambda found: _text(found[1]), _text(name))


def _text(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")
