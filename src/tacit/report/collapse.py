"""Figures 3a, 3b, 6b, 6c, 7a and 7b: do curves fall onto each other against one variable and not against another?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tacit.report import verdict as rules
from tacit.report.collapse_score import Collapse, collapse
from tacit.report.ensemble import Row, repeated, select
from tacit.report.figure import Curve, Figure, Panel, caption, score_curve
from tacit.report.selection import (
    APPENDIX_D,
    SGD,
    VARIABLES,
    MissingRowsError,
    Source,
    Variable,
    alike,
    epochs_of,
    plain,
    planned_updates,
    small_rate,
)
from tacit.report.strengths import TEST, figure
from tacit.report.verdict import Verdict, above, below, both


@dataclass(frozen=True)
class Question:
    """Which variable should collapse the curves, which rival should not, and what tells the curves apart."""

    x: Variable
    rival: Variable
    curve: str
    symbol: str
    colour: str

    def curves(self, source: Source, rows: Sequence[Row], *, against: Variable) -> tuple[Curve, ...]:
        labels = sorted({row["spec"][self.curve] for row in rows})
        return tuple(
            score_curve(
                source,
                [row for row in rows if row["spec"][self.curve] == label],
                x=against.of,
                label=f"{self.symbol} = {label}",
                colour=f"{self.colour}{label}",
            )
            for label in labels
        )

    def collapse(self, source: Source, rows: Sequence[Row]) -> Collapse:
        """The comparison on the points that count: those with several runs that learned their training set."""
        curves, rivals = self.curves(source, rows, against=self.x), self.curves(source, rows, against=self.rival)
        chosen = [
            (number, index)
            for number, curve in enumerate(curves)
            for index in repeated(curve.drawn)
            if curve.points[index].counts
        ]
        if not chosen:
            raise MissingRowsError("needs points whose runs reach 90 % training accuracy; the rows at hand have none.")
        points = select([(curves[number].drawn, index) for number, index in chosen])
        return collapse(
            points,
            curve=[number for number, _ in chosen],
            x=[curves[number].x[index] for number, index in chosen],
            # Within one curve the two variables differ by a factor, so points keep their places.
            rival=[rivals[number].x[index] for number, index in chosen],
        )


RATES = Question(VARIABLES["temperature"], VARIABLES["learning_rate"], "batch_size", "B", "batch")
STRENGTHS = Question(VARIABLES["strength_ratio"], VARIABLES["strength"], "batch_size", "B", "batch")
BARE = Question(VARIABLES["bare_learning_rate"], VARIABLES["effective_learning_rate"], "inner_steps", "n", "steps")


def collapse_figure(
    id: str, title: str, source: Source, rows: list[Row], question: Question, *, claim: str, says: str, by: str
) -> Figure:
    """Two panels, the variable and its rival, and a verdict by the collapse score or by the gap between curves."""
    if len({row["spec"][question.curve] for row in rows}) < 2:
        raise MissingRowsError(f"needs at least two values of {question.curve}; the rows at hand have fewer.")
    found = question.collapse(source, rows)
    panels = tuple(
        Panel(question.curves(source, rows, against=variable), variable.label, TEST, title=f"against {variable.symbol}")
        for variable in (question.x, question.rival)
    )
    x, rival = question.x.symbol, question.rival.symbol
    seen = (
        f"On {found.points} points, the other curves at equal {x} predict a share {found.score.text(2)} of the total "
        f"variation, those at equal {rival} {found.rival_score.text(2)} (1 is a perfect collapse); at equal {x} a "
        f"curve lies {100 * found.gap.value:.1f} points from the others, at equal {rival} "
        f"{100 * found.rival_gap.value:.1f}."
    )
    if by == "score":
        verdict = Verdict(
            claim,
            seen,
            found.score,
            f"= collapse score of {x}",
            f"agrees if the score's interval lies above {rules.EXPLAINS} and its advantage over that of {rival}, "
            f"{found.advantage.text(2)}, above 0",
            both(above(found.score, rules.EXPLAINS), above(found.advantage, 0.0)),
            digits=2,
        )
    else:
        verdict = Verdict(
            claim,
            seen,
            found.gap_ratio,
            f"= gap at equal {x} over gap at equal {rival}",
            f"agrees if the whole interval lies below {rules.EXPLAINS}: half the distance or less",
            below(found.gap_ratio, rules.EXPLAINS),
            digits=2,
        )
    return figure(id, title, panels, verdict, caption(source, rows, says=says, pale=True), rows)


def figure_3a(source: Source) -> Figure:
    return collapse_figure(
        "3a",
        "Batch sizes collapse on ε/B",
        source,
        _plain(source, SGD),
        RATES,
        by="score",
        claim="Different batch sizes reach the same test accuracy when ε/B is the same and B is not too large.",
        says="Test accuracy of several batch sizes at a fixed number of epochs, against ε/B and against ε.",
    )


def figure_3b(source: Source) -> Figure:
    return collapse_figure(
        "3b",
        "Batch sizes collapse on λ/B",
        source,
        _penalized(source, SGD),
        STRENGTHS,
        by="score",
        claim="At a small learning rate, different batch sizes reach the same test accuracy when λ/B is the same.",
        says="Test accuracy of several batch sizes at one small ε and a fixed number of updates, against λ/B and λ.",
    )


def figure_6b(source: Source) -> Figure:
    return collapse_figure(
        "6b",
        "Batch sizes and ε/B, appendix D",
        source,
        _plain(source, APPENDIX_D),
        RATES,
        by="gap",
        claim="An MLP reaches similar accuracies at different batch sizes when ε/B is the same.",
        says="Test accuracy of several batch sizes at a fixed number of epochs, judged by the distance between curves.",
    )


def figure_6c(source: Source) -> Figure:
    return collapse_figure(
        "6c",
        "Batch sizes and λ/B, appendix D",
        source,
        _penalized(source, APPENDIX_D),
        STRENGTHS,
        by="gap",
        claim="An MLP reaches similar accuracies at different batch sizes when λ/B is the same (smaller batches "
        "slightly higher ones).",
        says="Test accuracy of several batch sizes at one small ε and a fixed number of updates, judged by the "
        "distance between curves.",
    )


def _plain(source: Source, protocol: dict[str, Any]) -> list[Row]:
    return alike(source.where(strength=0.0), varying=("learning_rate", "batch_size"), **protocol)


def _penalized(source: Source, protocol: dict[str, Any]) -> list[Row]:
    rows = source.where(strength=lambda value: value > 0, learning_rate=small_rate(source.rows))
    return alike(rows, varying=("strength", "batch_size"), length="updates", **protocol)


def at_epochs(source: Source, protocol: dict[str, Any]) -> tuple[list[Row], str]:
    """Runs of n-step SGD of one number of epochs, and that number in words."""
    wanted = source.options.get("epochs")
    rows = [row for row in plain(source).rows if wanted is None or epochs_of(row) == wanted]
    alike(rows, varying=N_STEP, **protocol)
    return rows, f"{epochs_of(rows[0]):g} epochs" if rows else ""


def at_updates(source: Source, protocol: dict[str, Any]) -> tuple[list[Row], str]:
    """Runs of n-step SGD of one number of updates, and that number in words."""
    wanted = source.options.get("updates")
    rows = [row for row in plain(source).rows if wanted is None or planned_updates(row) == wanted]
    alike(rows, varying=N_STEP, length="updates", **protocol)
    return rows, f"{planned_updates(rows[0])} parameter updates" if rows else ""


N_STEP = ("learning_rate", "inner_steps")
DECAY: dict[str, Any] = {"order": "shuffled", "schedule": "paper_decay", "strength": 0.0}
CONSTANT: dict[str, Any] = {**DECAY, "schedule": "constant", "model": "mlp", "weight_decay": 0.0}


def figure_7a(source: Source) -> Figure:
    rows, length = at_epochs(source, CONSTANT)
    return collapse_figure(
        "7a",
        "n-step SGD collapses on α, fixed epochs",
        source,
        rows,
        BARE,
        by="score",
        claim="With n updates per minibatch and fixed epochs, test accuracy depends on the bare rate α, not on nα.",
        says=f"n-step SGD at a constant rate for {length}, against α and against nα.",
    )


def figure_7b(source: Source) -> Figure:
    rows, length = at_updates(source, CONSTANT)
    return collapse_figure(
        "7b",
        "n-step SGD collapses on α, fixed updates",
        source,
        rows,
        BARE,
        by="score",
        claim="With n updates per minibatch and a fixed number of them in all, test accuracy depends on α, not on nα.",
        says=f"n-step SGD at a constant rate for {length}, against α and against nα.",
    )
