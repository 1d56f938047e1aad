"""The folder of results: rows by run, and studies that are views on them.

DIR/studies/NAME.json                  a study, the hash of its runs, and how its unfinished runs are packed
DIR/lock                               held by the process that writes
DIR/fleets/ID/rows.jsonl               one JSON object per run; the same bytes however the study was run
DIR/fleets/ID/meta.json                seconds, times, versions, commit, machine, and the sha256 of rows.jsonl;
                                       what differs from one training to the next is here, so rows stay comparable
DIR/fleets/ID/checkpoint.safetensors   only while the fleet is unfinished
DIR/fleets/ID/failed.json              only after the fleet was given up: how often it failed, and the last error
DIR/fleets/ID/rows.damaged.jsonl       rows that were not trusted, moved aside: never read, replaced by the next ones
DIR/packed/NAME.jsonl.gz               rows of a finished study in one file (`tacit pack`)

A run is finished when any file holds a trusted row of it, whichever study or fleet trained it. A file that cannot be
read is not damaged: that is an error, and the file stays as it is. Before results had one store, each study had a
folder with a study.json: such a folder, and those directly inside DIR, are read as part of DIR.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit._errors import InputError, TacitError
from tacit._parsing import parse_json
from tacit.studies.describe.spec import LATER, RunSpec, canonical, digest
from tacit.studies.describe.study import Study
from tacit.studies.store import lock
from tacit.studies.store.fleet_files import FleetFiles, write_errors
from tacit.studies.store.rows import (
    ABSENT,
    MOST_BYTES,
    Damage,
    Meta,
    Row,
    RowFile,
    encode_rows,
    json_file,
    read_fleet,
    read_or_damage,
    read_packed,
    unreadable_is_not_damage,
)
from tacit.studies.store.study_file import MOST_STUDY_BYTES, SCHEMA, read_study, refuse_newer
from tacit.studies.train.packing import Fleet, pack


def read_rows(folder: str | Path) -> list[Row]:
    """The rows of all studies of a folder, each run once, in the order of the studies and their runs.

    Unfinished runs have no rows yet and are left out; a damaged file is refused. Every spec has every key here, also
    those that are left out on disk at their default.
    """
    found = ResultsFolder(Path(folder))
    runs = {run.hash: run for study in found.studies() for run in study.runs}
    return found.rows_of(runs.values())


@dataclass(frozen=True)
class Contents:
    """Every row of a folder by its run, the facts of the fleet that trained it, and the files that gave none."""

    rows: dict[str, Row] = field(default_factory=dict)
    metas: dict[str, Meta] = field(default_factory=dict)  # by run
    damaged: dict[Path, Damage] = field(default_factory=dict)
    unreadable: dict[Path, TacitError] = field(default_factory=dict)

    def rows_of(self, runs: Iterable[RunSpec]) -> list[Row]:
        """The rows of those runs that are finished, in their order; every spec has every key."""
        rows = (self.rows.get(run.hash) for run in runs)
        return [{**row, "spec": {**LATER, **row["spec"]}} for row in rows if row is not None]


class ResultsFolder(FleetFiles):
    """Paths, reads and atomic writes of one folder. Writing needs `locked()`. A file of rows is read once."""

    def __init__(self, path: Path) -> None:
        super().__init__(_roots(path))
        self.path = path
        self._read: dict[Path, tuple[object, RowFile]] = {}  # by file: when it was changed, and what it holds
        self._damage: dict[Path, tuple[object, Damage]] = {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, or refuse with a sentence."""
        with lock.hold(self.path):
            yield

    def is_locked(self) -> bool:
        return lock.is_held(self.path)

    def lock_holder(self) -> lock.Holder | None:
        """The process that writes here, or that was killed while it did; no lock is taken."""
        return lock.holder(self.path)

    # -- studies --------------------------------------------------------------------------------------------------
    def study_path(self, name: str) -> Path:
        return self.path / "studies" / f"{name}.json"

    def study_files(self) -> list[Path]:
        return _listed(self.path / "studies", ".json") + [
            root / "study.json" for root in self.roots if (root / "study.json").exists()
        ]

    def studies(self) -> list[Study]:
        """The studies of this folder, by name."""
        found: dict[str, Study] = {}
        for path in self.study_files():
            study = read_study(path)
            found.setdefault(study.name, study)
        if not found:
            raise InputError(f"{self.path} holds no study; expected a folder made by `tacit run` or `tacit reproduce`.")
        return [found[name] for name in sorted(found)]

    def open_for(self, study: Study) -> list[Fleet]:
        """Store the study as a view on this folder, and return the fleets that are left to train. Needs the lock.

        The packing is stored too. So a study that goes on trains the same fleets, from their checkpoints, although
        constants of the packing have changed or other runs were finished in between.
        """
        path = self.study_path(study.name)
        before, recorded = self._recorded(study)
        finished = self._readable()
        fleets = self._packing(study, recorded, finished)
        for fleet in recorded:
            if fleet not in fleets:
                self._forget(fleet)
        listed = [" ".join(run.hash for run in fleet.runs) for fleet in fleets]
        content = {"schema": SCHEMA, "hash": study.hash, "study": study.model_dump(), "fleets": listed}
        encoded = json_file({**content, "fleets_sha256": digest(listed)})
        if encoded != before:
            self.write(path, encoded)
        return self._left(fleets, finished)

    def unfinished(self, study: Study, finished: Contents | None = None) -> list[Fleet]:
        """The fleets that `open_for` would return; nothing is written. `finished` is what `contents` gave before."""
        finished = finished or self._readable()
        return self._left(self._packing(study, self._recorded(study)[1], finished), finished)

    def _left(self, fleets: Sequence[Fleet], finished: Contents) -> list[Fleet]:
        left = [
            fleet for fleet in fleets if fleet.runs[0].hash not in finished.rows
        ]  # all runs of a fleet end together
        return sorted(left, key=lambda fleet: (-fleet.cost, fleet.id))

    def _recorded(self, study: Study) -> tuple[bytes | None, list[Fleet]]:
        """The bytes of the stored study, and its packing as far as its fleets are runs of `study`."""
        path = self.study_path(study.name)
        content = read_or_damage(path, most=MOST_STUDY_BYTES)
        try:
            stored = parse_json(content) if isinstance(content, bytes) else {}
            refuse_newer(stored, path)
            listed = stored["fleets"]
            if not isinstance(listed, list) or digest(listed) != stored["fleets_sha256"]:
                listed = []
        except (ValueError, KeyError, TypeError):
            return None, []  # damaged: the study at hand takes its place
        runs = {run.hash: run for run in study.runs}
        split = [each.split() for each in listed if isinstance(each, str)]
        known = [each for each in split if each and len(each) == len(runs.keys() & each)]
        return content if isinstance(content, bytes) else None, [Fleet(tuple(runs[h] for h in each)) for each in known]

    def _packing(self, study: Study, recorded: Sequence[Fleet], finished: Contents) -> list[Fleet]:
        """Fleets of the study: recorded ones, those begun before packings were recorded, and the rest packed now."""
        candidates = list(recorded)
        if not recorded:
            whole = pack(study.runs)
            candidates = whole if any(self.has_begun(fleet.id) for fleet in whole) else []
        kept, missing = [], {run.hash: run for run in study.runs if run.hash not in finished.rows}
        for fleet in candidates:
            left = [run for run in fleet.runs if run.hash in missing]
            if len(left) in (0, len(fleet.runs)):  # otherwise another study has trained a part of it
                kept.append(fleet)
                for run in left:
                    del missing[run.hash]
        return kept + (pack(list(missing.values())) if missing else [])

    # -- rows -----------------------------------------------------------------------------------------------------
    def contents(self) -> Contents:
        """What all files of rows hold now. A file that was read before and has not changed is not read again."""
        found = Contents()
        packed = [(path, read_packed) for root in self.roots for path in _listed(root / "packed", ".jsonl.gz")]
        fleets = [(path, read_fleet) for root in self.roots for path in _listed(root / "fleets")]
        for path, read in (*packed, *fleets):
            shown = path / "rows.jsonl" if read is read_fleet else path
            try:
                stamp = _stamp([shown, path / "meta.json"] if read is read_fleet else [path])
                if stamp[0] is None:  # a fleet that is not finished
                    continue
                known = (self._read.get(path), self._damage.get(path))
                held = [each[1] for each in known if each is not None and each[0] == stamp]
                got = held[0] if held else read(path)
            except TacitError as error:
                found.unreadable[shown] = error
                continue
            if isinstance(got, Damage):
                self._damage[path] = (stamp, got)
                found.damaged[shown] = got
            elif got is not None:
                self._read[path] = (stamp, got)
                metas = {meta.get("fleet"): meta for meta in got.metas}
                only = got.metas[0] if len(got.metas) == 1 else {}
                for row in got.rows:
                    if found.rows.setdefault(row["run"], row) is row:
                        found.metas[row["run"]] = metas.get(row.get("fleet"), only)
        return found

    def _readable(self) -> Contents:
        """The contents, or an error where a file cannot be read now: its runs must not be trained again."""
        found = self.contents()
        for error in found.unreadable.values():
            raise error
        return found

    def rows_of(self, runs: Iterable[RunSpec]) -> list[Row]:
        """The rows of those runs that are finished, in their order; a damaged or unreadable file is refused."""
        found = self._readable()
        for path, damage in found.damaged.items():
            raise TacitError(f"{path} {damage}; `tacit run` on this folder trains those runs again.")
        return found.rows_of(runs)

    def metas_of(self, runs: Iterable[RunSpec]) -> list[Meta]:
        """The facts of every fleet that trained one of these runs, each once."""
        metas = self.contents().metas
        found = {canonical(metas[run.hash]): metas[run.hash] for run in runs if metas.get(run.hash)}
        return sorted(found.values(), key=lambda meta: str(meta.get("fleet")))

    def packed_path(self, name: str) -> Path:
        return self.path / "packed" / f"{name}.jsonl.gz"

    def packed_rows(self, name: str) -> tuple[Row, ...]:
        return self.rows_in(self.packed_path(name))

    def rows_in(self, path: Path) -> tuple[Row, ...]:
        """The rows that `contents` found in one packed file or folder of a fleet."""
        return self._read[path][1].rows if path in self._read else ()

    def move_damage_aside(self) -> list[str]:
        """Rename every damaged file of rows, and return a sentence for each. Needs the lock.

        They are kept: a newer tacit, or a person, may still make something of them.
        """
        messages = []
        for path, damage in self.contents().damaged.items():
            aside = path.with_name("rows.damaged.jsonl" if path.name == "rows.jsonl" else f"{path.name}.damaged")
            with write_errors(path), contextlib.suppress(FileNotFoundError):
                os.replace(path, aside)
            messages.append(f"{path} {damage}; its runs are trained again, and the file is kept as {aside.name}.")
        return messages

    def tidy_finished(self) -> None:
        """A process may have been killed between the last two files of a fleet."""
        for path in self._read:
            if path.parent.name == "fleets":
                self.tidy(path.name)

    def _forget(self, fleet: Fleet) -> None:
        """Remove what an unfinished fleet left that is not trained any more: its runs are in other fleets now."""
        folder = self.fleet_folder(fleet.id)
        if folder.is_dir() and not (folder / "rows.jsonl").exists():
            self.tidy(fleet.id)
            with contextlib.suppress(OSError):
                folder.rmdir()  # only when nothing else is in it

    def write_rows(self, fleet: str, rows: Sequence[Row], *, meta: Mapping[str, Any]) -> None:
        """Finish a fleet. meta.json goes first: rows without their checksum are never seen."""
        content = encode_rows(rows)
        if len(content) > MOST_BYTES["rows.jsonl"]:
            raise InputError(f"the rows of fleet {fleet} have {len(content)} bytes, too many; use fewer evaluations.")
        whole = {**meta, "rows_sha256": hashlib.sha256(content).hexdigest()}
        self.write(self.fleet_folder(fleet) / "meta.json", json_file(whole))
        self.write(self.rows_path(fleet), content)
        folder = self.fleet_folder(fleet)
        stamp = _stamp([self.rows_path(fleet), folder / "meta.json"])
        self._read[folder] = (stamp, RowFile(tuple(rows), (whole,)))
        self.tidy(fleet)


