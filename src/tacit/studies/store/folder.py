"""The folder of a study: one writer at a time, every file complete or absent, nothing trusted without its checksum.

DIR/study.json                         the validated study, its hash, the schema version
DIR/lock                               held by the process that writes
DIR/fleets/ID/rows.jsonl               one JSON object per run; the same bytes however the study was run
DIR/fleets/ID/meta.json                seconds, times, versions, commit, machine, and the sha256 of rows.jsonl;
                                       what differs from one training to the next is here, so rows stay comparable
DIR/fleets/ID/checkpoint.safetensors   only while the fleet is unfinished
DIR/fleets/ID/failed.json              only after the fleet was given up: how often it failed, and the last error
DIR/fleets/ID/rows.damaged.jsonl       rows that were not trusted, moved aside: never read, replaced by the next ones

A file that cannot be read is not damaged: that is a sentence, and the file stays as it is.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tacit._errors import InputError
from tacit._parsing import MEGABYTE, parse_json, read_bounded
from tacit.studies.describe.spec import LATER, canonical, digest
from tacit.studies.describe.study import SCHEMA, Study, parse_study
from tacit.studies.store.row import problem

Row = dict[str, Any]
# Sizes beyond which a file is not ours, so that nothing larger is ever read. A checkpoint holds a fleet's parameters.
MOST_BYTES = {"study.json": MEGABYTE, "meta.json": MEGABYTE, "rows.jsonl": 16 * MEGABYTE, "checkpoint": 4096 * MEGABYTE}
MOST_LINES = 10_000  # of a rows file: a fleet has a few dozen runs
MOST_CONTAINERS = 100  # lists and tables of a row: it has 8
ABSENT = (FileNotFoundError, NotADirectoryError)
# What an empty checkpoint file is read as: no checkpoint either, but executors take no bytes for no file at all, and
# the fleet would start over unsaid.
EMPTY = b"\0"


def read_rows(folder: str | Path) -> list[Row]:
    """The rows of every finished fleet of a study folder, in the order of the study's runs.

    Unfinished fleets have no rows yet and are left out; a damaged rows file is refused with a sentence. Every spec has
    every key here, also those that are left out on disk at their default.
    """
    store = StudyFolder(Path(folder))
    study = store.study()
    rows = {}
    for fleet in store.fleets_on_disk():
        found = store.rows(fleet)
        if isinstance(found, Damage):
            raise InputError(f"{store.rows_path(fleet)} {found}; `tacit run` on this folder trains that fleet again.")
        rows.update({row["run"]: {**row, "spec": {**LATER, **row["spec"]}} for row in found or []})
    return [rows[run.hash] for run in study.runs if run.hash in rows]


class Damage(str):
    """Why a file is not trusted, as the end of a sentence."""


class StudyFolder:
    """Paths, reads and atomic writes of one study folder. Writing needs `locked()`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # -- the study ------------------------------------------------------------------------------------------------
    def study(self) -> Study:
        """The study this folder was made for."""
        path = self.path / "study.json"
        try:
            stored = parse_json(read_bounded(path, most=MOST_BYTES["study.json"]))
            schema = stored["schema"]
            if isinstance(schema, int) and schema > SCHEMA:
                raise InputError(f"{path} has schema {schema}; this tacit reads schema {SCHEMA}: upgrade tacit.")
            study = _stored_study(stored["study"], path)
        except FileNotFoundError:
            raise InputError(f"{self.path} holds no study.json; expected a folder made by `tacit run`.") from None
        except NotADirectoryError:
            raise InputError(f"{self.path} is not a folder; expected one made by `tacit run`.") from None
        except InputError:
            raise
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path} is damaged; {REMEDY}.") from None
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
        if stored.get("hash") != study.hash:
            raise InputError(f"{path} does not match its hash; {REMEDY}.")
        return study

    def open_for(self, study: Study) -> None:
        """Make the folder, or check that it belongs to this study. Needs the lock."""
        content = {"schema": SCHEMA, "hash": study.hash, "study": study.model_dump()}
        with _unreadable_is_a_sentence(self.path):
            is_known = (self.path / "study.json").exists()
        if is_known:
            stored = self.study()
            if stored.hash != study.hash:
                raise InputError(
                    f"{self.path} holds another study ({stored.name}, {len(stored.runs)} runs, hash {stored.hash}; "
                    f"this one has {len(study.runs)} runs, hash {study.hash}); choose another folder with --into."
                )
            if stored == study:
                return
        self.write(self.path / "study.json", (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())

    # -- one writer -----------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, or refuse with a sentence. The system drops it when the process dies."""
        import fcntl

        lock = self.path / "lock"
        with _said_as_a_sentence(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            # In a folder from other hands a link would have us write elsewhere, and a pipe would have us wait.
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(lock.lstat().st_mode):
                    raise InputError(f"{lock} is not a regular file; remove it and run again.")
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(handle, 100, 0).decode(errors="replace").strip() or "unknown"
                raise InputError(
                    f"{self.path} is in use by another process (number {holder}); wait for it to end, or stop it."
                ) from None
            except OSError as error:  # some network file systems have no locks, or not for this machine
                raise InputError(
                    f"{self.path} cannot be locked ({error.strerror}), so two processes could write there at once; "
                    "choose a folder on a file system with locks with --into."
                ) from None
            with _said_as_a_sentence(self.path):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(handle)

    def is_locked(self) -> bool:
        """Whether some process is writing here now."""
        import fcntl

        try:
            handle = os.open(self.path / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        except OSError:  # no locks here, so no process of ours
            return False
        finally:
            os.close(handle)

    # -- fleets ---------------------------------------------------------------------------------------------------
    def fleet_folder(self, fleet: str) -> Path:
        return self.path / "fleets" / fleet

    def rows_path(self, fleet: str) -> Path:
        return self.fleet_folder(fleet) / "rows.jsonl"

    def checkpoint_path(self, fleet: str) -> Path:
        return self.fleet_folder(fleet) / "checkpoint.safetensors"

    def fleets_on_disk(self) -> list[str]:
        with _unreadable_is_a_sentence(self.path / "fleets"), contextlib.suppress(*ABSENT):
            return sorted(entry.name for entry in (self.path / "fleets").iterdir() if entry.is_dir())
        return []

    def rows(self, fleet: str) -> list[Row] | Damage | None:
        """The rows of a finished fleet; None when it is not finished; Damage when they cannot be trusted."""
        content = _read(self.rows_path(fleet), most=MOST_BYTES["rows.jsonl"])
        if not isinstance(content, bytes):
            return content
        meta = self.meta(fleet)
        if meta is None:
            return Damage("has no readable meta.json beside it, so its checksum is unknown")
        if hashlib.sha256(content).hexdigest() != meta.get("rows_sha256"):
            return Damage("does not match its checksum")
        if content.count(b"\n") + content.count(b"\r") > MOST_LINES:
            return Damage(f"has more than {MOST_LINES} lines")
        rows: list[Row] = []
        for number, line in enumerate(content.splitlines(), 1):
            try:
                rows.append(parse_json(line, most_containers=MOST_CONTAINERS))
            except ValueError:
                return Damage("is not JSON Lines")
            wrong = problem(rows[-1], number)
            if wrong is not None:
                return Damage(wrong)
        return rows if digest([row["run"] for row in rows]) == fleet else Damage("holds other runs than its fleet")

    def meta(self, fleet: str) -> dict[str, Any] | None:
        """The facts of meta.json; None when it is absent or damaged."""
        content = _read(self.fleet_folder(fleet) / "meta.json", most=MOST_BYTES["meta.json"])
        try:
            found = parse_json(content) if isinstance(content, bytes) else None
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def write_rows(self, fleet: str, rows: Sequence[Row], *, meta: dict[str, Any]) -> None:
        """Finish a fleet. meta.json goes first: rows without their checksum are never seen."""
        content = "".join(canonical(row) + "\n" for row in rows).encode()
        if len(content) > MOST_BYTES["rows.jsonl"]:
            raise InputError(f"the rows of fleet {fleet} have {len(content)} bytes, too many; use fewer evaluations.")
        meta = {**meta, "rows_sha256": hashlib.sha256(content).hexdigest()}
        self.write(self.fleet_folder(fleet) / "meta.json", (json.dumps(meta, indent=1, sort_keys=True) + "\n").encode())
        self.write(self.rows_path(fleet), content)
        self.tidy(fleet)

    def tidy(self, fleet: str) -> None:
        """Leave nothing but the rows of a finished fleet and their meta.json."""
        with _said_as_a_sentence(self.path):
            self.checkpoint_path(fleet).unlink(missing_ok=True)
            self.failure_path(fleet).unlink(missing_ok=True)
            for left in self.fleet_folder(fleet).glob(".*.tmp"):  # by a process that was killed while it wrote
                left.unlink(missing_ok=True)

    def begin(self, fleet: str) -> None:
        """Leave a sign that the fleet is in training: its folder, empty until the first checkpoint."""
        with _said_as_a_sentence(self.path):
            self.fleet_folder(fleet).mkdir(parents=True, exist_ok=True)
            self.failure_path(fleet).unlink(missing_ok=True)  # it is tried again

    def has_begun(self, fleet: str) -> bool:
        return self.fleet_folder(fleet).is_dir()

    def discard_rows(self, fleet: str) -> None:
        """Move rows that are not trusted aside: a newer tacit, or a patient hand, may still make something of them."""
        path = self.rows_path(fleet)
        with _said_as_a_sentence(path), contextlib.suppress(FileNotFoundError):
            os.replace(path, path.with_name("rows.damaged.jsonl"))

    def read_checkpoint(self, fleet: str) -> bytes | None:
        """The bytes of a checkpoint, unchecked; None when there is none."""
        path = self.checkpoint_path(fleet)
        content = _read(path, most=MOST_BYTES["checkpoint"])
        if isinstance(content, Damage):
            raise InputError(f"{path} {content}; move it away to train its fleet from the start.")
        return EMPTY if content == b"" else content

    def write_checkpoint(self, fleet: str, content: bytes) -> None:
        """Replace the checkpoint. One that could not be read again is refused, and the last good one stays."""
        most = MOST_BYTES["checkpoint"]
        if len(content) > most:
            raise InputError(
                f"the checkpoint of fleet {fleet} has {len(content)} bytes; expected at most {most}: use a smaller "
                "width or depth."
            )
        self.write(self.checkpoint_path(fleet), content)

    def failure_path(self, fleet: str) -> Path:
        return self.fleet_folder(fleet) / "failed.json"

    def failure(self, fleet: str) -> dict[str, Any] | None:
        """`error` and `attempts` of a fleet that was given up; None when it was not."""
        try:
            found = parse_json(read_bounded(self.failure_path(fleet), most=MOST_BYTES["meta.json"]))
        except ABSENT:
            return None
        except (OSError, ValueError):
            found = None
        return found if isinstance(found, dict) else {"error": "failed.json cannot be read"}

    def write_failure(self, fleet: str, facts: dict[str, Any]) -> None:
        self.write(self.failure_path(fleet), (json.dumps(facts, indent=1, sort_keys=True) + "\n").encode())

    def write(self, path: Path, content: bytes) -> None:
        """Write to a temporary name, then rename: a reader sees the old file or the new one, never a part."""
        temporary = path.with_name(f".{path.name}.tmp")  # one writer holds the lock, so one name is enough
        with _said_as_a_sentence(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.unlink(missing_ok=True)  # left by a crash, or a link that somebody put there
                with open(temporary, "xb") as handle:
                    handle.write(content)
                    handle.flush()
                    os.fsync(handle.fileno())
                os.replace(temporary, path)
            except OSError:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise


REMEDY = "remove study.json and run the study file again: finished fleets are kept"


def _stored_study(raw: Any, path: Path) -> Study:
    try:
        return parse_study(raw, where=str(path))
    except InputError as error:
        raise InputError(f"{str(error).rstrip('.')}; {REMEDY}.") from None


def _read(path: Path, *, most: int) -> bytes | Damage | None:
    """The bytes of a file; None when there is none; Damage when it is none of ours."""
    with _unreadable_is_a_sentence(path):
        try:
            return read_bounded(path, most=most)
        except ABSENT:
            return None
        except ValueError as error:
            return Damage(error)


@contextlib.contextmanager
def _unreadable_is_a_sentence(path: Path) -> Iterator[None]:
    """A disk or a server that fails today may hold a good file: whoever asked must not take it for damaged."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or error}); it was not changed. Try again, or move it away to "
            "train again."
        ) from None


@contextlib.contextmanager
def _said_as_a_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"the disk is full: {path} was not written; finished fleets are kept. Free some space and run again."
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise InputError(
                f"{path} cannot be written ({error.strerror}); choose a writable folder with --into."
            ) from None
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None
