"""The README says what the stored results say, and shows what a visitor needs on its first screen."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_tables_are_those_of_the_stored_results() -> None:
    location = importlib.util.spec_from_file_location("readme_tables", ROOT / "docs" / "readme_tables.py")
    tables = importlib.util.module_from_spec(location)
    location.loader.exec_module(tables)
    assert tables.filled(README) == README, "run: python docs/readme_tables.py"
    assert tables.costs() in README
    assert tables.verdicts() in README


def test_the_first_screen_has_the_changed_line_and_the_two_commands() -> None:
    first_screen = "\n".join(README.splitlines()[:45])
    for needed in ("```diff", "penalty.backward(", "make reproduce", "make test", "| model |"):
        assert needed in first_screen


def test_every_local_link_leads_somewhere() -> None:
    import re

    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
