"""Figures 5a and 5b: training accuracy and loss of the two sweeps of figure 1b."""

from __future__ import annotations

from tacit.report import rules
from tacit.report.figure import Drawing, Figure, Quote, Source
from tacit.report.figures.fig1c_regularizer import GEOMETRIC
from tacit.report.figures.sweeps import EITHER, RATE, STRENGTH, VARYING, sweeps_of
from tacit.report.numbers import unknown
from tacit.report.points import Panel, accuracy, log2_of
from tacit.report.rows import sweeps
from tacit.report.text import percent, power
from tacit.report.verdict import Criterion


def draw_5a(source: Source) -> Drawing:
    found = sweeps_of(source)
    rates, strengths, points = found.curves(accuracy("best_train_accuracy"), best=source.best)
    means = points.layout.means
    by_rate = points.ordered(points.where(strength=0.0), RATE)
    by_strength = points.ordered(points.where(strength=lambda value: value > 0), STRENGTH)
    drop = points.layout.difference(by_strength[0], by_strength[-1])
    return Drawing(
        panels=(Panel((rates, strengths), EITHER, "highest training accuracy"),),
        says="The highest training accuracy of the runs of figure 1b.",
        scatter=points.layout,
        seen=f"Training accuracy is {percent(means[by_strength[0]])} at λ = {power(strengths.x[0])} and "
        f"{percent(means[by_strength[-1]])} at λ = {power(strengths.x[-1])}. Against ε it reaches "
        f"{percent(max(means[index] for index in by_rate))} and ends at {percent(means[by_rate[-1]])} for "
        f"ε = {power(rates.x[-1])}.",
        criteria=(Criterion(drop.scaled(100), "points lost at the largest λ", "above", 100 * rules.MATERIAL),),
    )


def draw_5b(source: Source) -> Drawing:
    found = sweeps_of(source)
    rates, strengths, points = found.curves(log2_of("full_loss"), best=None)
    best_rate, best_strength = found.best(found.rates), found.best(found.strengths)
    there, here = found.at(points, best_strength), found.at(points, best_rate)
    ratio = unknown() if there is None or here is None else points.layout.difference(there, here)
    missing = "no run with a finite loss at the best ε or the best λ" if there is None or here is None else ""

    def loss(index: int | None) -> str:
        return "nothing finite" if index is None else f"{2 ** points.layout.means[index]:.2g}"

    return Drawing(
        panels=(Panel((rates, strengths), EITHER, "original loss C at the end", y_scale="log2"),),
        says="The original loss on the training set at the end of the runs of figure 1b.",
        means=GEOMETRIC,
        scatter=points.layout,
        seen=f"At the best λ = {power(found.value(best_strength))} the loss ends at {loss(there)}, at the best "
        f"ε = {power(found.value(best_rate))} at {loss(here)}.",
        criteria=(Criterion(ratio, "= log₂ of the ratio of the losses", "within", rules.SAME_FACTOR, blocked=missing),),
    )


ACCURACY = Figure(
    id="5a",
    title="Training accuracy of the two sweeps",
    shows="training accuracy against ε and λ",
    claim="At a small learning rate, a small strength allows a high training accuracy and a large one does not.",
    quote=Quote(
        "we achieve high training accuracies when λ is small, but are unable to achieve high training accuracies when "
        "λ is large",
        "caption of figure 5a, appendix C",
    ),
    reads=sweeps,
    varying=VARYING,
    paper="training accuracy is highest at ε = 2⁻⁹",
    small_rate=True,
    draw=draw_5a,
)
LOSS = Figure(
    id="5b",
    title="Training loss of the two sweeps",
    shows="original loss C at the end against ε and λ",
    claim="A large learning rate and a large strength end at similar values of the original loss C.",
    quote=Quote(
        "large learning rates and large regularization coefficients achieve similar training accuracies and similar "
        "original losses",
        "text on figure 5, appendix C",
    ),
    reads=sweeps,
    varying=VARYING,
    small_rate=True,
    draw=draw_5b,
)