def results_folders(path: str | Path) -> list[ResultsFolder]:
    """The folder itself when it holds studies, otherwise those directly inside it that do."""
    root = Path(path)
    with unreadable_is_not_damage(root):
        if _is_results(root):
            return [ResultsFolder(root)]
        inside = sorted(child for child in root.iterdir() if _is_results(child)) if root.is_dir() else []
    if not inside:
        raise InputError(f"{root} holds no study; expected a folder made by `tacit run` or `tacit reproduce`.")
    return [ResultsFolder(child) for child in inside]


def _roots(path: Path) -> list[Path]:
    """The folder, and folders of one study each that an earlier version made inside it."""
    inside = [child for child in _listed(path) if (child / "study.json").exists()]
    return [path, *[child for child in inside if not (child / "studies").exists()]]


def _is_results(path: Path) -> bool:
    return (path / "studies").is_dir() or (path / "study.json").exists()


def _listed(folder: Path, ending: str = "") -> list[Path]:
    """The entries of a folder: files of rows that end in `ending`, or folders of fleets without one."""
    with unreadable_is_not_damage(folder), contextlib.suppress(*ABSENT), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if (entry.name.endswith(ending) if ending else entry.is_dir())]
        return [folder / name for name in sorted(names)]
    return []


def _stamp(paths: Sequence[Path]) -> list[tuple[int, int, int] | None]:
    """What changes when a file is replaced: its number, size and time."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        with unreadable_is_not_damage(path):
            try:
                facts = os.stat(path)
                found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
            except ABSENT:
                found.append(None)
    return found
