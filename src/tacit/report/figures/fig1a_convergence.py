"""Figure 1a: test accuracy during training at a small rate, with and without the penalty."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tacit.report import rules
from tacit.report.figure import Drawing, Figure, Quote, Source, need
from tacit.report.figures.sweeps import VARYING
from tacit.report.numbers import LEVEL, Interval, minus, student
from tacit.report.points import Curve, Panel, Point
from tacit.report.rows import Row, small_rate, sweeps
from tacit.report.text import percent, power
from tacit.report.verdict import Criterion
from tacit.studies.describe.spec import number


def draw(source: Source) -> Drawing:
    points, small = source.points, small_rate(source.rows)
    plain = need(points.where(strength=0.0, learning_rate=small), f"runs at ε = {power(small)}, λ = 0")[0]
    wanted = source.options.get("strength")
    strengths = points.where(strength=lambda value: value > 0 if wanted is None else value == float(number(wanted)))
    need(strengths, "runs at λ > 0" if wanted is None else f"runs at λ = {power(float(number(wanted)))}")
    best, highest = points.layout.highest(strengths)
    strength = points.specs[best]["strength"]
    # With one strength named by the study nothing was chosen, and the interval is that of a plain difference.
    gain = points.layout.difference(best, plain) if len(strengths) == 1 else minus(highest, points.layout.point(plain))
    traces = (
        trace(points.rows[plain], label="original loss, λ = 0", colour="rate"),
        trace(points.rows[best], label=f"penalty λ = {power(strength)}", colour="strength"),
    )
    drawn = [*points.rows[plain], *points.rows[best]]
    short = sum(len(row["history"]["epochs"]) < max(len(r["history"]["epochs"]) for r in drawn) for row in drawn)
    return Drawing(
        panels=(Panel(traces, "epochs", "test accuracy", x_scale="linear"),),
        says=f"Test accuracy during training at ε = {power(small)}, with and without an explicit penalty."
        + (f" Diverged on the way, drawn as far as they got, left out of the thick line: {short}." if short else ""),
        means="Thick lines are means of all runs, bands 95 % Student intervals of each mean, thin lines single runs.",
        bars=False,
        seen=f"At ε = {power(small)} the highest test accuracy is {percent(points.layout.means[best])} with "
        f"λ = {power(strength)} and {percent(points.layout.means[plain])} without.",
        criteria=(Criterion(gain.scaled(100), "points gained", "above", 100 * rules.MATERIAL),),
        rows=drawn,
    )


def trace(rows: Sequence[Row], *, label: str, colour: str) -> Curve:
    """Test accuracy against epochs: one thin line per run, the mean of all that got to the end."""
    lines = [(row["history"]["epochs"], [value or 0.0 for value in row["history"]["test_accuracy"]]) for row in rows]
    length = max(len(epochs) for epochs, _ in lines)
    whole = np.array([values for epochs, values in lines if len(epochs) == length])
    made = []
    longest = next(epochs for epochs, _ in lines if len(epochs) == length)
    for epoch, values in zip(longest, whole.T, strict=True):
        mean, count = float(values.mean()), len(values)
        width = math.nan
        if count > 1:
            width = student(LEVEL, count - 1) * float(values.std(ddof=1)) / math.sqrt(count)
        at = (
            Interval(mean, max(mean - width, 0.0), min(mean + width, 1.0))
            if count > 1
            else Interval(mean, width, width)
        )
        made.append(Point(float(epoch), at, at, ()))
    return Curve(label, colour, tuple(made), traces=tuple((tuple(epochs), tuple(values)) for epochs, values in lines))


FIGURE = Figure(
    id="1a",
    title="Convergence with and without the penalty",
    shows="test accuracy during training, λ = 0 and λ > 0 at a small ε",
    claim="At a small learning rate, adding the regularizer to the loss raises the test accuracy.",
    quote=Quote(
        "Explicitly including the implicit regularizer in the loss improves the test accuracy when training with small "
        "learning rates.",
        "caption of figure 1a",
    ),
    reads=sweeps,  # the other points of both sweeps only tell how far runs scatter
    varying=VARYING,
    options=("strength",),
    paper="λ = 2⁻⁶ at ε = 2⁻⁹",
    small_rate=True,
    draw=draw,
)
