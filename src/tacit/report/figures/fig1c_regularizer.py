"""Figure 1c: the implicit regularizer at the end of training, against the learning rate and against the strength."""

from __future__ import annotations

import math

from tacit.report.figure import Drawing, Figure, Quote, Source
from tacit.report.figures.sweeps import EITHER, VARYING, sweeps_of
from tacit.report.numbers import Number, unknown
from tacit.report.points import Panel, log2_of
from tacit.report.rows import sweeps
from tacit.report.text import exponent_text, power
from tacit.report.verdict import Criterion

# Geometric means of all runs: log₂ values have no "best 5 of 7".
GEOMETRIC = "Points are runs, lines geometric means of all runs that stayed finite"


def draw(source: Source) -> Drawing:
    found = sweeps_of(source)
    rates, strengths, points = found.curves(log2_of("implicit_regularizer"), best=None)
    best_rate, best_strength = found.best(found.rates), found.best(found.strengths)

    def change(index: int) -> Number:
        """log₂ of C_reg at a point minus that at the small rate without penalty."""
        there, base = found.at(points, index), found.at(points, found.baseline)
        return unknown() if there is None or base is None else points.layout.difference(there, base)

    by_rate, by_strength = change(best_rate), change(best_strength)
    unit, missing = "= log₂ of the change of C_reg", "no run with a finite C_reg at one of the two points"

    def factor(number: Number, words: str) -> str:
        known = not math.isnan(number.value)
        return f"{words}{exponent_text(round(number.value, 1))}" if known else "an unknown factor"

    def criterion(number: Number, name: str) -> Criterion:
        return Criterion(number, unit, "below", 0.0, name=name, blocked=missing if math.isnan(number.value) else "")

    return Drawing(
        panels=(Panel((rates, strengths), EITHER, "implicit regularizer C_reg at the end", y_scale="log2"),),
        says="C_reg = (1/4m) Σ‖∇Ĉₖ‖² at the end of training.",
        means=GEOMETRIC,
        scatter=points.layout,
        seen=f"From ε = {power(found.small)} to the best ε = {power(found.value(best_rate))}, C_reg changes by "
        f"{factor(by_rate, 'a factor ')}; from λ = 0 to the best λ = {power(found.value(best_strength))}, by "
        f"{factor(by_strength, '')}.",
        criteria=(criterion(by_rate, "the learning rate"), criterion(by_strength, "the strength")),
    )


FIGURE = Figure(
    id="1c",
    title="The implicit regularizer at the end of training",
    shows="C_reg at the end of training against ε and λ",
    claim="A larger learning rate and a larger strength both leave a smaller implicit regularizer C_reg.",
    quote=Quote(
        "Increasing either the learning rate ε or the regularization coefficient λ reduces the value of the implicit "
        "regularization term",
        "caption of figure 1c",
    ),
    reads=sweeps,
    varying=VARYING,
    small_rate=True,
    draw=draw,
)
