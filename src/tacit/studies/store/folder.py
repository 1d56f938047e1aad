"""The folder of results: rows by run, and studies that are views on them.

DIR/studies/NAME.json                  a study, the hash of its runs, and how its unfinished runs are packed
DIR/lock                               locked by the process that writes
DIR/fleets/ID/rows.jsonl               one JSON object per run; the same bytes however the study was run
DIR/fleets/ID/meta.json                seconds, CPU seconds, times, versions, commit, machine, the sha256 of rows.jsonl;
                                       what differs from one training to the next is here, so rows stay comparable
DIR/fleets/ID/checkpoint.safetensors   only while the fleet is unfinished
DIR/fleets/ID/failed.json              only after the fleet was given up: how often it failed, and the last error
DIR/fleets/ID/rows.damaged.jsonl       rows that were not trusted, moved aside: never read, replaced by the next ones
DIR/packed/NAME.jsonl.gz               rows of a finished study in one file (`tacit pack`)
DIR/weights/RUN.safetensors            final parameters of a run, when its study says keep_weights = true

A run is finished when any file holds a trusted row of it, whichever study or fleet trained it. A file that cannot be
read is not damaged: that is an error, and the file stays as it is.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tacit._util.errors import InputError, TacitError
from tacit._util.files import write_atomically, write_error
from tacit._util.parsing import MEGABYTE, parse_json, read_bounded
from tacit.studies.describe.spec import RunSpec, canonical
from tacit.studies.describe.study import Study
from tacit.studies.store import lock
from tacit.studies.store.rows import (
    ABSENT,
    MOST_BYTES,
    Damage,
    Meta,
    Row,
    RowFile,
    complete,
    encode_rows,
    json_file,
    read_fleet,
    read_or_damage,
    read_packed,
    unreadable_is_not_damage,
)
from tacit.studies.store.study_file import encode_study, read_packing, read_study
from tacit.studies.train import checkpoint
from tacit.studies.train.packing import Fleet, pack

MOST_CHECKPOINT_BYTES = 4096 * MEGABYTE  # a checkpoint holds a fleet's parameters
# What an empty checkpoint file is read as: it is damaged, and no bytes would mean that there is no file.
EMPTY = b"\0"
Content = TypeVar("Content")


def read_rows(folder: str | Path) -> list[Row]:
    """The rows of all studies of a folder, each run once, in the order of the studies and their runs.

    Unfinished runs have no rows yet and are left out; a damaged file is refused. Every spec has every key here, also
    those that are left out on disk at their default.
    """
    found = ResultsFolder(Path(folder))
    runs = {run.hash: run for study in found.studies() for run in study.runs}
    return found.rows_of(runs.values())


def results_folders(path: str | Path) -> list[ResultsFolder]:
    """The folder itself when it holds studies, otherwise those directly inside it that do."""
    root = Path(path)
    with unreadable_is_not_damage(root):
        if (root / "studies").is_dir():
            return [ResultsFolder(root)]
        inside = sorted(child for child in root.iterdir() if (child / "studies").is_dir()) if root.is_dir() else []
    if not inside:
        raise InputError(f"{root} holds no study; expected a folder made by `tacit run` or `tacit reproduce`.")
    return [ResultsFolder(child) for child in inside]


@dataclass(frozen=True)
class Contents:
    """Every row of a folder by its run, the facts of the fleet that trained it, and the files that gave none."""

    rows: dict[str, Row] = field(default_factory=dict)
    metas: dict[str, Meta] = field(default_factory=dict)  # by run
    files: dict[Path, RowFile] = field(default_factory=dict)  # by packed file, or folder of a fleet
    damaged: dict[Path, Damage] = field(default_factory=dict)
    unreadable: dict[Path, TacitError] = field(default_factory=dict)

    def add(self, path: Path, file: RowFile) -> None:
        """Add the rows of one file, but for runs that an earlier file has."""
        self.files[path] = file
        metas = {meta.get("fleet"): meta for meta in file.metas}
        only = file.metas[0] if len(file.metas) == 1 else {}
        for row in file.rows:
            if self.rows.setdefault(row["run"], row) is row:
                self.metas[row["run"]] = metas.get(row.get("fleet"), only)

    def rows_of(self, runs: Iterable[RunSpec]) -> list[Row]:
        """The rows of those runs that are finished, in their order, complete."""
        rows = (self.rows.get(run.hash) for run in runs)
        return [complete(row) for row in rows if row is not None]


class ResultsFolder:
    """Reads and writes one folder. Writing needs `locked()`. A file that has not changed is not read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[object, tuple[object, Any]] = {}  # by file: when it was changed, and what was read

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, or refuse with a sentence."""
        with lock.hold(self.path):
            yield

    def is_locked(self) -> bool:
        """Whether a process writes here now."""
        return lock.is_held(self.path)

    # -- studies --------------------------------------------------------------------------------------------------
    def study_path(self, name: str) -> Path:
        return self.path / "studies" / f"{name}.json"

    def study_files(self) -> list[Path]:
        return _entries(self.path / "studies", ".json")

    def study(self, path: Path) -> Study:
        """The study of one file of `study_files`."""
        return self._unless_known(path, [path], lambda: read_study(path))

    def studies(self) -> list[Study]:
        """The studies of this folder, by name."""
        found = {study.name: study for study in map(self.study, self.study_files())}
        if not found:
            raise InputError(f"{self.path} holds no study; expected a folder made by `tacit run` or `tacit reproduce`.")
        return [found[name] for name in sorted(found)]

    def open_for(self, study: Study) -> list[Fleet]:
        """Store the study as a view on this folder, and return the fleets that are left to train. Needs the lock.

        The packing is stored too. So a study that goes on trains the same fleets, from their checkpoints, although
        constants of the packing have changed or other runs were finished in between.
        """
        path, finished = self.study_path(study.name), self.readable()
        recorded = read_packing(path, study)
        fleets = self._packing(study, recorded, finished)
        for fleet in recorded:
            if fleet not in fleets:
                self._forget(fleet)
        content = encode_study(study, fleets)
        if content != read_or_damage(path, most=len(content)):
            self.write(path, content)
        return _left(fleets, finished)

    def unfinished(self, study: Study, finished: Contents | None = None) -> list[Fleet]:
        """The fleets that `open_for` would return; nothing is written. `finished` is what `contents` gave before."""
        finished = finished or self.readable()
        if all(run.hash in finished.rows for run in study.runs):
            return []
        path = self.study_path(study.name)
        recorded = self._unless_known((path, study.hash), [path], lambda: read_packing(path, study))
        return _left(self._packing(study, recorded, finished), finished)

    def _packing(self, study: Study, recorded: Sequence[Fleet], finished: Contents) -> list[Fleet]:
        """Fleets of the study: those that its file lists, or that were begun when it was lost, and the rest packed."""
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

    def _forget(self, fleet: Fleet) -> None:
        """Remove what an unfinished fleet left that is not trained any more: its runs are in other fleets now."""
        folder = self.fleet_folder(fleet.id)
        if folder.is_dir() and not (folder / "rows.jsonl").exists():
            self.tidy(fleet.id)
            with contextlib.suppress(OSError):
                folder.rmdir()  # only when nothing else is in it

    # -- rows -----------------------------------------------------------------------------------------------------
    def contents(self) -> Contents:
        """What all files of rows hold now."""
        found = Contents()
        packed = [(path, [path], read_packed) for path in _entries(self.path / "packed", ".jsonl.gz")]
        fleets = [
            (path, [path / "rows.jsonl", path / "meta.json"], read_fleet) for path in _entries(self.path / "fleets")
        ]
        for path, files, read in (*packed, *fleets):
            try:
                got = self._unless_known(path, files, functools.partial(read, path))
            except TacitError as error:
                found.unreadable[files[0]] = error
                continue
            if isinstance(got, Damage):
                found.damaged[files[0]] = got
            elif got is not None:
                found.add(path, got)
        return found

    def readable(self) -> Contents:
        """The contents, or an error where a file cannot be read now: its runs must not be trained again."""
        found = self.contents()
        for error in found.unreadable.values():
            raise error
        return found

    def rows_of(self, runs: Iterable[RunSpec]) -> list[Row]:
        """The rows of those runs that are finished, in their order; a damaged or unreadable file is refused."""
        found = self.readable()
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

    def move_damage_aside(self) -> list[str]:
        """Rename every damaged file of rows, and return a sentence for each. Needs the lock.

        They are kept: a newer tacit, or a person, may still make something of them.
        """
        messages = []
        for path, damage in self.contents().damaged.items():
            aside = path.with_name("rows.damaged.jsonl" if path.name == "rows.jsonl" else f"{path.name}.damaged")
            with _write_errors(path), contextlib.suppress(FileNotFoundError):
                os.replace(path, aside)
            messages.append(f"{path} {damage}; its runs are trained again, and the file is kept as {aside.name}.")
        return messages

    # -- fleets ---------------------------------------------------------------------------------------------------
    def fleet_folder(self, fleet: str) -> Path:
        return self.path / "fleets" / fleet

    def rows_path(self, fleet: str) -> Path:
        return self.fleet_folder(fleet) / "rows.jsonl"

    def meta_path(self, fleet: str) -> Path:
        return self.fleet_folder(fleet) / "meta.json"

    def checkpoint_path(self, fleet: str) -> Path:
        return self.fleet_folder(fleet) / "checkpoint.safetensors"

    def failure_path(self, fleet: str) -> Path:
        return self.fleet_folder(fleet) / "failed.json"

    def begin(self, fleet: str) -> None:
        """Leave a sign that the fleet is in training: its folder, empty until the first checkpoint."""
        with _write_errors(self.path):
            self.fleet_folder(fleet).mkdir(parents=True, exist_ok=True)
            self.failure_path(fleet).unlink(missing_ok=True)  # it is tried again

    def has_begun(self, fleet: str) -> bool:
        return self.fleet_folder(fleet).is_dir()

    def write_rows(self, fleet: str, rows: Sequence[Row], *, meta: Mapping[str, Any]) -> None:
        """Finish a fleet. meta.json goes first: rows without their checksum are never seen."""
        content = encode_rows(rows)
        if len(content) > MOST_BYTES["rows.jsonl"]:
            raise InputError(f"the rows of fleet {fleet} have {len(content)} bytes, too many; use fewer evaluations.")
        whole = {**meta, "rows_sha256": hashlib.sha256(content).hexdigest()}
        self.write(self.meta_path(fleet), json_file(whole))
        self.write(self.rows_path(fleet), content)
        stamp = _stamp([self.rows_path(fleet), self.meta_path(fleet)])
        self._known[self.fleet_folder(fleet)] = (stamp, RowFile(tuple(rows), (whole,)))
        self.tidy(fleet)

    def tidy(self, fleet: str) -> None:
        """Leave nothing but the rows of a finished fleet and their meta.json."""
        with _write_errors(self.path):
            self.checkpoint_path(fleet).unlink(missing_ok=True)
            self.failure_path(fleet).unlink(missing_ok=True)
            for left in self.fleet_folder(fleet).glob(".*.tmp"):  # by a process that was killed while it wrote
                left.unlink(missing_ok=True)

    def tidy_finished(self) -> None:
        """A process may have been killed between the last two files of a fleet."""
        for path in self.contents().files:
            if path.parent.name == "fleets":
                self.tidy(path.name)

    def read_checkpoint(self, fleet: str) -> bytes | None:
        """The bytes of a checkpoint, unchecked; None when there is none."""
        path = self.checkpoint_path(fleet)
        content = read_or_damage(path, most=MOST_CHECKPOINT_BYTES)
        if isinstance(content, Damage):
            raise TacitError(f"{path} {content}; move it away to train its fleet from the start.")
        return EMPTY if content == b"" else content

    def checkpoint_state(self, fleet: str) -> dict[str, Any] | None:
        """What a checkpoint says about its progress, unchecked and without its tensors; None when there is none."""
        path = self.checkpoint_path(fleet)

        def read() -> dict[str, Any] | None:
            with unreadable_is_not_damage(path):
                try:
                    return checkpoint.peek_file(path)
                except ABSENT:
                    return None
                except ValueError as error:
                    raise TacitError(f"{path} {error}; move it away to train its fleet from the start.") from None

        return self._unless_known(path, [path], read)

    def write_checkpoint(self, fleet: str, content: bytes) -> None:
        """Replace the checkpoint. One that could not be read again is refused, and the last good one stays."""
        if len(content) > MOST_CHECKPOINT_BYTES:
            raise InputError(
                f"the checkpoint of fleet {fleet} has {len(content)} bytes; expected at most {MOST_CHECKPOINT_BYTES}: "
                "use a smaller width or depth."
            )
        self.write(self.checkpoint_path(fleet), content)

    def failure(self, fleet: str) -> dict[str, Any] | None:
        """`error` and `attempts` of a fleet that was given up; None when it was not."""
        path = self.failure_path(fleet)

        def read() -> dict[str, Any] | None:
            try:
                found = parse_json(read_bounded(path, most=MOST_BYTES["meta.json"]))
            except ABSENT:
                return None
            except (OSError, ValueError):
                found = None
            return found if isinstance(found, dict) else {"error": "failed.json cannot be read"}

        return self._unless_known(path, [path], read)

    def write_failure(self, fleet: str, facts: Mapping[str, Any]) -> None:
        self.write(self.failure_path(fleet), json_file(dict(facts)))

    # -- weights --------------------------------------------------------------------------------------------------
    def weights_path(self, run: str) -> Path:
        return self.path / "weights" / f"{run}.safetensors"

    def read_weights(self, run: str) -> bytes | None:
        """The bytes of a run's final parameters, unchecked; None when they were not kept."""
        content = read_or_damage(self.weights_path(run), most=MOST_CHECKPOINT_BYTES)
        if isinstance(content, Damage):
            raise TacitError(f"{self.weights_path(run)} {content}; expected a file that `tacit run` wrote.")
        return content

    def write_weights(self, run: str, content: bytes) -> None:
        """Store a run's final parameters. Workers send them before the rows: a row that is there has its weights."""
        self.write(self.weights_path(run), content)

    def without_weights(self, runs: Iterable[RunSpec]) -> list[RunSpec]:
        """Those runs that ended without diverging and whose parameters were not kept."""
        rows = self.contents().rows
        ended = [run for run in runs if rows.get(run.hash, {}).get("status") == "finished"]
        return [run for run in ended if not self.weights_path(run.hash).exists()]

    # -- every read and write -------------------------------------------------------------------------------------
    def _unless_known(self, key: object, files: Sequence[Path], read: Callable[[], Content]) -> Content:
        """What `read` makes of `files`, which are read again only after one of them has changed."""
        stamp = _stamp(files)
        known = self._known.get(key)
        if known is None or known[0] != stamp:
            known = self._known[key] = (stamp, read())
        content: Content = known[1]
        return content

    def write(self, path: Path, content: bytes) -> None:
        """Every write of this folder: whole or not at all, and on the disk before the next one."""
        write_atomically(path, content, sync=True)


def _left(fleets: Sequence[Fleet], finished: Contents) -> list[Fleet]:
    """The fleets without rows, the longest first: all runs of a fleet end together."""
    left = [fleet for fleet in fleets if fleet.runs[0].hash not in finished.rows]
    return sorted(left, key=lambda fleet: (-fleet.cost, fleet.id))


def _entries(folder: Path, ending: str = "") -> list[Path]:
    """The entries of a folder: files that end in `ending`, or folders of fleets without one."""
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


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from None
