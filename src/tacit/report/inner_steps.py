"""Figures 4a, 4b, 4c and 7c: how high n-step SGD gets, at fixed epochs, at fixed updates and over epoch budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tacit.report import verdict as rules
from tacit.report.collapse import BARE, CONSTANT, DECAY, N_STEP, at_epochs, at_updates
from tacit.report.ensemble import Interval, Row, best_mean, ensemble, group, score_cell, scores
from tacit.report.figure import Curve, Figure, Panel, Point, all_count, caption, make_points, percent, power
from tacit.report.selection import MissingRowsError, Source, alike, plain, shared_budgets
from tacit.report.strengths import TEST, figure
from tacit.report.verdict import Verdict, above, both, points, within


def highest(source: Source, rows: Sequence[Row]) -> dict[int, tuple[float, list[Row]]]:
    """For every n, the bare rate with the highest summary, and the runs there. A single run cannot be the best."""
    found: dict[int, tuple[float, list[Row]]] = {}
    for (n,), of_n in group(rows, "inner_steps").items():
        cells = [cell for cell in _by_rate(of_n) if len(cell[1]) > 1] or _by_rate(of_n)
        found[n] = max(cells, key=lambda cell: float(best_mean(scores(cell[1], source.score), source.best)))
    return found


def drop(source: Source, best: dict[int, tuple[float, list[Row]]], to: int | None = None) -> Interval:
    """Highest test accuracy of the smallest n minus that of another, the largest if none is named."""
    if len(best) < 2:
        raise MissingRowsError("needs at least two values of inner_steps; the rows at hand have fewer.")
    cells = [score_cell(best[n][1], source.score) for n in (min(best), max(best) if to is None else to)]
    return ensemble(cells, best=source.best).difference(0, 1)


def edges(best: dict[int, tuple[float, list[Row]]], rows: Sequence[Row]) -> str:
    """A sentence when the best rate of some n is at an end of those tried."""
    tried = {n: [alpha for alpha, _ in _by_rate(of_n)] for (n,), of_n in group(rows, "inner_steps").items()}
    return rules.edge_note({f"α of n = {n}": best[n][0] in (min(tried[n]), max(tried[n])) for n in best})


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
        seen=f"Highest test accuracies: {peaks}." + edges(best, rows),
        number=points(lost),
        unit=f"points from n = {steps[0]} to n = {steps[-1]}",
        rule=rules.gain_rule(),
        outcome=above(lost, rules.MATERIAL),
    )
    curves = tuple(all_count(curve) for curve in BARE.curves(source, rows, against=BARE.x))
    panel = Panel(curves, BARE.x.label, TEST)
    return figure(id, title, (panel,), verdict, caption(source, rows, says=says), rows)


def figure_4a(source: Source) -> Figure:
    rows, length = at_epochs(source, DECAY)
    return highest_figure(
        "4a",
        "n-step SGD at fixed epochs",
        source,
        rows,
        claim="At fixed epochs with a decaying rate, smaller n reach higher test accuracy. (Judged by that height "
        "alone, not by the largest stable rate.)",
        says=f"n-step SGD for {length}; the rate is constant for half of them, then halved every tenth.",
    )


def figure_4b(source: Source) -> Figure:
    rows, length = at_updates(source, DECAY)
    return highest_figure(
        "4b",
        "n-step SGD at fixed updates",
        source,
        rows,
        claim="At a fixed number of parameter updates with a decaying rate, smaller n reach higher test accuracy. "
        "(Judged by that height alone, not by the largest stable rate.)",
        says=f"n-step SGD for {length}, so n times fewer epochs, with the same decay.",
    )


# -- over epoch budgets -----------------------------------------------------------------------------------------------
OVER_BUDGETS = "The highest test accuracy over the bare rates tried, against the numbers of epochs that every n has"


def budget_curves(source: Source) -> tuple[Curve, ...]:
    """For every n, the highest test accuracy over α against the number of epochs."""
    curves = []
    for (n,), rows in group(source.rows, "inner_steps").items():
        made: list[Point] = []
        for (epochs,), budget in group(rows, "epochs").items():
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


def at_shared_budgets(source: Source, protocol: dict[str, Any]) -> Source:
    """The runs without penalty at the epoch budgets that every n has."""
    shared = shared_budgets(plain(source).rows)
    if not shared:
        raise MissingRowsError("needs an epoch budget at which every n was run; the rows at hand have none.")
    rows = [row for row in plain(source).rows if row["spec"]["epochs"] in shared]
    return replace(source, rows=alike(rows, varying=(*N_STEP, "epochs"), length=None, **protocol))


def figure_4c(source: Source) -> Figure:
    source = at_shared_budgets(source, DECAY)
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
        seen=f"Highest test accuracy over all rates and over the budgets every n has: {peaks}."
        + edges(best, _tuned(source)),
        number=points(lost),
        unit=f"points from n = {steps[0]} to n = {steps[-1]}",
        rule=rules.gain_rule(),
        outcome=above(lost, rules.MATERIAL),
    )
    says = f"{OVER_BUDGETS}, with the paper's decay."
    panel = Panel(budget_curves(source), "epochs", TEST)
    return figure("4c", "n-step SGD over epoch budgets", (panel,), verdict, caption(source, rows, says=says), rows)


def _tuned(source: Source) -> list[Row]:
    """For every n, the runs of the epoch budget in which it gets highest."""
    chosen: list[Row] = []
    for rows in group(source.rows, "inner_steps").values():
        budgets = group(rows, "epochs")
        reached = {key: highest(source, budget) for key, budget in budgets.items()}
        winner = max(reached, key=lambda key: max(summary_of(source, runs) for _, runs in reached[key].values()))
        chosen += budgets[winner]
    return chosen


def figure_7c(source: Source) -> Figure:
    source = at_shared_budgets(source, CONSTANT)
    rows = list(source.rows)
    curves = budget_curves(source)
    found: dict[tuple[int, int], Interval] = {}
    for (epochs,), budget in group(rows, "epochs").items():
        best = highest(source, budget)
        found.update({(epochs, n): drop(source, best, to=n) for n in sorted(best)[1:]})
    if not found:
        raise MissingRowsError("needs at least two values of inner_steps; the rows at hand have fewer.")
    worst = max(found, key=lambda place: abs(found[place].value))
    smallest = min(row["spec"]["inner_steps"] for row in rows)
    listed = "; ".join(f"{epochs:g} epochs, n = {n}: {100 * lost.value:+.1f}" for (epochs, n), lost in found.items())
    verdict = Verdict(
        claim="On an MLP, different n reach similar test accuracies at their best rates, at any number of epochs.",
        seen=f"Points lost against n = {smallest}: {listed}.",
        number=points(found[worst]),
        unit=f"points at {worst[0]:g} epochs, n = {worst[1]}: the largest difference",
        rule=f"agrees if every interval, for each budget that every n has and each n, lies in "
        f"±{100 * rules.ALIKE:.0f} points; disagrees if one lies outside",
        outcome=both(*[within(lost, rules.ALIKE) for lost in found.values()]),
    )
    says = f"{OVER_BUDGETS}, at constant rates."
    panel = Panel(curves, "epochs", TEST)
    return figure(
        "7c", "n-step SGD over epoch budgets, appendix D", (panel,), verdict, caption(source, rows, says=says), rows
    )
