"""The rows of a folder of results, by run: read once per file, trusted by their checksum, written fleet by fleet."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit._errors import InputError, TacitError
from tacit.studies.describe.spec import LATER, RunSpec, canonical
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
    read_packed,
    unreadable_is_not_damage,
)


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


class RowIndex(FleetFiles):
    """All rows under `roots`. A file that was read before and has not changed is not read again."""

    def __init__(self, roots: Sequence[Path]) -> None:
        super().__init__(roots)
        self._read: dict[Path, tuple[object, RowFile]] = {}  # by file: when it was changed, and what it holds
        self._damage: dict[Path, tuple[object, Damage]] = {}

    def contents(self) -> Contents:
        """What all files of rows hold now. A file that was read before and has not changed is not read again."""
        found = Contents()
        packed = [(path, read_packed) for root in self.roots for path in list_folder(root / "packed", ".jsonl.gz")]
        fleets = [(path, read_fleet) for root in self.roots for path in list_folder(root / "fleets")]
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

    def without_weights(self, runs: Iterable[RunSpec]) -> list[RunSpec]:
        """Those runs that ended without diverging and whose parameters were not kept."""
        rows = self.contents().rows
        ended = [run for run in runs if rows.get(run.hash, {}).get("status") == "finished"]
        return [run for run in ended if not self.weights_path(run.hash).exists()]

    def metas_of(self, runs: Iterable[RunSpec]) -> list[Meta]:
        """The facts of every fleet that trained one of these runs, each once."""
        metas = self.contents().metas
        found = {canonical(metas[run.hash]): metas[run.hash] for run in runs if metas.get(run.hash)}
        return sorted(found.values(), key=lambda meta: str(meta.get("fleet")))

    def packed_path(self, name: str) -> Path:
        return self.roots[0] / "packed" / f"{name}.jsonl.gz"

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


def list_folder(folder: Path, ending: str = "") -> list[Path]:
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
