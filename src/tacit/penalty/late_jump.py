"""A fixed strength that jumps up late in a run: one warning.

A network that has trained without a penalty, or with a small one, has sharpened to the edge of plain steps. A strength
that is fine from the first step on can throw it out there: in a pilot, switched on at half of the run, it lost 3 of 4.
"""

from __future__ import annotations

import logging

EARLY = 20  # steps: what happens before is a beginning, and no jump
JUMP = 8.0  # times the strength of the last penalised step; a cubic ramp from 0 doubles its step to 8 times at most
GROWING = 1.25  # the first two strengths of a ramp have at least this quotient: √2 that of a root, 2 a linear one
_log = logging.getLogger("tacit")


class LateJump:
    """Sees the strengths that a schedule gives, one for each step, and warns once.

    A jump, after the first 20 steps that this object saw, is
    - a strength of more than 8 times the one before, steps of strength 0 left out, or
    - the first strength above 0 at all, unless the next step has at least 1.25 times that: so begins a ramp.
    """

    def __init__(self) -> None:
        self.steps, self.last_step = 0, -1
        self.before = 0.0  # the last strength above 0
        self.first: tuple[int, float] | None = None  # step and value of a late first strength, until the next step
        self.warned = False

    def see(self, step: int, strength: float) -> None:
        if self.warned or step == self.last_step:  # calls that accumulate one update have one step
            return
        late = self.steps >= EARLY
        self.steps, self.last_step = self.steps + 1, step
        if self.first is not None:
            (at, first), self.first = self.first, None
            if strength < GROWING * first:
                self._warn(0.0, first, at)
                return
        if strength == 0:
            return
        if late and self.before == 0:
            self.first = step, strength
        elif late and strength > JUMP * self.before:
            self._warn(self.before, strength, step)
        self.before = strength

    def _warn(self, old: float, new: float, step: int) -> None:
        self.warned = True
        _log.warning(
            "GradientPenalty: the strength jumps from %g to %g at step %d, which may throw a trained network out of "
            "where it is; let it rise over some hundred steps, penalise the first part of the run with "
            "tacit.schedules.early, or use tacit.Relative or largest_ratio=1.", old, new, step,
        )  # fmt: skip
