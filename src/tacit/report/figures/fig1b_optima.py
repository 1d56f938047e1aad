"""Figure 1b: the best strength at a small learning rate, and the best learning rate without penalty."""

from __future__ import annotations

import math

from tacit.report import rules
from tacit.report.figure import Drawing, Figure, Quote, Source
from tacit.report.figures.sweeps import (
    EITHER,
    TEST,
    TOTAL,
    VARYING,
    edge_block,
    edge_note,
    sweeps_of,
)
from tacit.report.numbers import minus
from tacit.report.points import Panel, curve, level
from tacit.report.rows import sweeps
from tacit.report.text import percent, power
from tacit.report.verdict import Criterion

PAPER_OPTIMUM = 2.0**-6  # of both, caption of figure 1b


def draw(source: Source) -> Drawing:
    found = sweeps_of(source)
    points, layout = found.points, found.points.layout
    rates, strengths, _ = found.curves(best=source.best)
    total = curve(points, found.strengths, x=TOTAL, label=strengths.label, colour="strength", best=source.best)
    label = f"λ = 0 at ε = {power(found.small)}"
    dotted = level(points, found.baseline, strengths, label=label, best=source.best)
    x = [math.log2(found.value(index)) for index in range(len(points.specs))]
    ratio = minus(layout.peak(x, found.strengths), layout.peak(x, found.rates))
    best_rate, best_strength = found.best(found.rates), found.best(found.strengths)
    edges = found.at_edges()
    flat = (
        ""
        if edges or not math.isnan(ratio.interval().low)
        else "a curve has no peak in these runs; it needs a wider grid"
    )
    return Drawing(
        panels=(
            Panel((rates, strengths, dotted), EITHER, TEST, marks=((PAPER_OPTIMUM, "paper’s best ε and λ"),)),
            Panel((rates, total), TOTAL.label, TEST),
        ),
        says=f"First: test accuracy against ε at λ = 0, and against λ at ε = {power(found.small)}. "
        "Then: the same runs against λ + ε, the strength that theory says they feel.",
        seen=f"Test accuracy peaks at ε = {power(found.value(best_rate))} ({percent(layout.means[best_rate])}) and at "
        f"λ = {power(found.value(best_strength))} ({percent(layout.means[best_strength])}); λ = 0 at the small rate "
        f"gives {percent(layout.means[found.baseline])}. The number compares the peaks of parabolas through the "
        "highest points and their neighbours." + edge_note(edges),
        criteria=(
            Criterion(
                ratio, "= log₂(best λ / best ε)", "within", rules.SAME_FACTOR,
                blocked=edge_block(edges) or flat, paper=0.0,
            ),
        ),
    )  # fmt: skip


FIGURE = Figure(
    id="1b",
    title="Two ways to the same test accuracy",
    shows="test accuracy against ε and against λ; also against λ + ε",
    claim="The strength that is best at a small learning rate equals the best learning rate without penalty.",
    quote=Quote(
        "The optimal regularization coefficient λ_opt = 2⁻⁶ is equal to the optimal learning rate ε_opt = 2⁻⁶.",
        "caption of figure 1b",
    ),
    reads=sweeps,
    varying=VARYING,
    paper="best ε = 2⁻⁶, best λ = 2⁻⁶ at ε = 2⁻⁹",
    small_rate=True,
    draw=draw,
)
