"""Named edits that must turn a test red, one at a time: `make mutants`, or `python tests/mutants.py NAME …` for some.

Every mutant is applied to a temporary copy of the source and tests; the working tree is never touched. The tests it
names run there against the edited package. A mutant counts as killed only when a test fails: an edit that does not
import, or names no test, is reported as broken, and one that passes as survived. Mutants change what is computed or
kept (coefficients, signs, seeds, resuming); they are in the `mutants.toml` beside the tests that must notice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "docs", "studies", "README.md", "pyproject.toml")
TESTS_FAILED, ALL_PASSED = 1, 0  # pytest's exit codes


@dataclass(frozen=True)
class Mutant:
    """What breaks, where, and which tests must notice."""

    name: str
    file: str  # below src/tacit
    old: str
    new: str
    tests: tuple[str, ...]  # below tests


def read_mutants() -> tuple[Mutant, ...]:
    """The mutants of every `mutants.toml`, which lies beside the tests that must notice."""
    found = []
    for path in sorted((ROOT / "tests").rglob("mutants.toml")):
        here = path.parent.relative_to(ROOT / "tests")
        for table in tomllib.loads(path.read_text())["mutant"]:
            tests = tuple((here / test).as_posix() for test in table.pop("tests"))
            found.append(Mutant(**table, tests=tests))
    return tuple(found)


def apply(change: Mutant, tree: Path) -> None:
    """Edit the copy in `tree`; refuses when the old text is not there exactly once."""
    path = tree / "src" / "tacit" / change.file
    text = path.read_text()
    if text.count(change.old) != 1:
        found = f"the old text occurs {text.count(change.old)} times in {change.file}"
        raise SystemExit(f"{change.name}: {found}; expected once.")
    path.write_text(text.replace(change.old, change.new))


def copy_tree(into: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, into / name)
    return into


def run_tests(tree: Path, tests: tuple[str, ...], *, stop_early: bool) -> tuple[int, str]:
    """Pytest's exit code and last line, with the package imported from the copy."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",  # an edit within the same second would otherwise meet stale bytecode
        "OMP_NUM_THREADS": "1",
    }
    where = subprocess.run(
        [sys.executable, "-c", "import tacit; print(tacit.__file__)"],
        env=environment, cwd=tree, capture_output=True, text=True, check=True,
    )  # fmt: skip
    if not where.stdout.startswith(str(tree)):
        raise SystemExit(f"the tests would import {where.stdout.strip()} and not the copy.")
    paths = [str(Path("tests") / test) for test in tests]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "not slow", *(["-x"] if stop_early else []), *paths]
    done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return done.returncode, lines[-1] if lines else done.stderr.strip()[-200:]


def try_mutant(change: Mutant) -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = copy_tree(Path(folder))
        apply(change, tree)
        code, line = run_tests(tree, change.tests, stop_early=True)
    return {TESTS_FAILED: "killed", ALL_PASSED: "SURVIVED"}.get(code, "BROKEN"), line


def try_baseline(mutants: list[Mutant]) -> None:
    """Without any edit the named tests must pass, or a red test would mean nothing."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tests = tuple(sorted({test for change in mutants for test in change.tests}))
        code, line = run_tests(copy_tree(Path(folder)), tests, stop_early=False)
    print(f"baseline: {line}", flush=True)
    if code != ALL_PASSED:
        raise SystemExit("the tests fail without any mutant; repair them first.")


def main(names: list[str]) -> None:
    mutants = read_mutants()
    unknown = set(names) - {change.name for change in mutants}
    if unknown:
        raise SystemExit(f"no mutant is named {sorted(unknown)[0]!r}.")
    chosen = [change for change in mutants if not names or change.name in names]
    began = time.monotonic()
    try_baseline(chosen)
    outcomes = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        for change, (outcome, line) in zip(chosen, pool.map(try_mutant, chosen), strict=True):
            outcomes.append(outcome)
            print(f"{outcome:9} {change.file:28} {change.name:55} {line}", flush=True)
    killed = outcomes.count("killed")
    print(f"{killed} of {len(chosen)} mutants killed in {time.monotonic() - began:.0f} s")
    if killed < len(chosen):
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
