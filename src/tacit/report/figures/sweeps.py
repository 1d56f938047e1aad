"""What figures 1b, 1c, 5a, 5b and 6a share: the rates at λ = 0 and the strengths at one small rate."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.report.figure import Source, need
from tacit.report.points import Curve, Points, Score, accuracy, curve, points_of
from tacit.report.rows import VARIABLES, small_rate
from tacit.report.text import power

RATE, STRENGTH, TOTAL = VARIABLES["learning_rate"], VARIABLES["strength"], VARIABLES["total"]
EITHER = "learning rate ε, or strength λ"
TEST = "highest test accuracy"
VARYING = ("learning_rate", "strength")


@dataclass(frozen=True)
class Sweeps:
    """The points of both sweeps, scored by test accuracy."""

    source: Source
    points: Points
    rates: list[int]
    strengths: list[int]
    baseline: int  # the small rate at λ = 0
    small: float

    @property
    def penalty_label(self) -> str:
        return f"penalty λ at ε = {power(self.small)}"

    def best(self, indices: list[int]) -> int:
        """The point with the highest mean test accuracy."""
        return max(indices, key=lambda index: float(self.points.layout.means[index]))

    def curves(self, score: Score | None = None, *, best: int | None) -> tuple[Curve, Curve, Points]:
        """The two sweeps as curves of another score, and its points."""
        points = points_of(self.source.rows, score or accuracy(self.source.score))
        need(points.specs, "runs that did not diverge")
        rates = curve(
            points, points.where(strength=0.0), x=RATE, label="original loss, against ε", colour="rate", best=best
        )
        strengths = curve(
            points,
            points.where(strength=lambda value: value > 0),
            x=STRENGTH,
            label=self.penalty_label,
            colour="strength",
            best=best,
        )
        return rates, strengths, points

    def at(self, points: Points, index: int) -> int | None:
        """The same grid point among those of another score; None where no run has that score."""
        spec = self.points.specs[index]
        found = points.where(learning_rate=spec["learning_rate"], strength=spec["strength"])
        return found[0] if found else None

    def at_edges(self) -> list[str]:
        """The sweeps whose best point is an end of its grid."""
        found = []
        for symbol, indices, variable in (("ε", self.rates, RATE), ("λ", self.strengths, STRENGTH)):
            places = [variable.of(self.points.specs[index]) for index in indices]
            best = variable.of(self.points.specs[self.best(indices)])
            if best in (min(places), max(places)):
                found.append(symbol)
        return found

    def value(self, index: int) -> float:
        """ε of a point of the first sweep, λ of one of the second."""
        spec = self.points.specs[index]
        return float(spec["strength"] or spec["learning_rate"])


def sweeps_of(source: Source) -> Sweeps:
    points, small = source.points, small_rate(source.rows)
    rates = need(points.where(strength=0.0), "learning rates at λ = 0", at_least=3)
    strengths = need(points.where(strength=lambda value: value > 0), "strengths at a small rate", at_least=3)
    baseline = need(points.where(strength=0.0, learning_rate=small), f"the rate {power(small)} at λ = 0")
    return Sweeps(source, points, rates, strengths, baseline[0], small)


def edge_note(names: list[str]) -> str:
    """A sentence when a best value is an end of its grid, where the true one may lie beyond."""
    return f" At an end of its grid: the best {' and '.join(names)}; the true one may lie beyond." if names else ""


def edge_block(names: list[str]) -> str:
    """Why a claim about a best point stays undecided when that point is an end of its grid."""
    if len(names) > 1:
        return f"the best {' and the best '.join(names)} are ends of their grids; wider grids decide it, not more seeds"
    return f"the best {names[0]} is an end of its grid; a wider grid decides it, not more seeds" if names else ""
