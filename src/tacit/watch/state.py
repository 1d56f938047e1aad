"""What the live page shows of a folder of results: progress of its studies, and figures with verdicts so far."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tacit._util.errors import InputError, TacitError
from tacit._util.plural import counted
from tacit.report.rows import core_seconds
from tacit.studies.describe.library import library_folder, study_names
from tacit.studies.describe.study import load_study
from tacit.studies.store.folder import ResultsFolder, results_folders
from tacit.studies.store.rows import Meta, Row
from tacit.studies.store.status import FolderStatus, StudyStatus, status_of
from tacit.studies.train.packing import Fleet, finishing_time
from tacit.watch.fleets import METRICS, finished_fleet, unfinished_fleet

SECONDS = 2.0  # how old an answer may be
REST = 3.0  # pauses between answers that take long: three times as long as the work, which leaves training its core
MOST_NAMED = 20  # damaged or unreadable files that are listed; the rest is counted
LOG = logging.getLogger("tacit.watch")


class Answer:
    """JSON of what a function returns, made when a page asks and what is there is too old."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self._one_at_a_time = threading.Lock()
        self._text = b""
        self._valid_until = 0.0

    def text(self) -> bytes:
        with self._one_at_a_time:
            began = time.monotonic()
            if began >= self._valid_until:
                found = json.dumps(self.make(), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
                self._text = found.encode(errors="replace")
                ended = time.monotonic()
                self._valid_until = ended + max(SECONDS, REST * (ended - began))
            return self._text


class FolderState:
    """Reads a folder of results, or those directly inside it. It writes nothing and starts nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folders: dict[Path, ResultsFolder] = {}  # kept: they read only what has changed
        self._statuses: list[FolderStatus] = []
        self._figures: dict[Path, tuple[object, dict[str, Any]]] = {}  # by folder: what they rest on
        self._one_at_a_time = threading.Lock()

    def read(self) -> tuple[list[FolderStatus], str]:
        """The status of every folder, and what is wrong with all of them."""
        with self._one_at_a_time:
            try:
                for folder in (found := results_folders(self.path)):
                    self._folders.setdefault(folder.path, folder)
                self._statuses = [status_of(self._folders[folder.path]) for folder in found]
            except InputError:
                self._statuses = []
                what = "holds no study" if self.path.exists() else "does not exist"
                return [], f"{self.path} {what} yet; `tacit run … --into {self.path}` or `tacit reproduce` makes one."
            except TacitError as error:  # a server that is away now: what was read before stays on the page
                return self._statuses, str(error)
            return self._statuses, ""

    def progress(self, metric: str) -> dict[str, Any]:
        """The studies and fleets of every folder, with learning curves of one metric."""
        statuses, problem = self.read()
        folders = [folder_facts(status, metric) for status in statuses]
        return {"path": str(self.path), "problem": problem, "folders": folders}

    def figures(self) -> dict[str, Any]:
        """The figures of every folder, by its path; those whose rows have not changed are not made again."""
        found = {}
        for status in self.read()[0]:
            rests_on = [(study.study, [row["run"] for row in study.rows]) for study in status.studies]
            if status.path not in self._figures or self._figures[status.path][0] != rests_on:
                self._figures[status.path] = (rests_on, _figures(status))
            found[str(status.path)] = self._figures[status.path][1]
        return found


def answers(path: Path) -> dict[str, Answer]:
    """What a page can ask about a folder, by address."""
    state = FolderState(path)
    progress = {f"/state?{metric}": Answer(functools.partial(state.progress, metric)) for metric in METRICS}
    return {**progress, "/figures": Answer(state.figures)}


def folder_facts(status: FolderStatus, metric: str) -> dict[str, Any]:
    """One folder as the page shows it."""
    runs = {run.hash for study in status.studies for run in study.study.runs}
    left = len(runs - status.contents.rows.keys())
    problems = status.problems[:MOST_NAMED]
    if len(status.problems) > MOST_NAMED:
        problems.append(f"… and {len(status.problems) - MOST_NAMED} more")
    return {
        "path": str(status.path),
        "running": status.running,
        "text": what_now(status, left=left),
        "runs": len(runs),
        "left": left,
        "written": round(_written(status.path)),
        "problems": problems,
        "studies": [_study_facts(study, status.contents.metas, metric) for study in status.studies],
    }


def _study_facts(status: StudyStatus, metas: Mapping[str, Meta], metric: str) -> dict[str, Any]:
    by_fleet: dict[str, list[Row]] = {}
    for row in status.rows:
        by_fleet.setdefault(str(row.get("fleet", "")), []).append(row)
    finished = [finished_fleet(id, rows, metas.get(rows[0]["run"]) or {}, metric) for id, rows in by_fleet.items()]
    workers = status.fleets["under way"]
    left = seconds_left(status, by_fleet, metas, workers=max(workers, 1))
    return {
        "name": status.study.name,
        "question": status.study.question,
        "runs": len(status.study.runs),
        "finished": len(status.rows),
        "diverged": sum(row["status"] != "finished" for row in status.rows),
        "done": round(status.done, 4),
        "states": status.fleets,
        "left": None if left is None else float(f"{left:.2g}"),
        "workers": workers,
        "fleets": [*finished, *[unfinished_fleet(each, metric) for each in status.left]],
    }


def seconds_left(
    status: StudyStatus, by_fleet: Mapping[str, list[Row]], metas: Mapping[str, Meta], *, workers: int
) -> float | None:
    """About how long the rest takes at the rate of what this study has trained; None before its first checkpoint."""
    runs = {run.hash: run for run in status.study.runs}
    timed = [(each.fleet.cost * each.done, each.checkpoint.get("cpu_seconds", 0.0)) for each in status.left]
    for rows in by_fleet.values():
        meta = metas.get(rows[0]["run"]) or {}
        if meta.get("runs") == len(rows):  # otherwise its seconds are not those of these rows
            timed.append((Fleet(tuple(runs[row["run"]] for row in rows)).cost, core_seconds(meta)))
    timed = [(cost, seconds) for cost, seconds in timed if cost > 0 and seconds > 0]
    left = [each.fleet.cost * (1 - each.done) for each in status.left]
    if not left or not timed:
        return None if left else 0.0
    return finishing_time(left, workers) * sum(seconds for _, seconds in timed) / sum(cost for cost, _ in timed)


def what_now(status: FolderStatus, *, left: int) -> str:
    """Whether a process trains here, and otherwise the command that goes on."""
    path = shlex.quote(str(status.path))
    if status.running:
        return "a process trains here"
    if not left:
        return f"all runs are finished: `tacit report {path}` writes the report"
    remain = f"{counted(left, 'run')} {'remains' if left == 1 else 'remain'}"
    names = [_library_name(study.study.name, study.study.hash) for study in status.studies if study.left]
    command = "the same `tacit run …" if not all(names) else "the same `tacit reproduce …"
    if len(names) == 1 and names[0]:
        command = f"`tacit run {names[0]}"
    return f"no process trains here, {remain}: {command} --into {path}` resumes"


@functools.cache
def _library_name(name: str, hash: str) -> str:
    """The name of the study file of tacit that has the same runs; empty when none has."""
    same = [each for each in study_names() if each.rsplit("/", 1)[-1] == name]
    return next((each for each in same if load_study(library_folder() / f"{each}.toml").hash == hash), "")


def _written(folder: Path) -> float:
    """When anything was last written: every rename changes the time of the folder that it is in."""
    found = 0.0
    with contextlib.suppress(OSError):
        for path in (folder / "studies", folder / "packed", folder / "fleets"):
            found = max(found, path.stat().st_mtime if path.exists() else 0.0)
        with os.scandir(folder / "fleets") as entries:
            found = max(found, *(entry.stat(follow_symlinks=False).st_mtime for entry in entries))
    return found


def _figures(status: FolderStatus) -> dict[str, Any]:
    """The figures of one folder. Whatever a strange folder makes of them, its progress stays on the page."""
    from tacit.watch.figures import figures_of  # brings scipy: a second, in which the progress is there already

    rows = {row["run"] for study in status.studies for row in study.rows}
    try:
        figures, absent = figures_of(status)
        return {"rows": len(rows), "figures": figures, "absent": absent, "problem": ""}
    except Exception as error:
        LOG.debug("the figures of %s failed", status.path, exc_info=True)
        problem = f"the figures cannot be made now ({type(error).__name__}: {error})"
        return {"rows": len(rows), "figures": [], "absent": {}, "problem": problem}
