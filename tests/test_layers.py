"""The layers of docs/architecture.md hold: a file imports only from layers above it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "tacit"
LAYERS = [
    {
        *["_arguments", "_calls", "_counted", "_errors", "_files", "_graph", "_parsing", "_provenance", "_random"],
        *["_terminal_bar", "_tree"],
    },
    {"batching", "edges", "problem", "schedules"},
    {"penalty", "nstep", "theory", "diagnostics", "convert"},
    {"studies"},
    {"report", "integrations", "bench"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
WITHOUT_TORCH = [
    *["tacit", "tacit.cli", "tacit.report"],
    *["tacit.studies.describe.spec", "tacit.studies.store.folder", "tacit.report.ensemble"],
]


def home(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_homes(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module] if node.module != "tacit" else [f"tacit.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import; write it in full"
        found |= {name.split(".")[1] for name in names if name.startswith("tacit.")} - {"__version__"}
    return found


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_from_layers_above_it(path: Path) -> None:
    for other in imported_homes(path):
        inside = other == home(path)
        above = LEVEL[other] < LEVEL[home(path)]
        same_first_layers = LEVEL[other] == LEVEL[home(path)] <= 1  # files, not folders: problem uses batching
        assert inside or above or same_first_layers, f"{path} imports tacit.{other}, which is not above it"


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_this_module_does_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
