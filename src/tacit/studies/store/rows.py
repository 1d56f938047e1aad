"""Files of rows, trusted only with their SHA-256: those of one fleet, and the packed rows of one study.

Also what a row must have to be read as one of ours, whoever wrote it: another version, or a hand.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit._util.errors import TacitError
from tacit._util.parsing import MEGABYTE, parse_json, read_bounded
from tacit.studies.describe.spec import LATER, RunSpec, canonical, digest

Row = dict[str, Any]
Meta = dict[str, Any]
# Sizes beyond which a file is not ours, so that nothing larger is ever read.
MOST_BYTES = {"meta.json": MEGABYTE, "rows.jsonl": 16 * MEGABYTE, "packed": 256 * MEGABYTE}
MOST_LINES = 10_000  # of a rows file: a fleet has a few dozen runs
MOST_CONTAINERS = 100  # lists and tables of a row: it has 8
PACKED_FORMAT = 1
ABSENT = (FileNotFoundError, NotADirectoryError)
MEASURED = (  # the columns of results: a number, or null for a run that diverged
    "diverged_at", "updates", "epochs", "best_test_accuracy", "final_test_accuracy", "best_train_accuracy",
    "final_train_accuracy", "full_loss", "implicit_regularizer",
)  # fmt: skip
# Columns of later versions (`Training._row` makes them). A row that was stored before them is read with null there.
MEASURED_LATER: tuple[str, ...] = ()
STATUSES = ("finished", "diverged")
SERIES = ("updates", "epochs", "test_accuracy", "train_accuracy", "full_loss")  # of `history`


class Damage(str):
    """Why a file is not trusted, as the end of a sentence."""


@dataclass(frozen=True)
class RowFile:
    """The rows of one file, as they were written, and the facts about the fleets that trained them."""

    rows: tuple[Row, ...]
    metas: tuple[Meta, ...]


def encode_rows(rows: Sequence[Row]) -> bytes:
    """One JSON object per line; equal rows have equal bytes."""
    return "".join(canonical(row) + "\n" for row in rows).encode()


def read_fleet(folder: Path) -> RowFile | Damage | None:
    """The rows of a finished fleet in `folder`; None when it is not finished; Damage when they cannot be trusted."""
    content = read_or_damage(folder / "rows.jsonl", most=MOST_BYTES["rows.jsonl"])
    if not isinstance(content, bytes):
        return content
    meta = read_meta(folder)
    if meta is None:
        return Damage("has no readable meta.json beside it, so its checksum is unknown")
    if hashlib.sha256(content).hexdigest() != meta.get("rows_sha256"):
        return Damage("does not match its checksum")
    if content.count(b"\n") + content.count(b"\r") > MOST_LINES:
        return Damage(f"has more than {MOST_LINES} lines")
    rows = _parse_rows(content.splitlines())
    if isinstance(rows, Damage):
        return rows
    if digest([row["run"] for row in rows]) != folder.name:
        return Damage("holds other runs than its fleet")
    return RowFile(tuple(rows), (meta,))


def read_meta(folder: Path) -> Meta | None:
    """The facts of a fleet's meta.json; None when it is absent or damaged."""
    content = read_or_damage(folder / "meta.json", most=MOST_BYTES["meta.json"])
    try:
        found = parse_json(content) if isinstance(content, bytes) else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def encode_packed(rows: Sequence[Row], metas: Sequence[Meta]) -> bytes:
    """The gzip of: a line of facts with the fleets, a line per row, a line with the SHA-256 of all lines before it.

    Equal rows and facts give equal bytes: gzip's header holds no time and no name.
    """
    head = canonical({"format": PACKED_FORMAT, "rows": len(rows), "fleets": list(metas)}) + "\n"
    content = head.encode() + encode_rows(rows)
    content += (canonical({"sha256": hashlib.sha256(content).hexdigest()}) + "\n").encode()
    return gzip.compress(content, 9, mtime=0)


