"""What a folder of results holds now, as items for the page. Files that have not changed are not read again."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit._errors import TacitError
from tacit.studies.describe.spec import RunSpec
from tacit.studies.describe.study import Study
from tacit.studies.store.folder import Contents, ResultsFolder
from tacit.studies.store.rows import Row
from tacit.studies.store.status import FleetProgress, fleet_progress, work_of
from tacit.studies.store.study_file import read_study
from tacit.studies.train.packing import Fleet
from tacit.watch.driver import Driver, find_driver
from tacit.watch.fleets import finished_fleet, unfinished_fleet
from tacit.watch.pace import Pace

if TYPE_CHECKING:
    from tacit.report.build import Part

MOST_NAMED = 20  # damaged or unreadable files that are listed; the rest is counted
WAITING = FleetProgress("waiting")


@dataclass
class _StudyView:
    """A study of the folder, and what follows from its file and from the runs that are finished."""

    study: Study
    stamp: object  # of its file
    work: float
    finished: frozenset[str] | None = None  # the runs for which `left` holds
    left: list[Fleet] = field(default_factory=list)
    works: dict[str, float] = field(default_factory=dict)  # of the fleets in `left`


class FolderScan:
    """Reads one folder of results, again and again."""

    def __init__(self, folder: ResultsFolder) -> None:
        self.folder = folder
        self.name = str(folder.path)
        self._contents = Contents()
        self._views: list[_StudyView] = []
        self._runs: dict[str, RunSpec] = {}  # of all studies, by hash
        self._driver = Driver("gone", None)
        self._begun: set[str] = set()  # fleets that have a folder
        # Kept from one reading to the next:
        self._files: dict[Path, _StudyView] = {}
        self._rows: dict[str, tuple[Row, int, str]] = {}  # by fleet: first row, rows, JSON
        self._progress: dict[str, tuple[object, FleetProgress]] = {}  # by fleet: stamps of its files
        self._unfinished: dict[str, tuple[FleetProgress, str, str]] = {}  # by fleet: progress, state, JSON
        self._text: tuple[object, str] = (None, "")
        self._paces: dict[str, Pace] = {}  # by model

    def items(self) -> dict[str, str]:
        """The folder, its studies and their fleets, by name, each as JSON."""
        problems: list[str] = []
        self._contents = contents = self.folder.contents()
        self._views = self._read_studies(problems)
        problems += [f"{path} {damage}; `tacit run` trains its runs again" for path, damage in contents.damaged.items()]
        problems += [str(error) for error in contents.unreadable.values()]
        self._begun, written = _begun(self.folder)
        self._driver = find_driver(self.folder.lock_holder(), silent_seconds=time.time() - written)
        items = {f"fleet {self.name} {id}": self._finished_text(id, rows) for id, rows in self._by_fleet().items()}
        under_way: dict[str, float] = {}  # whole costs of fleets that train now
        studies = [(view.study.runs[0].model, *self._study(view, items, under_way)) for view in self._views]
        workers = max(1, len(under_way))
        for model, facts, costs in studies:
            left, rough = 0.0, False
            if costs:
                left, rough = self._pace(model).seconds_left(costs, workers=workers, under_way=under_way)
            facts |= {"left": float(f"{left:.2g}"), "rough": rough, "workers": len(under_way)}
            items[f"study {self.name} {facts['name']}"] = _json(facts)
        items[f"folder {self.name}"] = _json(self._folder(problems, written))
        return items

    @property
    def judged(self) -> object:
        """What verdicts rest on: they are computed again when it changes."""
        return [(view.stamp, view.finished) for view in self._views]

    def parts(self) -> tuple[Part, ...]:
        """The studies with the rows of the last reading, as the report takes them."""
        from tacit.report.build import Part  # brings numpy and scipy, which progress does not need

        views, contents = self._views, self._contents
        return tuple(Part(view.study, contents.rows_of(view.study.runs), [], view.study.name) for view in views)

    # -- studies --------------------------------------------------------------------------------------------------
    def _read_studies(self, problems: list[str]) -> list[_StudyView]:
        found: dict[str, _StudyView] = {}
        for path in self.folder.study_files():
            try:
                stamp, view = _stamp(path), self._files.get(path)
                if view is None or view.stamp != stamp:
                    study = read_study(path)
                    view = self._files[path] = _StudyView(study, stamp, work_of(study.runs))
                    self._runs |= {run.hash: run for run in study.runs}
            except TacitError as error:
                problems.append(str(error))
                continue
            found.setdefault(view.study.name, view)
        return [found[name] for name in sorted(found)]

    def _pace(self, model: str) -> Pace:
        return self._paces.setdefault(model, Pace(model))

    def _left(self, view: _StudyView) -> list[Fleet]:
        """The fleets of a study that are left to train."""
        if self._contents.unreadable:  # what is finished is not known
            return []
        finished = frozenset(run.hash for run in view.study.runs if run.hash in self._contents.rows)
        if finished != view.finished:
            whole = len(finished) == len(view.study.runs)
            view.left = [] if whole else self.folder.unfinished(view.study, self._contents)
            view.works = {fleet.id: work_of(fleet.runs) for fleet in view.left}
            view.finished = finished
        return view.left

    def _study(
        self, view: _StudyView, items: dict[str, str], under_way: dict[str, float]
    ) -> tuple[dict[str, Any], list[float]]:
        """The facts of a study and the costs that are left. Its unfinished fleets are added to the other arguments."""
        study, left = view.study, self._left(view)
        rows = [row for run in study.runs if (row := self._contents.rows.get(run.hash)) is not None]
        costs, work_left, states = [], 0.0, Counter[str]()
        for fleet in left:
            progress = self._fleet_progress(fleet.id)
            state = "stopped" if progress.state == "under way" and self._driver.state == "gone" else progress.state
            items[f"fleet {self.name} {fleet.id}"] = self._unfinished_text(fleet, progress, state)
            states[state] += 1
            costs.append(fleet.cost * (1 - progress.done))
            work_left += view.works[fleet.id] * (1 - progress.done)
            if state == "under way":
                under_way[fleet.id] = fleet.cost
                self._pace(fleet.model).seen(fleet.id, progress.done)
        facts = {
            "folder": self.name,
            "name": study.name,
            "question": study.question,
            "runs": len(study.runs),
            "finished": len(rows),
            "diverged": sum(row["status"] != "finished" for row in rows),
            "done": round(1 - work_left / view.work if left else len(rows) / len(study.runs), 4),
            "states": states,
            "fleets": [*dict.fromkeys(_fleet_of(row) for row in rows), *[fleet.id for fleet in left]],
        }
        return facts, costs

    # -- fleets ---------------------------------------------------------------------------------------------------
    def _by_fleet(self) -> dict[str, list[Row]]:
        """The rows of all studies by the fleet that trained them; several studies may share one."""
        found: dict[str, list[Row]] = {}
        runs = dict.fromkeys(run.hash for view in self._views for run in view.study.runs)
        for run in runs:
            row = self._contents.rows.get(run)
            if row is not None:
                found.setdefault(_fleet_of(row), []).append(row)
        return found

    def _finished_text(self, id: str, rows: Sequence[Row]) -> str:
        held = self._rows.get(id)
        if held is None or held[0] is not rows[0] or held[1] != len(rows):
            meta = self._contents.metas.get(rows[0]["run"]) or {}
            facts = finished_fleet(rows, meta)
            held = self._rows[id] = (rows[0], len(rows), _json({"folder": self.name, "id": id, **facts}))
            if meta.get("runs") == len(rows):  # otherwise its seconds are not those of these rows
                fleet = Fleet(tuple(self._runs[row["run"]] for row in rows))
                self._pace(fleet.model).ended(id, cost=fleet.cost, seconds=facts["seconds"])
        return held[2]

    def _fleet_progress(self, id: str) -> FleetProgress:
        if id not in self._begun:
            return WAITING
        running = self._driver.state != "gone"
        place = self.folder.fleet_folder(id)
        stamps = (running, _stamp(place / "checkpoint.safetensors"), _stamp(place / "failed.json"))
        held = self._progress.get(id)
        if held is None or held[0] != stamps:
            held = self._progress[id] = (stamps, fleet_progress(self.folder, id, running=running))
        return held[1]

    def _unfinished_text(self, fleet: Fleet, progress: FleetProgress, state: str) -> str:
        held = self._unfinished.get(fleet.id)
        if held is None or held[0] is not progress or held[1] != state:
            facts = unfinished_fleet([run.model_dump() for run in fleet.runs], progress, state=state)
            text = _json({"folder": self.name, "id": fleet.id, **facts})
            held = self._unfinished[fleet.id] = (progress, state, text)
        return held[2]

    # -- the folder -----------------------------------------------------------------------------------------------
    def _folder(self, problems: list[str], written: float) -> dict[str, Any]:
        runs = {run.hash for view in self._views for run in view.study.runs}
        left = len(runs - self._contents.rows.keys())
        key = (self._driver, left)
        if self._text[0] != key:
            unfinished = [view.study for view in self._views if view.left]
            self._text = (key, self._driver.text(path=self.folder.path, left=left, unfinished=unfinished))
        named = problems[:MOST_NAMED]
        if len(problems) > MOST_NAMED:
            named.append(f"… and {len(problems) - MOST_NAMED} more")
        return {
            "path": self.name,
            "driver": self._driver.state,
            "text": self._text[1],
            "runs": len(runs),
            "left": left,
            "written": round(written),
            "problems": named,
        }


def _fleet_of(row: Row) -> str:
    return str(row.get("fleet", ""))


def _begun(folder: ResultsFolder) -> tuple[set[str], float]:
    """The fleets that have a folder, and when anything was last written."""
    begun: set[str] = set()
    written = 0.0
    for root in folder.roots:
        with contextlib.suppress(OSError):
            written = max(written, os.stat(root / "lock").st_mtime)
        with contextlib.suppress(OSError), os.scandir(root / "fleets") as entries:
            for entry in entries:
                begun.add(entry.name)
                written = max(written, entry.stat(follow_symlinks=False).st_mtime)  # every rename inside changes it
    return begun, written


def _stamp(path: Path) -> object:
    """What changes when a file is replaced; None when there is none, or the server is away."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _json(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
