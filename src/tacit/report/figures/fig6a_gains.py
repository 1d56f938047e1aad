"""Figure 6a: what tuning the strength gains, beside what tuning the learning rate gains."""

from __future__ import annotations

from tacit.report import rules
from tacit.report.figure import SGD, Drawing, Figure, Quote, Source
from tacit.report.figures.sweeps import EITHER, TEST, VARYING, edge_note, sweeps_of
from tacit.report.numbers import combine, ratio
from tacit.report.points import Panel, level
from tacit.report.rows import sweeps
from tacit.report.text import percent, power
from tacit.report.verdict import Criterion

APPENDIX_D = {**SGD, "model": "mlp", "weight_decay": 0.0}
# Text on figure 6a.
PAPER_RATE, PAPER_STRENGTH = 2.0**-5, 2.0**-2


def draw(source: Source) -> Drawing:
    found = sweeps_of(source)
    layout = found.points.layout
    rates, strengths, _ = found.curves(best=source.best)
    base = layout.point(found.baseline)
    best_rate, top_rate = layout.highest(found.rates)
    best_strength, top_strength = layout.highest(found.strengths)
    by_rate, by_strength = (layout.means[index] - base.value for index in (best_rate, best_strength))
    # (top λ − base) − r (top ε − base) = 0 for the true ratio r.
    gains = ratio(
        lambda r: combine((1.0, top_strength), (-r, top_rate), (r - 1.0, base)),
        by_strength / by_rate if by_rate > 0 else float("nan"),
    )
    no_gain = "" if by_rate > 0 else "no learning rate does better than the small one, so λ has no gain to match"
    factor = found.value(best_strength) / found.value(best_rate)
    label = f"λ = 0 at ε = {power(found.small)}"
    dotted = level(found.points, found.baseline, strengths, label=label, best=source.best)
    marks = ((PAPER_RATE, "paper’s best ε"), (PAPER_STRENGTH, "paper’s best λ"))
    return Drawing(
        panels=(Panel((rates, strengths, dotted), EITHER, TEST, marks=marks),),
        says=f"Test accuracy against ε at λ = 0, and against λ at ε = {power(found.small)}.",
        seen=f"Above the small rate's {percent(base.value)}, the learning rate gains {100 * by_rate:.1f} points and "
        f"the strength {100 * by_strength:.1f}; the best λ is {factor:g} times the best ε."
        + edge_note(found.at_edges()),
        criteria=(Criterion(gains, "= gain by λ over gain by ε", "above", rules.RECOVERS, digits=2, blocked=no_gain),),
    )


FIGURE = Figure(
    id="6a",
    title="Learning rate and strength, appendix D",
    shows="test accuracy against ε and λ, appendix D",
    claim="Tuning the strength influences test accuracy much as tuning the learning rate does, although the best "
    "values need not coincide.",
    quote=Quote(
        "Tuning the regularization scale λ has a similar influence on test accuracy to tuning the learning rate ε",
        "caption of figure 6a, appendix D",
    ),
    reads=sweeps,
    varying=VARYING,
    protocol=APPENDIX_D,
    paper="best ε = 2⁻⁵, best λ = 2⁻² with a higher test accuracy: a factor 8; λ = 2⁻⁴ is already very similar",
    small_rate=True,
    draw=draw,
)
