"""The figure the paper argues for without showing it: orders of the minibatches side by side."""

from __future__ import annotations

import numpy as np

from tacit.report import verdict as rules
from tacit.report.ensemble import Interval, ensemble, group, score_cell
from tacit.report.figure import Figure, Panel, all_count, caption, percent, power, score_curve
from tacit.report.selection import SGD, VARIABLES, MissingRowsError, Source, alike
from tacit.report.strengths import TEST, figure
from tacit.report.verdict import Outcome, Verdict, both, points, within

RATE = VARIABLES["learning_rate"]
NAMES = {
    "shuffled": "shuffled every epoch",
    "mirrored": "there and back",
    "shuffle_once": "shuffled once",
    "fixed": "fixed",
    "with_replacement": "with replacement",
}
ONCE_PER_EPOCH = ("mirrored", "shuffle_once", "fixed")


def figure_orders(source: Source) -> Figure:
    protocol = {key: value for key, value in SGD.items() if key != "order"}
    rows = alike(source.where(strength=0.0), varying=("learning_rate", "order"), **protocol)
    by_order = {order: found for (order,), found in group(rows, "order").items()}
    if "shuffled" not in by_order or len(by_order) < 2:
        raise MissingRowsError("needs shuffled runs and runs in another order; the rows at hand lack one of them.")
    shared = sorted(set.intersection(*[{row["spec"]["learning_rate"] for row in found} for found in by_order.values()]))
    if not shared:
        raise MissingRowsError("needs a learning rate that every order was run at; the rows at hand have none.")
    cells = {
        order: [
            score_cell([row for row in found if row["spec"]["learning_rate"] == rate], source.score) for rate in shared
        ]
        for order, found in by_order.items()
    }
    # Judged at the shared rate at which shuffling is best: that is where the benefit of a finite rate is largest.
    at = int(np.argmax([ensemble([cell], best=source.best).observed[0] for cell in cells["shuffled"]]))
    differences: dict[str, Interval] = {
        order: ensemble([found[at], cells["shuffled"][at]], best=source.best).difference(0, 1)
        for order, found in cells.items()
        if order != "shuffled"
    }
    judged = {order: found for order, found in differences.items() if order in ONCE_PER_EPOCH}
    if not judged:
        raise MissingRowsError("needs an order other than shuffled that uses each example once per epoch.")
    decisive = max(judged.values(), key=lambda found: abs(found.value))
    outcomes: list[Outcome] = [within(found, rules.ALIKE) for found in judged.values()]
    base = ensemble([cells["shuffled"][at]], best=source.best).observed[0]
    listed = "; ".join(f"{NAMES[order]} {points(found).text()}" for order, found in differences.items())
    verdict = Verdict(
        claim="The regularizer depends on which examples share a minibatch, not on the order of the minibatches: every "
        "order that uses each example once per epoch is worth the same.",
        seen=f"At ε = {power(shared[at])}, shuffling every epoch gives {percent(base)}; the others differ from it by "
        f"(points) {listed}.",
        number=points(decisive),
        unit="points, the largest difference among orders that use each example once",
        rule=f"agrees if each such interval lies in ±{100 * rules.ALIKE:.0f} points; with replacement is a contrast",
        outcome=both(*outcomes),
    )
    known = [order for order in NAMES if order in by_order]
    curves = tuple(
        all_count(score_curve(source, by_order[order], x=RATE.of, label=NAMES[order], colour=f"order_{order}"))
        for order in known
    )
    says = "Test accuracy against ε for several orders of the minibatches; the paper's analysis averages over orders."
    panel = Panel(curves, RATE.label, TEST)
    return figure("orders", "Orders of the minibatches", (panel,), verdict, caption(source, rows, says=says), rows)
