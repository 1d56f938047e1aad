"""What figures 3a, 3b, 6b, 6c, 7a and 7b share: do curves fall onto each other against one variable, not another?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.report import rules
from tacit.report.collapse_score import FEWEST_SCORED, Collapse, collapse
from tacit.report.figure import Drawing, Source, need
from tacit.report.figures.sweeps import TEST
from tacit.report.points import Panel, Points, curve
from tacit.report.rows import VARIABLES, Variable
from tacit.report.verdict import Criterion


@dataclass(frozen=True)
class Question:
    """Which variable should collapse the curves, which rival should not, and what tells the curves apart."""

    x: Variable
    rival: Variable
    curve: str
    symbol: str
    colour: str
    only_learned: bool  # whether a point must be nearly through with training to count: see `rules.LEARNED`

    def panel(self, source: Source, points: Points, against: Variable, *, pale: bool = True) -> Panel:
        counted = self.counted(points) if pale else None
        curves = tuple(
            curve(
                points, points.where(**{self.curve: value}), x=against, label=f"{self.symbol} = {value}",
                colour=f"{self.colour}{value}", best=source.best, counts=counted,
            )
            for value in self.values(points)
        )  # fmt: skip
        return Panel(curves, against.label, TEST)

    def values(self, points: Points) -> list[int]:
        return sorted({spec[self.curve] for spec in points.specs})

    def counted(self, points: Points) -> tuple[bool, ...]:
        return points.learned if self.only_learned else points.layout.trains

    def judged(self, points: Points) -> Collapse:
        """How far the curves lie apart at equal values of the variable and of the rival, on the points that count."""
        chosen = [index for index, counts in enumerate(self.counted(points)) if counts]
        specs = [points.specs[index] for index in chosen]
        return collapse(
            points.layout,
            chosen,
            curve=[spec[self.curve] for spec in specs],
            x=[self.x.of(spec) for spec in specs],
            rival=[self.rival.of(spec) for spec in specs],
        )


RATES = Question(VARIABLES["temperature"], VARIABLES["learning_rate"], "batch_size", "B", "batch", True)
STRENGTHS = Question(VARIABLES["strength_ratio"], VARIABLES["strength"], "batch_size", "B", "batch", False)
BARE = Question(
    VARIABLES["bare_learning_rate"], VARIABLES["effective_learning_rate"], "inner_steps", "n", "steps", True
)


def draw_collapse(source: Source, question: Question, *, says: str) -> Drawing:
    """Two panels, the variable and its rival, and the distance between curves at equal values of each."""
    points = source.points
    need(question.values(points), f"at least two values of {question.curve}", at_least=2)
    counted = question.counted(points)
    need([counts for counts in counted if counts], "points that train")
    found = question.judged(points)
    x, rival = question.x.symbol, question.rival.symbol
    share = "90" if question.only_learned else "75"
    pale = "" if all(counted) else (
        f" Pale points end below {share} % of the highest training accuracy and do not count in the number."
    )  # fmt: skip
    return Drawing(
        panels=tuple(
            question.panel(source, points, variable)
            for variable in (question.x, question.rival)
        ),
        says=says + pale,
        seen=f"On {found.points} points, a curve lies {100 * found.gap:.1f} points from the others at equal {x} and "
        f"{100 * found.rival_gap:.1f} points at equal {rival} (root mean squares, without what noise adds)."
        if found.points
        else f"Fewer than {FEWEST_SCORED} points lie beside other curves, at equal {x} and at equal {rival}.",
        criteria=(
            Criterion(
                found.ratio, f"= distance at equal {x} over that at equal {rival}", "below", rules.COLLAPSES, digits=2,
                points=found.points or None,
                blocked="too few points of different curves lie over each other" if not found.points
                else "the curves lie on each other against both" if math.isnan(found.ratio.value) else "",
            ),
        ),
    )  # fmt: skip
