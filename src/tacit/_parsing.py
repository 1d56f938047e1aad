"""Files that anybody may have written: read with a bound, parsed into plain values, or refused with ValueError.

A study folder, a checkpoint and a study file come from other machines, other hands and bad disks. Whatever is in them,
reading costs bounded memory and ends in a value or in an exception that the caller turns into a sentence.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

MEGABYTE = 2**20
MOST_CONTAINERS = 100_000  # an empty list costs 2 bytes of text and 64 of memory: brackets are counted before parsing
MOST_DEPTH = 40  # our files need 6; deeper ones end the parsers, or whatever walks the value after them
MOST_DOTS = 1000  # in a line of TOML: a.b.c makes a table of each, and Python's parser takes the square of their number
MOST_DIGITS = 20  # of an integer in JSON: all that fit into 64 bits
MOST_BITS = 1000  # of an integer in TOML: it can still be printed, and made a float, by the sentence that refuses it


def read_bounded(path: Path, *, most: int) -> bytes:
    """The bytes of a regular file of at most `most` bytes; ValueError for any other, OSError as the system says.

    Memory is asked for the bytes that the file has and no more, whatever `most` allows; too little of it is an OSError
    too.
    """
    try:
        with open_regular(path) as (opened, size):
            if size > most:
                raise ValueError(f"has {size} bytes; expected at most {most}")
            content = opened.read(size + 1)
    except MemoryError:
        raise OSError(errno.ENOMEM, "no memory for its bytes") from None
    if len(content) != size:
        raise OSError(errno.EBUSY, "it changed while it was read")
    return content


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """A regular file, open for reading, and its size. Folders are an OSError.

    Pipes and devices are a ValueError: they may never end, or keep a reader waiting for ever.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("is not a regular file")
        with open(handle, "rb", closefd=False) as opened:
            yield opened, found.st_size
    finally:
        os.close(handle)


def parse_json(content: bytes, *, most_containers: int = MOST_CONTAINERS) -> Any:
    """The value of UTF-8 JSON that is finite in every sense, or ValueError.

    Refused: NaN, infinities (also as 1e999), integers beyond 64 bits, a key given twice, deep nesting, half a
    surrogate pair, and more lists and tables than `most_containers`.
    """
    if content.count(b"[") + content.count(b"{") > most_containers:
        raise ValueError(f"more than {most_containers} lists and tables")
    try:
        value = json.loads(
            content.decode("utf-8"), object_pairs_hook=_table, parse_constant=_refuse, parse_float=_finite,
            parse_int=_integer,
        )  # fmt: skip
        if b"\\u" in content:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair cannot be written again
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check_depth(value)
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """The table of TOML text, or ValueError (TOMLDecodeError, which names the line, where the text is not TOML)."""
    if text.count("[") + text.count("{") > MOST_CONTAINERS:
        raise ValueError(f"more than {MOST_CONTAINERS} lists and tables")
    if any(line.count(".") > MOST_DOTS for line in text.splitlines()):
        raise ValueError(f"a line has more than {MOST_DOTS} dots")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None
    check_depth(table)
    return table


def check_depth(value: Any) -> None:
    """ValueError for lists and tables nested deeper than MOST_DEPTH, or an integer beyond MOST_BITS."""
    level, depth = [value], 0
    while level:
        if depth > MOST_DEPTH:
            raise ValueError("lists or tables are nested too deeply")
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
            elif isinstance(each, int) and each.bit_length() > MOST_BITS:
                raise ValueError("an integer has hundreds of digits")
        level, depth = below, depth + 1


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key is given twice")
    return table


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError("an integer is too large")
    return int(text)
