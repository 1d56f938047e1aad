"""docs/paper-scale.md has the costs that the study files have, and the numbers of the stored results."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_tables_are_those_of_the_study_files_and_of_the_stored_results() -> None:
    location = importlib.util.spec_from_file_location("paper_tables", DOCS / "paper_tables.py")
    tables = importlib.util.module_from_spec(location)
    location.loader.exec_module(tables)
    page = (DOCS / "paper-scale.md").read_text()
    assert tables.filled(page) == page, "run: python docs/paper_tables.py"
    assert tables.costs() in page
    for stored in (tables.figures, tables.simulation):
        assert stored() in page
