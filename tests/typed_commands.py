"""`tacit …` as a user types it, in this process: the fixture `typed` of conftest.py returns how the command ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ended:
    """A command's exit code, and what it wrote."""

    code: int
    out: str
    err: str

    def refusal(self) -> str:
        """The one sentence of a command that refused its input."""
        assert self.code == 2, self.err
        assert self.err.startswith("tacit: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err


Typed = Callable[..., Ended]
