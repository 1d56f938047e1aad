"""The figure the paper argues for without showing it: orders of the minibatches side by side."""

from __future__ import annotations

from tacit.report import rules
from tacit.report.figure import SGD, Drawing, Figure, Quote, Source, need
from tacit.report.figures.sweeps import RATE, TEST
from tacit.report.numbers import Number
from tacit.report.points import Panel, curve
from tacit.report.rows import plain
from tacit.report.text import percent, power
from tacit.report.verdict import Criterion

NAMES = {
    "shuffled": "shuffled every epoch",
    "mirrored": "there and back",
    "shuffle_once": "shuffled once",
    "fixed": "fixed",
    "with_replacement": "with replacement",
}
ONCE_PER_EPOCH = ("mirrored", "shuffle_once", "fixed")


def draw(source: Source) -> Drawing:
    points = source.points
    orders = [order for order in NAMES if points.where(order=order)]
    need([order for order in orders if order == "shuffled"], "shuffled runs")
    judged = need([order for order in orders if order in ONCE_PER_EPOCH], "another order that uses each example once")
    rates = [{points.specs[index]["learning_rate"] for index in points.where(order=order)} for order in orders]
    shared = need(sorted(set.intersection(*rates)), "a learning rate that every order was run at")
    # Averaged over the rates that every order has: nothing is chosen, and the mean scatters less than one rate.
    trained = [
        rate for rate in shared if all(points.layout.trains[i] for i in points.where(learning_rate=rate))
    ] or shared
    at = {order: points.where(order=order, learning_rate=lambda rate: rate in trained) for order in orders}

    def difference(order: str) -> Number:
        weights = {index: 1 / len(trained) for index in at[order]}
        weights |= {index: -1 / len(trained) for index in at["shuffled"]}
        return points.layout.contrast(weights).scaled(100)

    found = {order: difference(order) for order in orders if order != "shuffled"}
    base = sum(points.layout.means[index] for index in at["shuffled"]) / len(trained)
    listed = "; ".join(f"{NAMES[order]} {number.interval().text()}" for order, number in found.items())
    curves = tuple(
        curve(points, points.where(order=order), x=RATE, label=NAMES[order], colour=f"order_{order}", best=source.best)
        for order in orders
    )
    return Drawing(
        panels=(Panel(curves, RATE.label, TEST),),
        says="Test accuracy against ε for several orders of the minibatches; the paper averages over orders.",
        seen=f"On average over ε = {', '.join(power(rate) for rate in trained)}, shuffling every epoch gives "
        f"{percent(base)}; the others differ from it by (points) {listed}. With replacement is not judged.",
        criteria=tuple(
            Criterion(found[order], f"points: {NAMES[order]}", "within", 100 * rules.ALIKE, name=NAMES[order])
            for order in judged
        ),
    )


FIGURE = Figure(
    id="orders",
    title="Orders of the minibatches",
    shows="orders of the minibatches side by side (argued in the paper, not shown)",
    claim="The regularizer depends on which examples share a minibatch, not on the order of the minibatches: every "
    "order that uses each example once per epoch is worth the same.",
    quote=Quote(
        "reversing the second epoch has the same effect as taking the mean across all possible sequences of "
        "minibatches",
        "implied by section 2.2, not shown in the paper",
    ),
    reads=plain,
    varying=("learning_rate", "order"),
    protocol={key: value for key, value in SGD.items() if key != "order"},
    draw=draw,
)
