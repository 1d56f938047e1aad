"""Every name in docs/notation.md is real, and every page of the docs that speaks of names uses real ones."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "notation.md"
PLACE = re.compile(r"(?P<path>tacit(?:\.\w+)+)(?:\((?P<argument>\w+)\))?")


def table_rows() -> list[list[str]]:
    """Cells of every row of every table of the page, without headings and rules."""
    lines = [line.strip() for line in PAGE.read_text().splitlines() if line.strip().startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0] != "paper" and set(row[0]) != {"-"}]


ROWS = table_rows()
PLACES = sorted({place for row in ROWS for place in re.findall(r"`([^`]+)`", row[-1])})


def resolve(path: str) -> object:
    """The object behind a dotted path: modules first, then attributes."""
    parts = path.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for name in parts[split:]:
            found = getattr(found, name)
        return found
    raise AssertionError(path)


def test_the_page_has_tables_that_can_be_read() -> None:
    assert len(ROWS) > 30
    assert all(len(row) == 4 for row in ROWS)


@pytest.mark.parametrize("place", PLACES)
def test_the_place_of_a_name_exists(place: str) -> None:
    parsed = PLACE.fullmatch(place)
    assert parsed, f"{place!r} is not written as tacit.x.y or tacit.x.y(argument)"
    found = resolve(parsed["path"])
    if parsed["argument"]:
        assert callable(found)
        assert parsed["argument"] in inspect.signature(found).parameters


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_the_name_is_the_one_used_at_its_places(row: list[str]) -> None:
    names = re.findall(r"`([^`]+)`", row[1])
    places = [PLACE.fullmatch(place) for place in re.findall(r"`([^`]+)`", row[-1])]
    used = {(place["argument"] or place["path"].split(".")[-1]) for place in places if place}
    assert names
    assert used
    # Optimizers keep torch's key `lr`; the decay by its own name is one of the schedules.
    assert set(names) <= used
    assert used - set(names) <= {"lr", "paper_decay"}


def test_the_page_names_what_the_package_calls_by_greek_letters() -> None:
    named = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[1])}
    assert {"learning_rate", "strength", "batch_size", "full_loss", "implicit_regularizer"} <= named
