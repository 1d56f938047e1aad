"""A verdict: what the paper claims, the numbers that decide, and what follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tacit._util.plural import counted
from tacit.report import rules
from tacit.report.numbers import LEVEL, Interval, Number

Outcome = Literal["agrees", "disagrees", "undecided"]
OUTCOMES: tuple[Outcome, ...] = ("agrees", "disagrees", "undecided")
EQUIVALENCE_LEVEL = 0.90  # the interval that belongs to two one-sided tests at 5 %
MOST_SEEDS = 99  # more than that is not advice


@dataclass(frozen=True)
class Criterion:
    """One number and what it has to be: above a bound, below it, or within ± the bound.

    `blocked` is a reason why more seeds would not help, such as a best point at the end of its grid; the criterion is
    undecided then. A missing number is NaN, with the reason there. `paper` is the paper's own number in the same unit,
    if it gives one.
    """

    number: Number
    unit: str
    kind: Literal["above", "below", "within"]
    bound: float
    name: str = ""  # tells the parts of a claim apart
    digits: int = 1
    blocked: str = ""
    paper: float | None = None
    points: int | None = None  # that a distance between curves was taken at

    def outcome(self, *, parts: int = 1) -> Outcome:
        """`parts`: of how many criteria this is one; each of them alone could make the claim disagree by chance."""
        wide = self.number.interval(1 - (1 - LEVEL) / parts)
        if self.blocked or math.isnan(wide.low) or math.isnan(wide.value):
            return "undecided"
        plain = self.number.interval()
        if self.kind == "within":
            narrow = self.number.interval(EQUIVALENCE_LEVEL)
            if -self.bound <= narrow.low and narrow.high <= self.bound:
                return "agrees"
            return "disagrees" if wide.low > self.bound or wide.high < -self.bound else "undecided"
        sign = 1 if self.kind == "above" else -1
        if min(sign * plain.low, sign * plain.high) > sign * self.bound:
            return "agrees"
        return "disagrees" if max(sign * wide.low, sign * wide.high) < sign * self.bound else "undecided"

    @property
    def slack(self) -> float:
        """How far the number lies on the side of agreement, in units of the criterion."""
        if self.kind == "within":
            return self.bound - abs(self.number.value)
        return (self.number.value - self.bound) * (1 if self.kind == "above" else -1)

    @property
    def certainty(self) -> float:
        """`slack` in half-widths of the interval: above 1 agrees, below −1 disagrees, roughly."""
        half = self._half_width()
        return self.slack / half if half > 0 else math.copysign(math.inf, self.slack)

    @property
    def seeds_needed(self) -> int | None:
        """With how many seeds an interval of this centre would decide: its width falls with their square root."""
        half = self._half_width()
        if self.blocked or not math.isfinite(half) or not self.slack or not self.number.seeds:
            return None
        return max(self.number.seeds + 1, math.ceil(self.number.seeds * (half / self.slack) ** 2))

    def _half_width(self) -> float:
        """The distance from the number to the end of its interval that lies towards the bound."""
        value = self.number.value
        level = EQUIVALENCE_LEVEL if self.kind == "within" and self.slack > 0 else LEVEL
        found = self.number.interval(level)
        upwards = (value >= 0) == (self.slack > 0) if self.kind == "within" else value < self.bound
        return found.high - value if upwards else value - found.low

    @property
    def rule(self) -> str:
        bound = f"{self.bound:.{max(self.digits, 0 if self.bound == int(self.bound) else 1)}f}".rstrip("0").rstrip(".")
        if self.kind == "within":
            return f"the 90 % interval lies in ±{bound} (two one-sided tests at 5 %)"
        return f"the 95 % interval lies {self.kind} {bound or '0'}"

    @property
    def text(self) -> str:
        if math.isnan(self.number.value):
            return f"no number: {self.blocked}" if self.blocked else "no number"
        return f"{self.number.interval().text(self.digits)} {self.unit}".strip()


@dataclass(frozen=True)
class Verdict:
    """What is concluded about one figure: all criteria together, and the one that decides."""

    claim: str
    seen: str
    criteria: tuple[Criterion, ...]
    quote: str = ""
    where: str = ""

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(criterion.outcome(parts=len(self.criteria)) for criterion in self.criteria)

    @property
    def outcome(self) -> Outcome:
        """One criterion that fails decides, otherwise one that is open leaves the claim open."""
        found = self.outcomes
        return next((each for each in ("disagrees", "undecided") if each in found), "agrees")  # type: ignore[return-value]

    @property
    def few(self) -> str:
        """What a decided claim rests on, if that is less than the rules ask for; empty otherwise."""
        if self.outcome == "undecided":
            return ""
        seeds, points = self.deciding.number.seeds, self.deciding.points
        if points is not None and points < rules.FEWEST_POINTS and seeds < rules.ENOUGH_SEEDS:
            return f"{points} points of {seeds} seeds"
        return counted(seeds, "seed") if 0 < seeds < rules.FEWEST_SEEDS else ""

    @property
    def shown_outcome(self) -> Outcome:
        """The outcome on pages and terminals, where what rests on too few runs counts as undecided."""
        return "undecided" if self.few else self.outcome

    @property
    def label(self) -> str:
        return "undecided so far" if self.few else self.outcome

    @property
    def deciding(self) -> Criterion:
        """The criterion that the outcome rests on: of those with this outcome, the one farthest from agreement."""
        same = [c for c, outcome in zip(self.criteria, self.outcomes, strict=True) if outcome == self.outcome]
        return min(same, key=lambda criterion: (not criterion.blocked, criterion.certainty))

    @property
    def number(self) -> Interval:
        return self.deciding.number.interval()

    @property
    def number_text(self) -> str:
        return self.deciding.text

    @property
    def rule(self) -> str:
        """When the claim agrees, and which of several parts decided."""
        rules = list(dict.fromkeys(criterion.rule for criterion in self.criteria))
        if len(self.criteria) == 1:
            return f"Agrees if {rules[0]}."
        every = f"Agrees if, for each of {len(self.criteria)} parts, {rules[0]}" if len(rules) == 1 else (
            "Agrees if " + "; and ".join(f"for {c.name}, {c.rule}" for c in self.criteria)
        )  # fmt: skip
        return f"{every}. The part that decides: {self.deciding.name}."

    @property
    def advice_beside_number(self) -> str:
        """The advice where it stands beside `number_text`, which has the reason for a missing number already."""
        return "" if math.isnan(self.number.value) and self.deciding.blocked else self.advice

    @property
    def advice(self) -> str:
        """For an undecided claim: which way it points, and what would decide it."""
        if self.few:
            way = "agreement" if self.outcome == "agrees" else "disagreement"
            return f"Points towards {way}, on {self.few} only."
        if self.outcome != "undecided":
            return ""
        if self.deciding.blocked:
            return f"Undecided: {self.deciding.blocked}."
        still_open = [c for c, each in zip(self.criteria, self.outcomes, strict=True) if each == "undecided"]
        if math.isnan(self.deciding.number.value):
            return "Undecided: these runs give no number."
        if not math.isfinite(self.deciding.certainty):
            return "Undecided: a number has no interval; it needs at least two seeds at every point."
        way = "agreement" if all(criterion.slack > 0 for criterion in still_open) else "disagreement"
        # To agree, every open part has to be decided; to disagree, one of them.
        choose, parts = (max, still_open) if way == "agreement" else (min, [c for c in still_open if c.slack <= 0])
        count = choose((c.seeds_needed for c in parts if c.seeds_needed is not None), default=None)
        if count is None:
            return f"Points towards {way}."
        return f"Points towards {way}; about {count} seeds would decide it." if count <= MOST_SEEDS else (
            f"Points towards {way}, but so close to the bound that more than {MOST_SEEDS} seeds would be needed."
        )  # fmt: skip
