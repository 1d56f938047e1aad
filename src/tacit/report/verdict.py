"""A verdict: the paper's claim, what is seen, the number that decides, and by which rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tacit.report.ensemble import Interval

Outcome = Literal["agrees", "disagrees", "undecided"]

# The thresholds of every verdict. The quick runs (seeds 0 to 2) were seen while rules were written; the standard runs
# have seeds 10 to 16 and were not. Accuracies are shares, not per cent.
MATERIAL = 0.01  # one point is ten of the 1,000 test signals: a smaller gain is not worth a sentence
ALIKE = 0.02  # "similar accuracies": two points, a fifth of what the learning rate gains on this task
EXPLAINS = 0.5  # a variable that collapses curves predicts more than half of the total variation of their points
SAME_FACTOR = 1.0  # "equal" optima: within one step of a grid of powers of two (log₂ units)
RECOVERS = 0.75  # "a similar influence": three quarters of the gain or more
LEARNED = 0.9  # final training accuracy from which a point counts in a collapse: see `selection.learned`


# Simulated with seven points of equal height and a scatter of 1.2 points beside the seed's: see LOG.md.
CHOSEN = "the best point is chosen on the same runs, which favours a gain by up to about a point on average"


@dataclass(frozen=True)
class Verdict:
    """What is concluded about one figure. `number` is in the unit that `unit` names; `rule` says how it decides."""

    claim: str
    seen: str
    number: Interval
    unit: str
    rule: str
    outcome: Outcome
    digits: int = 1
    quote: str = ""
    where: str = ""

    @property
    def number_text(self) -> str:
        return f"{self.number.text(self.digits)} {self.unit}".strip()


def gain_rule() -> str:
    """How a gain at a chosen best point decides, with what the choice does to it."""
    return f"agrees if the whole interval lies above {100 * MATERIAL:.0f} point; {CHOSEN}"


def edge_note(at_edge: Mapping[str, bool]) -> str:
    """A sentence when a best value is at an end of its grid, where the true one may lie beyond."""
    names = [name for name, found in at_edge.items() if found]
    if not names:
        return ""
    return f" At an end of its grid: the best {' and '.join(names)}, so the true one may lie beyond."


def above(number: Interval, threshold: float) -> Outcome:
    """Agrees when the whole interval lies above the threshold, disagrees when it lies below, else undecided."""
    if math.isnan(number.low) or math.isnan(number.value):
        return "undecided"
    if number.low > threshold:
        return "agrees"
    return "disagrees" if number.high < threshold else "undecided"


def below(number: Interval, threshold: float) -> Outcome:
    return above(Interval(-number.value, -number.high, -number.low), -threshold)


def within(number: Interval, margin: float) -> Outcome:
    """Agrees when the whole interval lies in [−margin, margin], disagrees when all of it lies outside, on one side."""
    if math.isnan(number.low) or math.isnan(number.value):
        return "undecided"
    if -margin <= number.low and number.high <= margin:
        return "agrees"
    return "disagrees" if number.low > margin or number.high < -margin else "undecided"


def both(*outcomes: Outcome) -> Outcome:
    """A claim with parts: one part that fails decides, otherwise one that is open leaves it open."""
    for decisive in ("disagrees", "undecided"):
        if decisive in outcomes:
            return decisive  # type: ignore[return-value]
    return "agrees"


def scaled(number: Interval, factor: float) -> Interval:
    """The same number in another unit; shares become points with factor 100."""
    ends = sorted([number.low * factor, number.high * factor])
    return Interval(number.value * factor, ends[0], ends[1])


def points(number: Interval) -> Interval:
    """A share of the test set in percentage points."""
    return scaled(number, 100.0)
