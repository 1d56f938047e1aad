"""Documents are executable: every docstring example and every Python block of the README runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import tacit
from tacit.integrations.frameworks import MissingFrameworkError

ROOT = Path(__file__).parents[1]
MODULES = [module.name for module in pkgutil.walk_packages(tacit.__path__, "tacit.") if "__main__" not in module.name]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_are_true(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except MissingFrameworkError as error:
        pytest.skip(str(error))
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def python_blocks() -> list[tuple[str, str]]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [
        (f"{page.name}-{number}", block)
        for page in pages
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    ]


@pytest.mark.parametrize("name,code", python_blocks(), ids=lambda value: value if len(value) < 60 else "")
def test_python_blocks_of_the_documents_run(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, name, "exec"), {"__name__": name})
