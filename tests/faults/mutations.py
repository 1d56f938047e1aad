"""Seeded mutations of good inputs: of bytes, and of the values that JSON and TOML hold."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

TOKENS: tuple[bytes, ...] = (
    b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf", b"1e999", b"-0", b"-1", b"0", b"1" * 30, b"9" * 5000,
    b"0x" + b"f" * 5000, b"2^99999", b'"2^-9"', b"1979-05-27", b"1979-05-27T07:32:00Z", b"true", b"null", b"[]", b"{}",
    b'""', b'"\\ud800"', b'"\\u0000"', b"\\ud83d", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xe2\x80\xa8",
    b"../../x", b"/etc/passwd", b"[" * 3000, b"{" * 3000, b'{"a":' * 1500, b"a." * 1500, b"\n", b"\r\n", b"#", b'"',
    b"'", b'"""', b",", b"=", b":", b"[[", b"]]", b"__metadata__", b"0:3", b"3:0", b"%s%n", b" " * 5000,
    b"\xef\xbb\xbf",
)  # fmt: skip
LENGTHS = (0, 1, 7, 8, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 10**30, -(10**30), 0.0, -0.0, 0.5, 1e300, -1e-300,
    float("nan"), float("inf"), -float("inf"), "", "a", "../../x", "/etc/passwd", "\x00", "\ud800", "x" * 10_000,
    "2^-9", "2^99999",
    "0:3", "NaN", [], {}, [[]], [None], {"": None}, {"a": {"b": {}}}, [0] * 1000, ["0:3"], [True, 1, 1.0, "1"],
)  # fmt: skip


def bytes_mutated(good: Sequence[bytes], draws: random.Random) -> bytes:
    """One to four small changes of one of the good inputs."""
    content = bytearray(draws.choice(good))
    for _ in range(draws.choice((1, 1, 1, 2, 4))):
        at = draws.randrange(len(content) + 1)
        end = min(len(content), at + draws.choice((1, 2, 4, 8, 50, 500)))
        kind = draws.randrange(9)
        if kind == 0 and content:
            content[at - 1] ^= 1 << draws.randrange(8)
        elif kind == 1:
            del content[at:]
        elif kind == 2:
            del content[at:end]
        elif kind == 3:
            content[at:at] = draws.choice(TOKENS)
        elif kind == 4:
            content[at:end] = draws.choice(TOKENS)
        elif kind == 5:
            content[at:at] = content[at:end] * draws.choice((1, 2, 20))
        elif kind == 6:
            content[at:end] = bytes(end - at)
        elif kind == 7:
            other = draws.choice(good)
            content[at:end] = other[draws.randrange(len(other) + 1) :][: end - at]
        else:  # a length field, wherever formats keep theirs
            size = draws.choice((1, 2, 4, 8))
            where = draws.choice((0, 4, 8, at))
            content[where : where + size] = (draws.choice(LENGTHS) % 2 ** (8 * size)).to_bytes(
                size, draws.choice(("little", "big"))
            )
    return bytes(content)


def value_mutated(good: Any, draws: random.Random) -> Any:
    """A copy of a value of lists and tables with one or two of its parts replaced, removed, renamed or doubled."""
    value = copy.deepcopy(good)
    for _ in range(draws.choice((1, 1, 2))):
        places = list(_places(value))
        if not places:
            return copy.deepcopy(draws.choice(VALUES))
        holder, key = draws.choice(places)
        kind = draws.randrange(6)
        if kind <= 2:
            holder[key] = copy.deepcopy(draws.choice(VALUES))
        elif kind == 3:
            del holder[key]
        elif kind == 4 and isinstance(holder, dict):
            holder[draws.choice(("", "../x", "\x00", "seed", "epochs", "__class__", "é", str(key) + "x"))] = holder.pop(
                key
            )
        elif kind == 5 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            other_holder, other_key = draws.choice(places)
            holder[key] = copy.deepcopy(other_holder[other_key])
    return value


def _places(value: Any) -> Any:
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])
