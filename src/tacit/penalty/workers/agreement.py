"""What workers compare before they reduce a gradient: one row of numbers each, and the same error on all of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from tacit._util.errors import InputError


def facts_of_step(*, failed: bool, portions: Sequence[int], strength: float, weight: float, handing: int) -> list[int]:
    """One worker's row: examples and their portions, the exact bits of λ and of the weight, models with a gradient."""
    return [int(failed), sum(portions), hash(tuple(portions)) >> 2, _bits(strength), _bits(weight), handing]


def refuse_disagreement(rows: list[list[int]], what: str) -> None:
    """InputError when the rows of all workers differ, or when one of them failed. `what` is about to be reduced."""
    failed, totals, fingerprints, strengths, weights, handing = (list(column) for column in zip(*rows, strict=True))
    if any(failed):
        ranks = ", ".join(str(rank) for rank, flag in enumerate(failed) if flag)
        raise InputError(f"rank {ranks} raised an error in this step; its own message says why, and every rank stops.")
    switch = "or pass check_ranks=False."
    if len(set(fingerprints)) > 1:
        raise InputError(
            f"the ranks have batches of {_listed(totals)} examples (or in different portions); the penalty needs equal "
            f"ones. Use drop_last=True in the loader and the sampler, {switch}"
        )
    for name, column in (("strength", strengths), ("weight", weights)):
        if len(set(column)) > 1:
            values = _listed([_number(bits) for bits in column])
            raise InputError(f"the ranks have {name} {values}; expected one value. Use the same on all, {switch}")
    if len(set(handing)) > 1:
        raise InputError(
            f"{_listed(handing)} wrapped models of the ranks got {what}; expected the same on all. "
            "Make the closure reach the same models on every rank."
        )


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(str(value) for value in values)


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _number(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
