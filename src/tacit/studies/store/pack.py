"""Pack a folder of results: one compressed file of rows per study instead of a folder per fleet."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tacit._util.errors import TacitError
from tacit._util.files import write_error
from tacit.studies.describe.study import Study
from tacit.studies.store.folder import Contents, ResultsFolder
from tacit.studies.store.rows import MOST_BYTES, Meta, Row, encode_packed
from tacit.studies.store.study_file import encode_study


@dataclass(frozen=True)
class Packed:
    """What packing did: files of rows now, and the files that they replace."""

    rows: int
    written: tuple[Path, ...]
    removed: int


def pack_results(path: Path) -> Packed:
    """Write packed/NAME.jsonl.gz for every study, then remove the fleets whose rows are in there.

    A row that several studies share is in the file of the first of them by name. Rows of no study stay as they are,
    and so do unfinished fleets. Dying at any moment loses nothing: a row is removed only after another file holds it.
    """
    folder = ResultsFolder(path)
    with folder.locked():
        contents = folder.contents()
        for error in contents.unreadable.values():
            raise error
        for file, damage in contents.damaged.items():
            raise TacitError(f"{file} {damage}; run its study again before you pack this folder.")
        studies = folder.studies()
        homes = {run.hash: study.name for study in reversed(studies) for run in study.runs}
        written = [_write_study(folder, study) for study in studies]
        packed: set[str] = set()
        for study in studies:
            rows = _rows_at(folder, contents, study, homes)
            if rows:
                written.append(_write_rows(folder, study.name, rows, contents.metas))
                packed |= rows.keys()
        return Packed(len(packed), tuple(written), _remove_fleets(path, packed, contents))


def _rows_at(folder: ResultsFolder, contents: Contents, study: Study, homes: Mapping[str, str]) -> dict[str, Row]:
    """The rows for the file of a study: those of its runs, and others that the file holds already."""
    own = [run.hash for run in study.runs if homes[run.hash] == study.name and run.hash in contents.rows]
    before = contents.files.get(folder.packed_path(study.name))
    others = [row["run"] for row in before.rows if row["run"] not in homes] if before else []
    return {run: contents.rows[run] for run in (*own, *others)}


def _write_rows(folder: ResultsFolder, name: str, rows: Mapping[str, Row], metas: Mapping[str, Meta]) -> Path:
    used = {id(metas[run]): metas[run] for run in rows if metas.get(run)}
    content = encode_packed(list(rows.values()), sorted(used.values(), key=lambda meta: str(meta.get("fleet"))))
    if len(content) > MOST_BYTES["packed"]:
        raise TacitError(f"the rows of {name} have {len(content)} bytes, too many for one file; leave them unpacked.")
    path = folder.packed_path(name)
    folder.write(path, content)
    return path


def _write_study(folder: ResultsFolder, study: Study) -> Path:
    """The study without its packing, which is of use only while fleets are unfinished."""
    path = folder.study_path(study.name)
    if folder.unfinished(study):
        folder.open_for(study)
    else:
        folder.write(path, encode_study(study))
    return path


def _remove_fleets(path: Path, packed: set[str], contents: Contents) -> int:
    removed = 0
    for fleet, file in contents.files.items():
        if fleet.parent.name == "fleets" and file.rows and all(row["run"] in packed for row in file.rows):
            _remove(fleet / "rows.jsonl")  # first: what is left without it is no fleet
            _remove(fleet)
            removed += 1
    with contextlib.suppress(OSError):
        (path / "fleets").rmdir()
    return removed


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    except OSError as error:
        raise write_error(path, error) from None
