"""How fast the live page of `tacit watch` is: up, after a row was written, and with 2,000 rows.

    python benchmarks/watch.py                    # about a minute; writes benchmarks/results/watch.json

A `tacit watch` of its own is started for every folder and asked as the page asks it, once a second. Rows are made up.
`benchmarks/results/watch.json` was measured when the server kept what it had read in threads of its own, and sent only
what was new.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit._util.files import write_atomically
from tacit._util.provenance import provenance
from tacit.studies.describe.study import Study
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.train.packing import Fleet
from tacit.watch.page import watch_page
from tacit.watch.state import FolderState

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chromium import BROWSERS, evaluate
from made_folders import finish, rates_study

RESULT = Path(__file__).parent / "results" / "watch.json"
ROWS = 2000
WRITTEN = 8  # fleets whose way to the page is timed
POLL = 1.0  # the page asks once a second
RUN = "from tacit.cli import main; main()"


def ask(address: str) -> bytes:
    with urllib.request.urlopen(f"{address}state?test_accuracy", timeout=60) as answer:
        content: bytes = answer.read()
    return content


@contextmanager
def watching(folder: Path) -> Iterator[tuple[str, float]]:
    """A `tacit watch` of the folder: its address, and the seconds from its start to the page."""
    command = [sys.executable, "-c", RUN, "watch", str(folder), "--port", "0", "--no-open"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = re.match(r"(http://\S+)", process.stdout.readline())
        assert address is not None
        urllib.request.urlopen(address[1], timeout=60).read()
        try:
            yield address[1], time.perf_counter() - began
        finally:
            process.terminate()


def folder_of(path: Path, *, runs_per_fleet: int) -> tuple[ResultsFolder, list[Fleet]]:
    """All rows of a study of ROWS runs but those of the last fleets, which come while the page is open."""
    study: Study = rates_study(rates=20, seeds=ROWS // 20)
    folder = ResultsFolder(path)
    runs = list(study.runs)
    fleets = [Fleet(tuple(runs[k : k + runs_per_fleet])) for k in range(0, len(runs), runs_per_fleet)]
    with folder.locked():
        folder.open_for(study)
        for fleet in fleets[:-WRITTEN]:
            finish(folder, fleet)
    return folder, fleets[-WRITTEN:]


def latencies(folder: ResultsFolder, fleets: list[Fleet], address: str) -> list[float]:
    """Seconds from the moment the rows of a fleet are on the disk until a client that asks once a second has them."""
    found = []
    with folder.locked():
        for fleet in fleets:
            before = json.loads(ask(address))["folders"][0]["left"]
            finish(folder, fleet)
            written = time.perf_counter()
            while json.loads(ask(address))["folders"][0]["left"] == before:
                time.sleep(POLL)
            found.append(time.perf_counter() - written)
    return found


def milliseconds(work: Callable[[], object], *, repeats: int = 5) -> list[float]:
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append(1000 * (time.perf_counter() - began))
    return found


def measure(path: Path, *, runs_per_fleet: int) -> dict[str, Any]:
    folder, left = folder_of(path, runs_per_fleet=runs_per_fleet)
    with watching(path) as (address, page_up):
        first_answer = milliseconds(lambda: ask(address), repeats=1)
        kept_answer = milliseconds(lambda: ask(address))
        seconds = latencies(folder, left[:-3], address)
    state = FolderState(path)
    first_read = milliseconds(lambda: state.progress("test_accuracy"), repeats=1)
    unchanged = milliseconds(lambda: state.progress("test_accuracy"))
    changed = []
    for fleet in left[-3:]:
        with folder.locked():
            finish(folder, fleet)
        changed += milliseconds(lambda: state.progress("test_accuracy"), repeats=1)
    return {
        "rows": ROWS,
        "fleets": ROWS // runs_per_fleet,
        "page_up_s": round(page_up, 2),
        "answer_bytes": len(ask_state(state)),
        "answer_first_ms": rounded(first_answer),
        "answer_kept_ms": rounded(kept_answer),
        "read_first_ms": rounded(first_read),
        "read_unchanged_ms": rounded(unchanged),
        "read_after_a_fleet_ms": rounded(changed),
        "verdicts_ms": rounded(milliseconds(state.figures, repeats=1)),  # another question: progress does not wait
        "update_latency_s": rounded(seconds),
        "browser_ms": in_browser(state, path.parent),
    }


def ask_state(state: FolderState) -> str:
    return json.dumps(state.progress("test_accuracy"))


def in_browser(state: FolderState, folder: Path) -> dict[str, float] | None:
    """Milliseconds of the page's own work for an answer, in headless Chromium; None without one."""
    if not any(map(shutil.which, BROWSERS)):
        return None
    answer = ask_state(state).replace("<", "\\u003c")
    script = f"""(() => {{
      const answer = {answer};
      const timed = () => {{ const began = performance.now(); showState(answer); return performance.now() - began; }};
      return [timed(), timed(), timed()];
    }})()"""
    return rounded(evaluate(watch_page(), script, folder))


def rounded(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 2), "largest": round(max(values), 2)}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tacit-watch-") as root:
        cases = {f"{size} runs per fleet": measure(Path(root) / str(size), runs_per_fleet=size) for size in (20, 1)}
    summary = {**cases, "load_average": round(os.getloadavg()[0], 1), **provenance()}
    write_atomically(RESULT, json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
