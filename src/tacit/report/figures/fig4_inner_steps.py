"""Figures 4a, 4b, 4c and 7c: how high n-step SGD gets, at fixed epochs, at fixed updates and over epoch budgets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tacit.report import rules
from tacit.report.figure import Drawing, Figure, Quote, Source, need
from tacit.report.figures.collapses import BARE
from tacit.report.figures.fig7_bare_rate import CONSTANT, N_STEP
from tacit.report.figures.sweeps import TEST, edge_note
from tacit.report.numbers import Number, minus
from tacit.report.points import Curve, Panel, Points, curve
from tacit.report.rows import VARIABLES, epochs_of, over_budgets, plain, planned_updates
from tacit.report.text import percent, power
from tacit.report.verdict import Criterion

DECAY: dict[str, Any] = {"order": "shuffled", "schedule": "paper_decay"}
EPOCHS = VARIABLES["epochs"]
PAPER_DROP = 4.7  # points from n = 1 to n = 16: 93.5 to 88.8 %, section 4


def tops(points: Points, indices: list[int]) -> dict[int, tuple[int, Number]]:
    """For every n, its highest point among some and the honest height there."""
    steps = sorted({points.specs[index]["inner_steps"] for index in indices})
    need(steps, "at least two values of inner_steps", at_least=2)
    return {
        n: points.layout.highest([index for index in indices if points.specs[index]["inner_steps"] == n]) for n in steps
    }


def edges(points: Points, found: dict[int, tuple[int, Number]]) -> list[str]:
    """The n whose best rate is an end of those tried in the same budget."""
    names = []
    for n, (best, _) in found.items():
        spec = points.specs[best]
        tried = [BARE.x.of(points.specs[i]) for i in points.where(inner_steps=n, epochs=spec["epochs"])]
        if BARE.x.of(spec) in (min(tried), max(tried)):
            names.append(f"α of n = {n}")
    return names


def drop_criterion(found: dict[int, tuple[int, Number]]) -> Criterion:
    first, last = min(found), max(found)
    lost = minus(found[first][1], found[last][1]).scaled(100)
    unit = f"points from n = {first} to n = {last}"
    return Criterion(lost, unit, "above", 100 * rules.MATERIAL, paper=PAPER_DROP)


def draw_heights(source: Source, *, says: str) -> Drawing:
    points = source.points
    found = tops(points, list(range(len(points.specs))))
    heights = "; ".join(
        f"n = {n}: {percent(height.value)} at α = {power(BARE.x.of(points.specs[best]))}"
        for n, (best, height) in found.items()
    )
    return Drawing(
        panels=(BARE.panel(source, points, BARE.x, pale=False),),
        says=says,
        seen=f"Highest test accuracies: {heights}." + edge_note(edges(points, found)),
        criteria=(drop_criterion(found),),
    )


def draw_4a(source: Source) -> Drawing:
    length = f"{epochs_of(source.rows[0]):g} epochs"
    return draw_heights(
        source, says=f"n-step SGD for {length}; the rate is constant for half, then halved every tenth."
    )


def draw_4b(source: Source) -> Drawing:
    length = f"{planned_updates(source.rows[0])} parameter updates"
    return draw_heights(source, says=f"n-step SGD for {length}, so n times fewer epochs, with the same decay.")


# -- over epoch budgets -----------------------------------------------------------------------------------------------
OVER_BUDGETS = "The highest test accuracy over the bare rates tried, against the numbers of epochs that every n has"


def budget_panel(source: Source, points: Points) -> Panel:
    """For every n, the highest test accuracy over α against the number of epochs."""
    curves: list[Curve] = []
    for n in BARE.values(points):
        budgets = sorted({points.specs[index]["epochs"] for index in points.where(inner_steps=n)})
        best = [points.layout.highest(points.where(inner_steps=n, epochs=epochs))[0] for epochs in budgets]
        curves.append(curve(points, best, x=EPOCHS, label=f"n = {n}", colour=f"steps{n}", best=source.best))
    return Panel(tuple(curves), "epochs", TEST)


def draw_4c(source: Source) -> Drawing:
    points = source.points
    found = tops(points, list(range(len(points.specs))))
    heights = "; ".join(
        f"n = {n}: {percent(height.value)} after {points.specs[best]['epochs']} epochs"
        for n, (best, height) in found.items()
    )
    return Drawing(
        panels=(budget_panel(source, points),),
        says=f"{OVER_BUDGETS}, with the paper's decay.",
        seen=f"Highest test accuracy over all rates and over the budgets every n has: {heights}."
        + edge_note(edges(points, found)),
        criteria=(replace(drop_criterion(found), paper=None),),
    )


def draw_7c(source: Source) -> Drawing:
    points = source.points
    criteria = []
    for epochs in sorted({spec["epochs"] for spec in points.specs}):
        found = tops(points, points.where(epochs=epochs))
        first, *others = found
        for n in others:
            lost = minus(found[first][1], found[n][1]).scaled(100)
            name = f"n = {n} at {epochs:g} epochs"
            criteria.append(
                Criterion(lost, f"points below n = {first}: {name}", "within", 100 * rules.ALIKE, name=name)
            )
    listed = "; ".join(f"{criterion.name}: {criterion.number.interval().text()}" for criterion in criteria)
    return Drawing(
        panels=(budget_panel(source, points),),
        says=f"{OVER_BUDGETS}, at constant rates.",
        seen=f"Points lost against n = {min(BARE.values(points))}: {listed}.",
        criteria=tuple(criteria),
    )


FIGURES = (
    Figure(
        id="4a",
        title="n-step SGD at fixed epochs",
        shows="n-step SGD against α, fixed epochs, decaying rate",
        claim="At fixed epochs with a decaying rate, smaller n reach higher test accuracy. (Judged by that height "
        "alone, not by the largest stable rate.)",
        quote=Quote(
            "smaller values of n are stable at larger bare learning rates α, and this enables them to achieve higher "
            "test accuracies",
            "caption of figure 4a",
        ),
        reads=plain,
        varying=N_STEP,
        protocol=DECAY,
        options=("epochs",),
        paper="93.5 % at n = 1, 88.8 % at n = 16: 4.7 points",
        draw=draw_4a,
    ),
    Figure(
        id="4b",
        title="n-step SGD at fixed updates",
        shows="n-step SGD against α, fixed updates, decaying rate",
        claim="At a fixed number of parameter updates with a decaying rate, smaller n reach higher test accuracy. "
        "(Judged by that height alone, not by the largest stable rate.)",
        quote=Quote("Similar conclusions hold when training for a fixed number of updates.", "caption of figure 4b"),
        reads=plain,
        varying=N_STEP,
        protocol=DECAY,
        length="updates",
        options=("updates",),
        draw=draw_4b,
    ),
    Figure(
        id="4c",
        title="n-step SGD over epoch budgets",
        shows="n-step SGD at its best rate over epoch budgets, decaying rate",
        claim="With both the rate and the number of epochs tuned for each n, test accuracy still falls as n grows.",
        quote=Quote(
            "We find that smaller values of n consistently achieve higher test accuracy.", "caption of figure 4c"
        ),
        reads=over_budgets,
        varying=(*N_STEP, "epochs"),
        protocol=DECAY,
        length=None,
        draw=draw_4c,
    ),
    Figure(
        id="7c",
        title="n-step SGD over epoch budgets, appendix D",
        shows="n-step SGD at its best rate over epoch budgets, constant rate",
        claim="On an MLP, different n reach similar test accuracies at their best rates, at any number of epochs.",
        quote=Quote(
            "Different values of n achieve similar test accuracies at their optimal learning rate, across a range of "
            "epoch budgets.",
            "caption of figure 7c, appendix D",
        ),
        reads=over_budgets,
        varying=(*N_STEP, "epochs"),
        protocol=CONSTANT,
        length=None,
        draw=draw_7c,
    ),
)
