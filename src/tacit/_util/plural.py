"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "fleet"), counted(2, "fleet")
    ('1 fleet', '2 fleets')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ordinal(number: int) -> str:
    """
    >>> [ordinal(n) for n in (1, 2, 3, 4, 11, 22)]
    ['1st', '2nd', '3rd', '4th', '11th', '22nd']
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
