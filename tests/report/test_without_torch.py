"""A report is made from rows on a machine that has no torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from worlds import paper_world

RESULTS = Path(__file__).parents[2] / "docs" / "results"
COMMITTED = sorted({found.parent.parent for found in RESULTS.glob("*/studies/*.json")})
# Any import of torch, however deep, fails as it does where torch is not installed.
BLOCKED = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision", "functorch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch())
from tacit.cli import main
main()
"""


def report(folder: Path, page: Path) -> str:
    words = [sys.executable, "-c", BLOCKED, "report", str(folder), "--out", str(page)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return page.read_text()


def test_the_blocker_blocks() -> None:
    code = BLOCKED.replace("from tacit.cli import main\nmain()", "import torch")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in ended.stderr


def test_a_page_is_made_without_torch(make_world: Callable[..., Path], tmp_path: Path) -> None:
    page = report(make_world(paper_world, only=("rates",)), tmp_path / "page.html")
    assert '<section id="2a"' in page


@pytest.mark.skipif(not COMMITTED, reason="no rows are stored in docs/results")
@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_the_page_of_stored_rows_is_made_without_torch(folder: Path, tmp_path: Path) -> None:
    page = report(folder, tmp_path / "page.html")
    assert "Where this comes from" in page
    assert "<section id=" in page
