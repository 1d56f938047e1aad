"""Pages with tables and text of stored results are what their scripts make of them now."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tacit.penalty import METHODS

ROOT = Path(__file__).parents[2]


def script(name: str) -> Any:
    location = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    return module


readme_tables, paper_tables = script("readme_tables"), script("paper_tables")
models_table, integrations_page = script("models_table"), script("integrations_page")
ZOO = json.loads(models_table.ZOO.read_text())

WITH_TABLES = [
    *["README.md", "docs/results.md", "docs/choosing-a-method.md", "docs/large-batch.md", "docs/diagnostics.md"],
    "studies/cifar10/README.md",
]


def with_tables(page: str) -> Callable[[str], str]:
    return lambda text: readme_tables.filled(text, readme_tables.PAGES[page])


MADE: dict[str, tuple[str, Callable[[str], str]]] = {
    **{page: ("readme_tables", with_tables(page)) for page in WITH_TABLES},
    "docs/paper-scale.md": ("paper_tables", paper_tables.filled),
    "docs/models.md": ("models_table", lambda _: models_table.page(ZOO)),
    "docs/integrations.md": ("integrations_page", lambda _: integrations_page.page()),
}


@pytest.mark.parametrize("page", MADE)
def test_the_page_is_what_its_script_makes(page: str) -> None:
    name, made = MADE[page]
    text = (ROOT / page).read_text()
    assert made(text) == text, f"run: python docs/{name}.py"


def test_no_page_with_tables_is_forgotten() -> None:
    assert list(readme_tables.PAGES) == WITH_TABLES


def test_every_table_of_paper_scale_has_its_place() -> None:
    page = (ROOT / "docs" / "paper-scale.md").read_text()
    for made in (paper_tables.costs, paper_tables.figures, paper_tables.simulation):
        assert made() in page


def test_the_methods_of_the_models_page_are_those_that_there_are() -> None:
    known = {"auto", "FactoredSGD", *METHODS}
    counted = Counter(method for model in ZOO["models"] for _, method, _ in models_table.cases(model))
    assert set(counted) == known
    assert set(models_table.EXACT_METHODS) == known - {"finite_difference"}
    assert f" of {counted.total():,} cases on" in (ROOT / "README.md").read_text()


def test_the_models_page_says_which_run_made_the_rows() -> None:
    run = {"commit": "0123456789ab", "dirty": False, "started": "2026-01-01T10:00:00", "ended": "2026-01-01T10:20:00"}
    of_one = ZOO | {"one_run": True, "runs": [run]}
    assert "one run, 2026-01-01T10:00:00 to 2026-01-01T10:20:00, on commit `0123456789ab`." in models_table.page(of_one)
    dirty = ZOO | {"one_run": True, "runs": [run | {"dirty": True}]}
    assert "`0123456789ab`, with uncommitted changes" in models_table.page(dirty)
    assert "several runs" in models_table.page(ZOO | {"one_run": False, "runs": [run, run]})


def test_a_failure_would_be_seen_on_the_models_page() -> None:
    broken = copy.deepcopy(ZOO)
    broken["models"][0]["variants"]["base"]["gram"] = {"status": "wrong", "error": 0.5}
    assert "**WRONG**" in models_table.page(broken)
    assert "**WRONG**" not in models_table.page(ZOO)
