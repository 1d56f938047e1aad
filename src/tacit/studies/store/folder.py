"""The folder of results: rows by run, and studies that are views on them.

DIR/studies/NAME.json                  a study, the hash of its runs, and how its unfinished runs are packed
DIR/lock                               held by the process that writes
DIR/fleets/ID/rows.jsonl               one JSON object per run; the same bytes however the study was run
DIR/fleets/ID/meta.json                seconds, CPU seconds, times, versions, commit, machine, the sha256 of rows.jsonl;
                                       what differs from one training to the next is here, so rows stay comparable
DIR/fleets/ID/checkpoint.safetensors   only while the fleet is unfinished
DIR/fleets/ID/failed.json              only after the fleet was given up: how often it failed, and the last error
DIR/fleets/ID/rows.damaged.jsonl       rows that were not trusted, moved aside: never read, replaced by the next ones
DIR/packed/NAME.jsonl.gz               rows of a finished study in one file (`tacit pack`)
DIR/weights/RUN.safetensors            final parameters of a run, when its study says keep_weights = true

A run is finished when any file holds a trusted row of it, whichever study or fleet trained it. A file that cannot be
read is not damaged: that is an error, and the file stays as it is. Before results had one store, each study had a
folder with a study.json: such a folder, and those directly inside DIR, are read as part of DIR.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tacit._errors import InputError
from tacit._parsing import parse_json
from tacit.studies.describe.spec import digest
from tacit.studies.describe.study import Study
from tacit.studies.store import lock
from tacit.studies.store.row_index import Contents, RowIndex, list_folder
from tacit.studies.store.rows import Row, json_file, read_or_damage, unreadable_is_not_damage
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


class ResultsFolder(RowIndex):
    """One folder: its lock, its studies, and which of their runs are left to train. Writing needs `locked()`."""

    def __init__(self, path: Path) -> None:
        super().__init__(_roots(path))
        self.path = path

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
        return list_folder(self.path / "studies", ".json") + [
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
        finished = self.readable()
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
        finished = finished or self.readable()
        return self._left(self._packing(study, self._recorded(study)[1], finished), finished)

    def _left(self, fleets: Sequence[Fleet], finished: Contents) -> list[Fleet]:
        rows = finished.rows
        left = [fleet for fleet in fleets if fleet.runs[0].hash not in rows]  # all runs of a fleet end together
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

    def _forget(self, fleet: Fleet) -> None:
        """Remove what an unfinished fleet left that is not trained any more: its runs are in other fleets now."""
        folder = self.fleet_folder(fleet.id)
        if folder.is_dir() and not (folder / "rows.jsonl").exists():
            self.tidy(fleet.id)
            with contextlib.suppress(OSError):
                folder.rmdir()  # only when nothing else is in it


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
    inside = [child for child in list_folder(path) if (child / "study.json").exists()]
    return [path, *[child for child in inside if not (child / "studies").exists()]]


def _is_results(path: Path) -> bool:
    return (path / "studies").is_dir() or (path / "study.json").exists()
