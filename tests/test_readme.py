"""The README says what the stored results say, and shows what a visitor needs on its first screen."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def tables() -> Any:
    location = importlib.util.spec_from_file_location("readme_tables", ROOT / "docs" / "readme_tables.py")
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    return module


PAGES = [
    *["README.md", "docs/results.md", "docs/choosing-a-method.md", "docs/diagnostics.md", "docs/large-batch.md"],
    "studies/cifar10/README.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_are_those_of_the_stored_results(page: str) -> None:
    text, made = (ROOT / page).read_text(), tables()
    assert list(made.PAGES) == PAGES
    assert made.filled(text, made.PAGES[page]) == text, "run: python docs/readme_tables.py"
    for make in made.PAGES[page].values():
        assert make() in text


def test_the_readme_is_read_in_minutes() -> None:
    tables = r"<!-- costs -->.*?<!-- /costs -->|<!-- large-batch -->.*?<!-- /large-batch -->"
    prose = re.sub(rf"```.*?```|{tables}", "", README, flags=re.DOTALL)
    assert len(prose.split()) < 900


def test_the_first_screen_has_the_changed_line_and_the_two_commands() -> None:
    first_screen = "\n".join(README.splitlines()[:45])
    for needed in ("```diff", "penalty.backward(", "make reproduce", "make test", "| model |"):
        assert needed in first_screen


def test_every_local_link_leads_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