def read_packed(path: Path) -> RowFile | Damage | None:
    """The rows of a packed file; None when there is none; Damage when they cannot be trusted."""
    content = read_or_damage(path, most=MOST_BYTES["packed"])
    if not isinstance(content, bytes):
        return content
    sha256, held, rows, metas = hashlib.sha256(), b"", [], []
    try:
        for number, line in enumerate(_unpacked_lines(content)):
            if number == 1:  # `held` is the line before: only the next one shows that it is not the last
                head = parse_json(held)
                if head["format"] != PACKED_FORMAT:
                    return Damage(f"has format {head['format']!r}; this tacit reads format {PACKED_FORMAT}")
                metas = [meta for meta in head["fleets"] if isinstance(meta, dict)]
            elif number > 1:
                rows.append(parse_json(held, most_containers=MOST_CONTAINERS))
                wrong = row_problem(rows[-1], number)
                if wrong is not None:
                    return Damage(wrong)
            sha256.update(held)
            held = line
        matches = parse_json(held) == {"sha256": sha256.hexdigest()}
    except (zlib.error, ValueError, KeyError, TypeError):
        return Damage("is not a packed file of rows")
    return RowFile(tuple(rows), tuple(metas)) if matches else Damage("does not match its checksum")


def _unpacked_lines(content: bytes) -> Iterator[bytes]:
    """The lines of a gzip file, unpacked piece by piece: a small file may promise gigabytes."""
    unpacking, left = zlib.decompressobj(wbits=31), b""
    while not unpacking.eof:
        piece = unpacking.decompress(content, MEGABYTE)
        content = unpacking.unconsumed_tail
        if not piece and not unpacking.eof:
            raise ValueError("the file is cut")
        *lines, left = (left + piece).split(b"\n")
        if len(left) > MOST_BYTES["rows.jsonl"]:
            raise ValueError("a line is too long")
        yield from (line + b"\n" for line in lines)
    if left or unpacking.unused_data:
        raise ValueError("there is more than lines")


def _parse_rows(lines: Sequence[bytes]) -> list[Row] | Damage:
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(parse_json(line, most_containers=MOST_CONTAINERS))
        except ValueError:
            return Damage("is not JSON Lines")
        wrong = row_problem(rows[-1], number)
        if wrong is not None:
            return Damage(wrong)
    return rows


def row_problem(row: Any, number: int) -> str | None:
    """What keeps the row in line `number` from being read, as the end of a sentence; None when nothing does."""
    if not isinstance(row, dict) or not isinstance(row.get("spec"), dict):
        return f"has no run in line {number}"
    missing = [key for key in ("run", "status", *MEASURED, "history") if key not in row]
    missing += [f"spec.{key}" for key in RunSpec.model_fields if key not in LATER and key not in row["spec"]]
    if missing:
        return f"lacks {', '.join(missing)} in line {number}"
    if digest(row["spec"]) != row["run"]:
        return f"holds a run in line {number} that does not match its hash"
    history = row["history"]
    series = [history.get(name) for name in SERIES] if isinstance(history, dict) else [None]
    measured = (*MEASURED, *MEASURED_LATER)
    wrong = [key for key in measured if not (row.get(key) is None or _is_number(row[key]))]
    wrong += [] if row["status"] in STATUSES else ["status"]
    wrong += [] if all(isinstance(each, list) and all(map(_is_number, each)) for each in series) else ["history"]
    return f"has a {wrong[0]} in line {number} that cannot be read" if wrong else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def complete(row: Row) -> Row:
    """The row with every key of its spec, and every column."""
    return {**dict.fromkeys(MEASURED_LATER), **row, "spec": {**LATER, **row["spec"]}}


def read_or_damage(path: Path, *, most: int) -> bytes | Damage | None:
    """The bytes of a file; None when there is none; Damage when it is not one that tacit writes."""
    with unreadable_is_not_damage(path):
        try:
            return read_bounded(path, most=most)
        except ABSENT:
            return None
        except ValueError as error:
            return Damage(error)


@contextlib.contextmanager
def unreadable_is_not_damage(path: Path) -> Iterator[None]:
    """A disk or a server that fails today may hold a good file: it is refused with a sentence and left as it is."""
    try:
        yield
    except OSError as error:
        raise TacitError(
            f"{path} cannot be read ({error.strerror or error}); it was not changed. Try again, or move it away to "
            "train again."
        ) from None


def json_file(value: Any) -> bytes:
    """JSON that people read."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
