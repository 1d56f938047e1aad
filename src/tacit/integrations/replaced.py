"""An attribute of somebody else's object, replaced for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, `owner.name` is `value`; afterwards what it was, whether the object had it or its class."""
    attributes = vars(owner)  # not setattr: a module of Fabric hands attributes on to what it wraps
    before = {name: attributes[name]} if name in attributes else {}
    attributes[name] = value
    try:
        yield
    finally:
        attributes.pop(name, None)
        attributes.update(before)


def nothing(*arguments: Any, **named: Any) -> None:
    """In place of a function that logs."""
