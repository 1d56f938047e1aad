"""Compares what a reader of results can see, in two checkouts: stored rows, run hashes, verdicts, `tacit verify`.

    python benchmarks/same_results.py BEFORE AFTER          # folders; prints a table, exits with 1 where they differ
    python benchmarks/same_results.py BEFORE AFTER --quick  # without `tacit verify`, which takes a minute in each

Both checkouts run in the Python of this command, each with its own `src`. Left out: commits, versions,
wording, seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RUN_HASHES = """
import json, sys
from tacit.studies import load_study
print(json.dumps({name: [run.hash for run in load_study(name).runs] for name in sys.argv[1:]}))
"""
ROWS = """
import hashlib, json, sys
from tacit.studies import read_rows
digest = lambda rows: hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
print(json.dumps({name: digest(sorted(read_rows(name), key=lambda row: row["run"])) for name in sys.argv[1:]}))
"""
# Numbers and decisions of a figure; titles, captions and claims are wording.
WORDING = {"title", "caption", "regime", "claim", "quotation", "labels", "label", "question", "answer", "note", "notes"}


def python(checkout: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def tacit(checkout: Path, *arguments: str) -> str:
    return python(checkout, "-c", "from tacit.cli import main; main()", *arguments)


def stored_files(checkout: Path) -> dict[str, str]:
    """The bytes of every stored row and figure, of benchmarks too."""
    kept = [*(checkout / "docs" / "results").rglob("*"), *(checkout / "benchmarks" / "results").rglob("*")]
    return {
        str(path.relative_to(checkout)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in kept
        if path.is_file()
    }


def folders(checkout: Path) -> list[str]:
    return [str(path.relative_to(checkout)) for path in sorted((checkout / "docs" / "results").iterdir())]


def rows(checkout: Path) -> dict[str, str]:
    """The hash of all rows of a folder of results, as the package reads them."""
    return json.loads(python(checkout, "-c", ROWS, *folders(checkout)))


def run_hashes(checkout: Path) -> dict[str, list[str]]:
    files = [str(path.relative_to(checkout)) for path in sorted((checkout / "studies").rglob("*.toml"))]
    return json.loads(python(checkout, "-c", RUN_HASHES, *files))


def verdicts(checkout: Path) -> dict[str, str]:
    """Every number, interval and decision of the report of a folder, by its place in results.json."""
    found = {}
    for folder in folders(checkout):
        with tempfile.TemporaryDirectory() as place:
            page = str(Path(place) / "report.html")
            tacit(checkout, "report", folder, "--out", page, "--export", place)
            results = json.loads((Path(place) / "results.json").read_text())
        for name in ("outcomes", "runs", "studies", "figures", "beside"):
            found.update({f"{folder} {key}": value for key, value in leaves(results[name], name)})
    return found


def leaves(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in WORDING:
                yield from leaves(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from leaves(inner, f"{place}[{at}]")
    else:
        yield place, repr(value)


def verified(checkout: Path) -> dict[str, str]:
    """The lines of `tacit verify`, seconds left out."""
    lines = re.sub(r"\d+(\.\d+)? s\b", "… s", tacit(checkout, "verify")).splitlines()
    return {f"line {number}": line for number, line in enumerate(lines)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    views: dict[str, Callable[[Path], dict[str, Any]]] = {
        "stored files": stored_files, "rows as read": rows, "run hashes": run_hashes, "verdicts": verdicts
    }  # fmt: skip
    if not given.quick:
        views["tacit verify"] = verified
    failed = False
    for name, view in views.items():
        before, after = view(given.before.resolve()), view(given.after.resolve())
        gone, new = before.keys() - after.keys(), after.keys() - before.keys()
        changed = [key for key in before.keys() & after.keys() if before[key] != after[key]]
        failed = failed or bool(changed or gone)
        print(f"{name:13}: {len(before)} before, {len(changed)} changed, {len(gone)} gone, {len(new)} new", flush=True)
        for key in sorted([*changed, *gone])[:10]:
            print(f"    {key}: {str(before[key])[:100]} -> {str(after.get(key, 'gone'))[:100]}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
