"""Who put something else than a plain gradient into `.grad`: penalties say so, and whoever reads gradients can ask."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from weakref import WeakSet

from torch import Tensor


class GradientSource:
    """One penalty or optimizer. It says what `.grad` of its parameters holds when that is no plain gradient."""

    def __init__(self) -> None:
        self.parameters: set[int] = set()  # by id: the owner of this object keeps them alive
        self.call = 0  # the number, among those of all sources, of the last call that put something else there
        self.content = ""  # completes the sentence "the gradients …"
        _SOURCES.add(self)

    def owns(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = {id(parameter) for parameter in parameters}

    def put(self, content: str) -> None:
        self.call, self.content = next(_CALLS), content


_SOURCES: WeakSet[GradientSource] = WeakSet()
_CALLS = itertools.count(1)


def last_call(parameters: Iterable[Tensor]) -> tuple[int, str]:
    """The last call that put something else than a plain gradient into `.grad` of these parameters: number, content.

    A reader compares the number with that at its last step: of several calls that add up to one gradient, each counts.
    """
    wanted = {id(parameter) for parameter in parameters}
    found = [(source.call, source.content) for source in _SOURCES if not wanted.isdisjoint(source.parameters)]
    return max(found, default=(0, ""))
