"""One sentence for a value in a study file that is wrong: the key, what was found, what was expected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

NUMBERS = (
    "learning_rate", "strength", "weight_decay", "bare_learning_rate", "relative", "sam_radius", "label_noise",
    "label_smoothing", "penalty_until",
)  # fmt: skip
EXPECTED = {
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of ordinary size",
    "greater_than": "a number greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "a number less than {lt}",
    "less_than_equal": "at most {le}",
    "bool_type": "true or false",
    "literal_error": "{expected}",
    "string_type": "text",
    "dict_type": "a table",
    "list_type": "a table, or a list of tables",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
WHY = {  # the reason belongs to the sentence where a key has one value so far
    "method": "fleets compute the exact penalty by the Gram form alone; other methods are for tacit.GradientPenalty",
}


def error_message(error: ValidationError, *, where: str, known: Iterable[str], grid_keys: Iterable[str] = ()) -> str:
    """The first problem of a pydantic error: the key, what was found, what was expected.

    `known` are the keys that would be right there; those of `grid_keys` may have several values in a grid.
    """
    first = error.errors(include_url=False)[0]
    steps = [str(step)[:60] for step in first["loc"]]  # a key may be as long as its file
    key = ".".join(steps)
    if first["type"] == "extra_forbidden":
        return unknown_key(where, steps[-1], known)
    if first["type"] == "missing":
        return f"{where}: the key {key} is missing; expected it to be given."
    if first["type"] == "value_error":
        return f"{where}: {str(first['ctx']['error']).rstrip('.')}."
    expected = EXPECTED.get(first["type"], "a value of another kind").format(**first.get("ctx", {}))
    if steps[-1] in NUMBERS:
        expected += ', such as 0.002 or "2^-9"'
    if steps[-1] in grid_keys and isinstance(first["input"], list | str) and _is_several(first["input"]):
        expected += "; several values go into [grid]"
    if steps[-1] in WHY:
        expected += f": {WHY[steps[-1]]}"
    return f"{where}: {key} is {shorten(first['input'])}; expected {expected}."


def _is_several(value: list[Any] | str) -> bool:
    return isinstance(value, list) or re.fullmatch(r"\s*\d+:\d+\s*", value) is not None


def unknown_key(where: str, key: str, known: Iterable[str]) -> str:
    known, key = list(known), key if len(key) <= 60 else f"{key[:59]}…"
    close = difflib.get_close_matches(key, known, n=1)
    hint = f" did you mean {close[0]}?" if close else ""
    return f"{where}: the key {key} is unknown;{hint} known keys: {', '.join(known)}."


def shorten(value: Any, *, length: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= length else text[: length - 1] + "…"
