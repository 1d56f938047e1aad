"""Checks of arguments that many functions take; a wrong one raises `InputError` with its name and value."""

from __future__ import annotations

import math
import operator
from typing import Any

from tacit._util.errors import InputError


def whole_number(name: str, value: Any, *, at_least: int | None = None, remedy: str = "") -> int:
    """`value` as an int; numpy's integers and 0-dimensional integer tensors count, booleans and 2.0 do not."""
    wanted = "a whole number" if at_least is None else f"a whole number of at least {at_least}"
    sentence = f"{name}={value!r}; expected {wanted}.{' ' + remedy if remedy else ''}"
    if isinstance(value, bool):
        raise InputError(sentence)
    try:
        found = operator.index(value)
    except TypeError:
        raise InputError(sentence) from None
    if at_least is not None and found < at_least:
        raise InputError(sentence)
    return found


def finite_number(name: str, value: Any, *, positive: bool = False) -> float:
    """`value` as a float that is finite and not negative; above zero when `positive`."""
    wanted = "a positive number" if positive else "a finite number that is not negative"
    sentence = f"{name}={value!r}; expected {wanted}."
    if isinstance(value, (bool, str)):
        raise InputError(sentence)
    try:
        found = float(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor with several elements
        raise InputError(sentence) from None
    if not math.isfinite(found) or found < 0 or (positive and found == 0):
        raise InputError(sentence)
    return found
