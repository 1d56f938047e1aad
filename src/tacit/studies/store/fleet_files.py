"""The files of each fleet in a folder of results: rows and their facts, a checkpoint, a failure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit._errors import InputError, TacitError
from tacit._files import write_atomically, write_error
from tacit._parsing import MEGABYTE, parse_json, read_bounded
from tacit.studies.store.rows import (
    ABSENT,
    MOST_BYTES,
    Damage,
    Meta,
    Row,
    RowFile,
    json_file,
    read_fleet,
    read_meta,
    read_or_damage,
    unreadable_is_not_damage,
)
from tacit.studies.train import checkpoint

MOST_CHECKPOINT_BYTES = 4096 * MEGABYTE  # a checkpoint holds a fleet's parameters
# What an empty checkpoint file is read as: it is damaged, and no bytes would mean that there is no file.
EMPTY = b"\0"


class FleetFiles:
    """Paths, reads and atomic writes of fleets under `roots`; new ones are made under the first."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = roots

    def fleet_folder(self, fleet: str) -> Path:
        folders = [root / "fleets" / fleet for root in self.roots]
        return next((folder for folder in folders if folder.is_dir()), folders[0])

    def rows_path(self, fleet: str) -> Path:
        return self.fleet_folder(fleet) / "rows.jsonl"

    def checkpoint_path(self, fleet: str) -> Path:
        return self.fleet_folder(fleet) / "checkpoint.safetensors"

    def failure_path(self, fleet: str) -> Path:
        return self.fleet_folder(fleet) / "failed.json"

    def rows(self, fleet: str) -> tuple[Row, ...] | Damage | None:
        """The rows of a finished fleet; None when it is not finished; Damage when they cannot be trusted."""
        found = read_fleet(self.fleet_folder(fleet))
        return found.rows if isinstance(found, RowFile) else found

    def meta(self, fleet: str) -> Meta | None:
        return read_meta(self.fleet_folder(fleet))

    def begin(self, fleet: str) -> None:
        """Leave a sign that the fleet is in training: its folder, empty until the first checkpoint."""
        with write_errors(self.roots[0]):
            self.fleet_folder(fleet).mkdir(parents=True, exist_ok=True)
            self.failure_path(fleet).unlink(missing_ok=True)  # it is tried again

    def has_begun(self, fleet: str) -> bool:
        return self.fleet_folder(fleet).is_dir()

    def tidy(self, fleet: str) -> None:
        """Leave nothing but the rows of a finished fleet and their meta.json."""
        with write_errors(self.roots[0]):
            self.checkpoint_path(fleet).unlink(missing_ok=True)
            self.failure_path(fleet).unlink(missing_ok=True)
            for left in self.fleet_folder(fleet).glob(".*.tmp"):  # by a process that was killed while it wrote
                left.unlink(missing_ok=True)

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
        with unreadable_is_not_damage(path):
            try:
                return checkpoint.peek_file(path)
            except ABSENT:
                return None
            except ValueError as error:
                raise TacitError(f"{path} {error}; move it away to train its fleet from the start.") from None

    def write_checkpoint(self, fleet: str, content: bytes) -> None:
        """Replace the checkpoint. One that could not be read again is refused, and the last good one stays."""
        if len(content) > MOST_CHECKPOINT_BYTES:
            raise InputError(
                f"the checkpoint of fleet {fleet} has {len(content)} bytes; expected at most {MOST_CHECKPOINT_BYTES}: "
                "use a smaller width or depth."
            )
        self.write(self.checkpoint_path(fleet), content)

    def weights_path(self, run: str) -> Path:
        return self.roots[0] / "weights" / f"{run}.safetensors"

    def read_weights(self, run: str) -> bytes | None:
        """The bytes of a run's final parameters, unchecked; None when they were not kept."""
        content = read_or_damage(self.weights_path(run), most=MOST_CHECKPOINT_BYTES)
        if isinstance(content, Damage):
            raise TacitError(f"{self.weights_path(run)} {content}; expected a file that `tacit run` wrote.")
        return content

    def write_weights(self, run: str, content: bytes) -> None:
        """Store a run's final parameters. Workers send them before the rows: a row that is there has its weights."""
        self.write(self.weights_path(run), content)

    def failure(self, fleet: str) -> dict[str, Any] | None:
        """`error` and `attempts` of a fleet that was given up; None when it was not."""
        try:
            found = parse_json(read_bounded(self.failure_path(fleet), most=MOST_BYTES["meta.json"]))
        except ABSENT:
            return None
        except (OSError, ValueError):
            found = None
        return found if isinstance(found, dict) else {"error": "failed.json cannot be read"}

    def write_failure(self, fleet: str, facts: Mapping[str, Any]) -> None:
        self.write(self.failure_path(fleet), json_file(dict(facts)))

    def write(self, path: Path, content: bytes) -> None:
        """Every write of this folder: whole or not at all, and on the disk before the next one."""
        write_atomically(path, content, sync=True)


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from None
