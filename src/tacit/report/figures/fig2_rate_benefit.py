"""Figures 2a and 2b: what a large learning rate gains, without and with the penalty."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.report import rules
from tacit.report.figure import Drawing, Figure, Quote, Source, need
from tacit.report.figures.sweeps import RATE, edge_note
from tacit.report.numbers import Number, minus
from tacit.report.points import Curve, Panel, Points, accuracy, curve, points_of
from tacit.report.rows import plain, two_rate_sweeps
from tacit.report.text import percent, power
from tacit.report.verdict import Criterion

RANKS = "The training curve takes its own best runs, by highest training accuracy."


@dataclass(frozen=True)
class Benefit:
    """Test accuracy at its best rate minus that at the smallest rate that trains as well as any."""

    test: Points
    train: Points
    indices: list[int]  # of one strength; the same in both
    highest: int
    trained: int
    gain: Number

    def rate(self, index: int) -> str:
        return power(self.test.specs[index]["learning_rate"])

    @property
    def factor(self) -> float:
        specs = self.test.specs
        return float(specs[self.highest]["learning_rate"] / specs[self.trained]["learning_rate"])

    @property
    def at_edge(self) -> bool:
        rates = [self.test.specs[index]["learning_rate"] for index in self.indices]
        return self.test.specs[self.highest]["learning_rate"] in (min(rates), max(rates))

    def curves(self, source: Source, *, colour: str, name: str) -> tuple[Curve, Curve]:
        test = curve(self.test, self.indices, x=RATE, label=f"test accuracy, {name}", colour=colour, best=source.best)
        train = curve(
            self.train, self.indices, x=RATE, label=f"training accuracy, {name}", colour="training", best=source.best,
            style="dashed",
        )  # fmt: skip
        return test, train


def benefit(source: Source, strength: float) -> Benefit:
    test, train = source.points, points_of(source.rows, accuracy("best_train_accuracy"))
    indices = need(test.where(strength=strength), f"learning rates at λ = {power(strength)}", at_least=3)
    means = train.layout.means
    top = max(float(means[index]) for index in indices)
    trained = next(index for index in test.ordered(indices, RATE) if means[index] >= top - rules.TRAINED)
    highest, height = test.layout.highest(indices)
    return Benefit(test, train, indices, highest, trained, minus(height, test.layout.point(trained)))


def draw_2a(source: Source) -> Drawing:
    found = benefit(source, 0.0)
    test, train = found.test.layout.means, found.train.layout.means
    edges = ["ε"] if found.at_edge else []
    return Drawing(
        panels=(Panel(found.curves(source, colour="rate", name="λ = 0"), RATE.label, "accuracy"),),
        says=f"Highest test and training accuracy against ε on the original loss. {RANKS}",
        seen=f"Test accuracy is highest at ε = {found.rate(found.highest)} ({percent(test[found.highest])}), where "
        f"training accuracy is {percent(train[found.highest])}. Training accuracy is already at its highest from "
        f"ε = {found.rate(found.trained)} on, where test accuracy is {percent(test[found.trained])}: a factor "
        f"{found.factor:g} in the rate." + edge_note(edges),
        criteria=(Criterion(found.gain.scaled(100), "points from the larger rate", "above", 100 * rules.MATERIAL),),
    )


def draw_2b(source: Source) -> Drawing:
    strength = next(row["spec"]["strength"] for row in source.rows if row["spec"]["strength"] > 0)
    with_penalty, without = benefit(source, strength), benefit(source, 0.0)
    lost = minus(without.gain, with_penalty.gain)
    test = with_penalty.test.layout.means
    edges = [
        name
        for name, found in ((f"ε with λ = {power(strength)}", with_penalty), ("ε without", without))
        if found.at_edge
    ]
    curves = (
        *with_penalty.curves(source, colour="strength", name=f"λ = {power(strength)}"),
        without.curves(source, colour="rate", name="λ = 0")[0],
    )
    return Drawing(
        panels=(Panel(curves, RATE.label, "accuracy"),),
        says=f"Highest test and training accuracy against ε with λ = {power(strength)}, and λ = 0 beside it. {RANKS}",
        seen=f"With λ = {power(strength)}, test accuracy is highest at ε = {with_penalty.rate(with_penalty.highest)} "
        f"({percent(test[with_penalty.highest])}), training accuracy from "
        f"ε = {with_penalty.rate(with_penalty.trained)} on (test {percent(test[with_penalty.trained])}): the two "
        f"optima differ by a factor {with_penalty.factor:g}, and the larger rate gives "
        f"{100 * with_penalty.gain.value:.1f} points. Without the penalty they differ by a factor {without.factor:g}, "
        f"and it gives {100 * without.gain.value:.1f} points." + edge_note(edges),
        criteria=(Criterion(lost.scaled(100), "points less benefit", "above", 100 * rules.MATERIAL),),
    )


WITHOUT = Figure(
    id="2a",
    title="Large rates help without a penalty",
    shows="training and test accuracy against ε at λ = 0",
    claim="Without penalty, the learning rate that is best for test accuracy is larger than the one that is best for "
    "training accuracy.",
    quote=Quote(
        "There is a clear generalization benefit to large learning rates when training on the original loss",
        "caption of figure 2a",
    ),
    reads=plain,
    varying=("learning_rate",),
    paper="best for test 2⁻⁶, best for training 2⁻¹⁰: a factor 16",
    draw=draw_2a,
)
WITH = Figure(
    id="2b",
    title="Large rates help less with a penalty",
    shows="training and test accuracy against ε at a good λ",
    claim="With a good strength in the loss, the benefit of a large learning rate is diminished.",
    quote=Quote("the generalization benefit of large learning rates is diminished", "caption of figure 2b"),
    reads=two_rate_sweeps,
    varying=("learning_rate", "strength"),
    paper="with λ = 2⁻⁶ both are 2⁻⁸: a factor 1",
    draw=draw_2b,
)
