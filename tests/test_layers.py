"""The layers of docs/architecture.md hold: a file imports only from layers above it."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "tacit"
LAYERS = [
    {"_util"},
    {"batching", "edges", "problem", "schedules", "sinks"},
    {"layers"},
    {"penalty", "nstep", "theory", "diagnostics", "convert"},
    {"advice", "studies"},
    {"report", "integrations", "bench"},
    {"explore", "watch"},
    {"cli", "lightning", "transformers"},
]
ROOMS = ["data", "describe", "train", "execute", "store"]  # of studies/, then its own files: plan, runner, cost, …
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
WITHOUT_TORCH = [
    *["tacit", "tacit.cli", "tacit.report"],
    *["tacit.studies.describe.spec", "tacit.studies.store.folder", "tacit.report.build", "tacit.watch.server"],
]


def home(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def module_name(path: Path) -> str:
    return ".".join(["tacit", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")


def imported_names(path: Path, *, for_types: bool = True) -> set[str]:
    """Modules of the package that a file imports, also inside functions; `from m import x` counts as m and m.x."""
    tree = ast.parse(path.read_text())
    only_types = [
        node.body for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    left_out = set() if for_types else {id(inner) for body in only_types for node in body for inner in ast.walk(node)}
    found: set[str] = set()
    for node in ast.walk(tree):
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import; write it in full"
        if id(node) in left_out:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *[f"{node.module}.{alias.name}" for alias in node.names]}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith("tacit.")} - {"tacit.__version__"}


def imported_homes(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported_names(path)}


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path.parent != SOURCE or not path.stem.startswith("__")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_from_layers_above_it(path: Path) -> None:
    for other in imported_homes(path):
        inside = other == home(path)
        above = LEVEL[other] < LEVEL[home(path)]
        both_plain_files = LEVEL[other] == LEVEL[home(path)] == 1  # not folders: problem uses batching
        assert inside or above or both_plain_files, f"{path} imports tacit.{other}, which is not above it"


def room(name: str) -> int:
    """The place of a module of studies/ in the order of its rooms; its own files come after all rooms."""
    part = name.split(".")[2] if name.count(".") > 1 else ""
    return ROOMS.index(part) if part in ROOMS else len(ROOMS)


@pytest.mark.parametrize("path", [path for path in FILES if home(path) == "studies"], ids=lambda path: path.stem)
def test_a_room_of_studies_imports_only_from_rooms_before_it(path: Path) -> None:
    used = {name for name in imported_names(path) if name.count(".") > 1 and name.startswith("tacit.studies.")}
    later = sorted(name for name in used if room(name) > room(module_name(path)))
    assert later == []


def test_no_two_files_import_each_other_however_indirectly_nor_inside_functions() -> None:
    modules = {module_name(path): path for path in FILES if path.name != "__init__.py"}
    graph = {name: imported_names(path, for_types=False) & modules.keys() for name, path in modules.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError with the files of a cycle


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_this_module_does_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
