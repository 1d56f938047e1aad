"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "fleet"), counted(2, "fleet")
    ('1 fleet', '2 fleets')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
