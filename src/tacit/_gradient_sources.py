"""Who put something else than a plain gradient into `.grad`: penalties say so, and whoever reads gradients can ask."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakSet

from torch import Tensor


class GradientSource:
    """One penalty or optimizer. It says at each step what `.grad` of its parameters holds, or that it is plain."""

    def __init__(self) -> None:
        self.parameters: set[int] = set()  # by id: the owner of this object keeps them alive
        self.content: str | None = None  # completes the sentence "the gradients …"
        _SOURCES.add(self)

    def owns(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = {id(parameter) for parameter in parameters}


_SOURCES: WeakSet[GradientSource] = WeakSet()


def content_since_last_question(parameters: Iterable[Tensor]) -> str | None:
    """What the gradients of these parameters hold, if it is nothing plain; asking forgets it, once per step."""
    wanted = {id(parameter) for parameter in parameters}
    found = None
    for source in _SOURCES:
        if source.content is not None and not wanted.isdisjoint(source.parameters):
            found, source.content = source.content, None
    return found
