"""What describes the package agrees with itself: versions, Pythons, and workflows that only call make."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import tacit
from tacit._util.provenance import commit

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def classified() -> list[str]:
    named = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in PROJECT["classifiers"]]
    return [found[1] for found in named if found]


def test_one_version_everywhere() -> None:
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited
    assert PROJECT["version"] == tacit.__version__ == cited[1]


def test_the_oldest_classified_python_is_the_one_required() -> None:
    assert PROJECT["requires-python"] == f">={classified()[0]}"


def test_workflows_only_call_make() -> None:
    commands = [line for path in WORKFLOWS for line in re.findall(r"run:\s*(.*)", path.read_text())]
    assert commands
    assert all(re.fullmatch(r"make [a-z-]+( [A-Z]+=\S+)*", command) for command in commands), commands


def test_the_package_is_checked_on_every_classified_python() -> None:
    (matrix,) = re.findall(r"python: \[(.*)\]", "".join(path.read_text() for path in WORKFLOWS))
    assert re.findall(r"3\.\d+", matrix) == classified()


def test_results_made_in_a_checkout_name_its_commit() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    assert commit()
