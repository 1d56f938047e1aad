"""How fast the live page of `tacit watch` is: up, after a row was written, and with 2,000 rows.

    python benchmarks/watch.py                    # about a minute; writes benchmarks/results/watch.json
    python benchmarks/watch.py --running FOLDER   # how late the page sees what a running study writes, for 60 s

A `tacit watch` of its own is started for every folder and asked as the page asks it: once a second for what is new.
Rows are made up. A refresh is one reading of the folder plus one answer.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit._files import write_atomically
from tacit._provenance import provenance
from tacit.studies.describe.study import Study
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.train.packing import Fleet
from tacit.watch.observer import Observer
from tacit.watch.page import watch_page

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chromium import BROWSERS, evaluate
from made_folders import finish, rates_study

RESULT = Path(__file__).parent / "results" / "watch.json"
ROWS = 2000
WRITTEN = 8  # fleets whose way to the page is timed
POLL = 1.0  # the page asks once a second
RUN = "from tacit.cli import main; main()"


def ask(address: str, state: dict[str, Any] | None = None) -> tuple[dict[str, Any], int]:
    query = f"?since={state['instance']}-{state['version']}" if state else ""
    with urllib.request.urlopen(f"{address}state{query}", timeout=60) as answer:
        content = answer.read()
    return json.loads(content), len(content)


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


def finished_runs(state: dict[str, Any]) -> int | None:
    found = [item["finished"] for name, item in state["items"].items() if name.startswith("study ")]
    return sum(found) if found else None


def latencies(folder: ResultsFolder, fleets: list[Fleet], address: str, state: dict[str, Any]) -> list[float]:
    """Seconds from the moment the rows of a fleet are on the disk until a client that asks once a second has them."""
    found = []
    with folder.locked():
        for fleet in fleets:
            finish(folder, fleet)
            written = time.perf_counter()
            while True:
                time.sleep(POLL)
                news, _ = ask(address, state)
                state = {**state, "version": news["version"], "instance": news["instance"]}
                if finished_runs(news) is not None:
                    found.append(time.perf_counter() - written)
                    break
    return found


def milliseconds(work: Any, *, repeats: int = 5) -> list[float]:
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append(1000 * (time.perf_counter() - began))
    return found


def measure(path: Path, *, runs_per_fleet: int) -> dict[str, Any]:
    folder, left = folder_of(path, runs_per_fleet=runs_per_fleet)
    with watching(path) as (address, page_up):
        began = time.perf_counter()
        state, size = ask(address)
        first_state = time.perf_counter() - began
        whole = milliseconds(lambda: ask(address))
        time.sleep(5)  # the verdicts of the first rows
        state, size = ask(address)
        news = milliseconds(lambda: ask(address, state))
        seconds = latencies(folder, left[:-3], address, state)
    observer = Observer(path)
    first_read = milliseconds(observer.read, repeats=1)
    unchanged = milliseconds(observer.read)
    changed, busy = [], []
    for fleet in left[-3:]:
        with folder.locked():
            finish(folder, fleet)
        began = time.process_time()
        changed += milliseconds(observer.read, repeats=1)
        busy.append(1000 * (time.process_time() - began))
    observer.read()
    judge = milliseconds(observer.judge, repeats=1)
    page = in_browser(observer, path.parent)
    return {
        "rows": ROWS,
        "fleets": ROWS // runs_per_fleet,
        "page_up_s": round(page_up, 2),
        "first_state_s": round(first_state, 2),
        "whole_state_bytes": size,
        "answer_whole_ms": rounded(whole),
        "answer_new_ms": rounded(news),
        "read_first_ms": rounded(first_read),
        "read_unchanged_ms": rounded(unchanged),
        "read_after_a_fleet_ms": rounded(changed),
        "read_after_a_fleet_cpu_ms": rounded(busy),  # the same on a machine that others use
        "refresh_ms": round(max(changed) + max(news), 1),  # the worst reading with something new, and the worst answer
        "verdicts_ms": rounded(judge),  # in a thread of their own: no answer waits for them
        "update_latency_s": rounded(seconds),
        "browser": page,
    }


BROWSER = """(() => {
  const whole = ANSWER;
  const timed = (work) => { const began = performance.now(); work(); return performance.now() - began; };
  const first = timed(() => apply(whole));
  const names = Object.keys(whole.items);
  const study = names.find((name) => name.startsWith("study "));
  const news = names.filter((name) => name.startsWith("fleet ")).slice(0, 5).map((name) => {
    const items = { [name]: { ...whole.items[name] }, [study]: whole.items[study] };
    return timed(() => { apply({ ...whole, whole: false, items }); drawStudy(views.get(study), whole.items[study]); });
  });
  return { first, news };
})()"""


def in_browser(observer: Observer, folder: Path) -> dict[str, Any] | None:
    """Milliseconds of the page's own work, in headless Chromium; None without one."""
    if not any(map(shutil.which, BROWSERS)):
        return None
    answer = observer.answer().replace("<", "\\u003c")
    found = evaluate(watch_page(), BROWSER.replace("ANSWER", answer), folder)
    return {"whole_ms": round(found["first"], 1), "one_fleet_and_all_curves_ms": rounded(found["news"])}


def rounded(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 2), "largest": round(max(values), 2)}


def follow(folder: Path, seconds: float) -> None:
    """Compare when files of rows were written with when the page had them."""
    seen: dict[Path, float] = {path: 0.0 for path in folder.rglob("rows.jsonl")}
    with watching(folder) as (address, page_up):
        print(f"page up in {page_up:.2f} s")
        state, _ = ask(address)
        end, late = time.monotonic() + seconds, []
        known = {
            name for name, item in state["items"].items() if name.startswith("fleet ") and item["state"] == "finished"
        }
        while time.monotonic() < end:
            time.sleep(POLL)
            news, _ = ask(address, state)
            state = {**state, "version": news["version"], "instance": news["instance"]}
            done = {
                name
                for name, item in news["items"].items()
                if name.startswith("fleet ") and item["state"] == "finished"
            }
            for name in done - known:
                (path,) = folder.rglob(f"fleets/{name.rsplit(' ', 1)[1]}/rows.jsonl")
                if path not in seen:
                    late.append(time.time() - path.stat().st_mtime)
                    print(f"{path.parent.name}: on the page after {late[-1]:.2f} s")
            known |= done
    print(f"{len(late)} fleets, the latest after {max(late, default=0):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=Path, help="follow a folder that a study writes to")
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    if arguments.running is not None:
        follow(arguments.running, arguments.seconds)
        return
    with tempfile.TemporaryDirectory(prefix="tacit-watch-") as root:
        cases = {f"{size} runs per fleet": measure(Path(root) / str(size), runs_per_fleet=size) for size in (20, 1)}
    summary = {**cases, "load_average": round(os.getloadavg()[0], 1), **provenance()}
    write_atomically(RESULT, json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
