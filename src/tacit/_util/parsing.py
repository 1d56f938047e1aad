"""Files of facts: read up to a size, parsed into plain values, or refused with ValueError."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

MEGABYTE = 2**20
MOST_CONTAINERS = 100_000  # an empty list costs 2 bytes of text and 64 of memory


def read_bounded(path: Path, *, most: int) -> bytes:
    """The bytes of a file of at most `most` bytes; ValueError for a larger one, OSError as the system says."""
    with open(path, "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size > most:
            raise ValueError(f"has {size} bytes; expected at most {most}")
        return opened.read()


def parse_json(content: bytes, *, most_containers: int = MOST_CONTAINERS) -> Any:
    """The value of UTF-8 JSON, or ValueError. Refused too: NaN, infinities (also as 1e999), and a key given twice."""
    if content.count(b"[") + content.count(b"{") > most_containers:
        raise ValueError(f"more than {most_containers} lists and tables")
    try:
        return json.loads(
            content.decode("utf-8"), object_pairs_hook=_table, parse_constant=_number, parse_float=_number
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key is given twice")
    return table


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no finite number")
    return value
