"""Docstrings as Markdown: examples become blocks of code, and lines of formulas keep their columns."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> ")
_ALIGNED = re.compile(r"\S {3,}\S")  # a formula with its equation number, or two columns of a table


def as_markdown(text: str) -> str:
    """The docstring with its examples and its aligned lines in fences.

    >>> print(as_markdown("Half.\\n\\nx = y/2      (Eq. 1)\\n\\n>>> 1 / 2\\n0.5"))
    Half.
    <BLANKLINE>
    ``` { .text .formula }
    x = y/2   (Eq. 1)
    ```
    <BLANKLINE>
    ```pycon
    >>> 1 / 2
    0.5
    ```
    """
    return "\n\n".join(_paragraph(part) for part in re.split(r"\n\s*\n", text))


def _paragraph(text: str) -> str:
    if _EXAMPLE.match(text):
        return f"```pycon\n{text}\n```"
    if _ALIGNED.search(text) and not text.lstrip().startswith(("-", "|")):
        return "``` { .text .formula }\n" + "\n".join(_columns(text.splitlines())) + "\n```"
    return text


def _columns(lines: list[str]) -> list[str]:
    """Lines whose columns are three spaces apart, however far apart they were: the page is narrower than the source."""
    rows = [re.split(r" {3,}", line.strip()) for line in lines]
    widths: dict[int, int] = {}
    for row in rows:
        for column, cell in enumerate(row[:-1]):
            widths[column] = max(widths.get(column, 0), len(cell))
    padded = [[*[cell.ljust(widths[column]) for column, cell in enumerate(row[:-1])], row[-1]] for row in rows]
    return ["   ".join(row) for row in padded]


class MarkdownDocstrings(griffe.Extension):
    """Applied to every docstring that griffe reads."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
