"""Figures 4a, 4b, 4c and 7c: how high n-step SGD gets, at fixed epochs, at fixed updates and over epoch budgets."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.report import verdict as rules
from tacit.report.collapse import BARE, _planned
from tacit.report.figure import Curve, Figure, Panel, Point, all_count, caption, make_points, percent, power
from tacit.report.selection import MissingRowsError, Source
from tacit.report.strengths import TEST, figure
from tacit.report.verdict import Verdict, above, points, within
from tacit.studies.summary import Interval, Row, best_mean, ensemble, group, score_cell, scores


def highest(source: Source, rows: Sequence[Row]) -> dict[int, tuple[float, list[Row]]]:
    """For every n, the bare rate with the highest summary, and the runs there."""
    found: dict[int, tuple[float, list[Row]]] = {}
    for (n,), of_n in group(rows, "inner_steps").items():
        cells = _by_rate(of_n)
        found[n] = max(cells, key=lambda cell: float(best_mean(scores(cell[1], source.score), source.best)))
    return found


def drop(source: Source, best: dict[int, tuple[float, list[Row]]]) -> Interval:
    """Highest test accuracy of the smallest n minus that of the largest, each at its own best rate."""
    if len(best) < 2:
        raise MissingRowsError("needs at least two values of inner_steps; the rows at hand have fewer.")
    cells = [score_cell(best[n][1], source.score) for n in (min(best), max(best))]
    return ensemble(cells, best=source.best).difference(0, 1)


def summary_of(source: Source, rows: Sequence[Row]) -> float:
    return float(best_mean(scores(rows, source.score), source.best))


def highest_figure(id: str, title: str, source: Source, rows: list[Row], *, claim: str, says: str) -> Figure:
    best = highest(source, rows)
    lost = drop(source, best)
    peaks = "; ".join(
        f"n = {n}: {percent(summary_of(source, runs))} at α = {power(alpha)}" for n, (alpha, runs) in best.items()
    )
    steps = sorted(best)
    verdict = Verdict(
        claim=claim,
        seen=f"Highest test accuracies: {peaks}.",
        number=points(lost),
        unit=f"points from n = {steps[0]} to n = {steps[-1]}",
        rule=f"agrees if the whole interval lies above {100 * rules.MATERIAL:.0f} point",
        outcome=above(lost, rules.MATERIAL),
    )
    curves = tuple(all_count(curve) for curve in BARE.curves(source, rows, against=BARE.x))
    panel = Panel(curves, BARE.x.label, TEST)
    return figure(id, title, (panel,), verdict, caption(source, rows, says=says), rows)


def figure_4a(source: Source) -> Figure:
    epochs = source.options.get("epochs")
    rows = source.where(epochs=epochs) if epochs is not None else list(source.rows)
    return highest_figure(
        "4a",
        "n-step SGD at fixed epochs",
        source,
        rows,
        claim="At fixed epochs with a decaying rate, smaller n bear larger bare rates and reach higher test accuracy.",
        says=f"n-step SGD for {epochs} epochs; the rate is constant for half of them, then halved every tenth.",
    )


def figure_4b(source: Source) -> Figure:
    updates = source.options.get("updates")
    rows = [row for row in source.rows if updates is None or _planned(row) == updates]
    return highest_figure(
        "4b",
        "n-step SGD at fixed updates",
        source,
        rows,
        claim="The same holds when the number of parameter updates is fixed.",
        says=f"n-step SGD for {updates} parameter updates, so n times fewer epochs, with the same decay.",
    )


# -- over epoch budgets -----------------------------------------------------------------------------------------------
def budget_curves(source: Source) -> tuple[Curve, ...]:
    """For every n, the highest test accuracy over α against the number of epochs."""
    curves = []
    for (n,), rows in group(source.rows, "inner_steps").items():
        made: list[Point] = []
        for (epochs,), budget in group([row for row in rows if row["spec"]["epochs"]], "epochs").items():
            cells = [(alpha, cell) for alpha, cell in _by_rate(budget)]
            points_, _ = make_points(cells, score=source.score, best=source.best)
            winner = max(points_, key=lambda point: point.summary.value)
            made.append(Point(float(epochs), winner.summary, winner.mean, winner.runs, winner.diverged))
        curves.append(Curve(f"n = {n}", f"steps{n}", tuple(made)))
    return tuple(curves)


def _by_rate(rows: Sequence[Row]) -> list[tuple[float, list[Row]]]:
    found: dict[float, list[Row]] = {}
    for row in rows:
        found.setdefault(BARE.x.of(row["spec"]), []).append(row)
    return sorted(found.items())


def figure_4c(source: Source) -> Figure:
    rows = list(source.rows)
    best = highest(source, _tuned(source))
    lost = drop(source, best)
    steps = sorted(best)
    peaks = "; ".join(
        f"n = {n}: {percent(summary_of(source, runs))} after {runs[0]['spec']['epochs']} epochs"
        for n, (_, runs) in best.items()
    )
    verdict = Verdict(
        claim="With both the rate and the number of epochs tuned for each n, test accuracy still falls as n grows.",
        seen=f"Highest test accuracy over all rates and budgets: {peaks}.",
        number=points(lost),
        unit=f"points from n = {steps[0]} to n = {steps[-1]}",
        rule=f"agrees if the whole interval lies above {100 * rules.MATERIAL:.0f} point",
        outcome=above(lost, rules.MATERIAL),
    )
    says = "The highest test accuracy over the bare rates tried, against the number of epochs, with the paper's decay."
    panel = Panel(budget_curves(source), "epochs", TEST)
    return figure("4c", "n-step SGD over epoch budgets", (panel,), verdict, caption(source, rows, says=says), rows)


def shared_budgets(source: Source) -> list[int]:
    """Numbers of epochs at which every n was run: tuning over others would favour the n that has them."""
    budgets = [{row["spec"]["epochs"] for row in rows} for rows in group(source.rows, "inner_steps").values()]
    shared = sorted(epochs for epochs in set.intersection(*budgets) if epochs is not None)
    if not shared:
        raise MissingRowsError("needs an epoch budget at which every n was run; the rows at hand have none.")
    return shared


def _tuned(source: Source) -> list[Row]:
    """For every n, the runs of the shared epoch budget in which it gets highest."""
    chosen: list[Row] = []
    allowed = shared_budgets(source)
    for rows in group(source.rows, "inner_steps").values():
        budgets = group([row for row in rows if row["spec"]["epochs"] in allowed], "epochs")
        reached = {key: highest(source, budget) for key, budget in budgets.items()}
        winner = max(reached, key=lambda key: max(summary_of(source, runs) for _, runs in reached[key].values()))
        chosen += budgets[winner]
    return chosen


def figure_7c(source: Source) -> Figure:
    rows = list(source.rows)
    curves = budget_curves(source)
    per_budget = {}
    for epochs in shared_budgets(source):
        per_budget[epochs] = drop(source, highest(source, source.where(epochs=epochs)))
    worst = max(per_budget, key=lambda epochs: abs(per_budget[epochs].value))
    decisive = per_budget[worst]
    steps = [curve.label for curve in curves]
    listed = "; ".join(f"{epochs:g} epochs: {100 * found.value:+.1f}" for epochs, found in per_budget.items())
    verdict = Verdict(
        claim="On an MLP, different n reach similar test accuracies at their best rates, at any number of epochs.",
        seen=f"Points lost from {steps[0]} to {steps[-1]}: {listed}.",
        number=points(decisive),
        unit=f"points at {worst:g} epochs, the largest difference",
        rule=f"agrees if the whole interval lies in ±{100 * rules.ALIKE:.0f} points",
        outcome=within(decisive, rules.ALIKE),
    )
    says = "The highest test accuracy over the bare rates tried, against the number of epochs, at constant rates."
    panel = Panel(curves, "epochs", TEST)
    return figure(
        "7c", "n-step SGD over epoch budgets, appendix D", (panel,), verdict, caption(source, rows, says=says), rows
    )
