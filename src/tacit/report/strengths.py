"""Figures 1a, 1b, 1c and 6a: what a learning rate does by itself, an explicit strength does at a small one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.report import verdict as rules
from tacit.report.ensemble import (
    Array,
    Cell,
    Interval,
    Optimum,
    Row,
    by_seed,
    ensemble,
    group,
    optimum,
    repeated,
    score_cell,
    scores,
    side_by_side,
)
from tacit.report.figure import (
    Curve,
    Figure,
    Panel,
    Point,
    all_count,
    caption,
    exponent_text,
    log_curve,
    percent,
    power,
    score_curve,
    seeds_text,
    share,
)
from tacit.report.selection import APPENDIX_D, SGD, VARIABLES, Source, alike, need, small_rate
from tacit.report.verdict import Verdict, above, below, both, points, within
from tacit.studies.describe.spec import number

RATE, STRENGTH, TOTAL = VARIABLES["learning_rate"], VARIABLES["strength"], VARIABLES["total"]
TEST = "highest test accuracy"


@dataclass(frozen=True)
class Sweeps:
    """The two sweeps of figure 1: rates at λ = 0, strengths at one small rate, and that rate at λ = 0."""

    source: Source
    rates: list[Row]
    strengths: list[Row]
    baseline: list[Row]
    small_rate: float

    @property
    def rows(self) -> list[Row]:
        return [*self.rates, *self.strengths]


def sweeps(source: Source, **protocol: Any) -> Sweeps:
    small = small_rate(source.rows)
    rates = need(source.where(strength=0.0), "learning rates at λ = 0", points=3, key="learning_rate")
    strengths = need(
        source.where(strength=lambda value: value > 0, learning_rate=small),
        "strengths at a small rate",
        points=3,
        key="strength",
    )
    baseline = need(source.where(strength=0.0, learning_rate=small), f"the rate {power(small)} at λ = 0")
    alike([*rates, *strengths], varying=("learning_rate", "strength"), **(protocol or SGD))
    return Sweeps(source, rates, strengths, baseline, small)


def rate_curve(found: Sweeps) -> Curve:
    label = "original loss, against ε"
    return all_count(score_curve(found.source, found.rates, x=RATE.of, label=label, colour="rate"))


def strength_curve(found: Sweeps) -> Curve:
    label = f"penalty λ at ε = {power(found.small_rate)}"
    return all_count(score_curve(found.source, found.strengths, x=STRENGTH.of, label=label, colour="strength"))


def level(curve: Curve, at: float, over: Curve, label: str) -> Curve:
    """One point of a curve as a dotted level across another curve's range: the limit λ → 0."""
    point = next(point for point in curve.points if point.x == at)
    ends = tuple(Point(x, point.summary, point.mean, ()) for x in (min(over.x), max(over.x)))
    return Curve(label, "baseline", ends, "level")


def optima(found: Sweeps) -> tuple[Optimum, Optimum]:
    rates, strengths = rate_curve(found), strength_curve(found)
    return optimum(rates.x, rates.drawn), optimum(strengths.x, strengths.drawn)


def log_ratio(rates: Curve, strengths: Curve) -> Interval:
    """log₂(best λ / best ε). Points with one run take no part, as in `optimum`."""
    rate_points, strength_points = repeated(rates.drawn), repeated(strengths.drawn)
    count = len(rate_points)
    exponents = np.log2([*(rates.x[i] for i in rate_points), *(strengths.x[i] for i in strength_points)])

    def between(y: Array) -> Array:
        return exponents[count + y[..., count:].argmax(axis=-1)] - exponents[y[..., :count].argmax(axis=-1)]

    return side_by_side(rates.drawn.only(*rate_points), strengths.drawn.only(*strength_points)).place(between)


# -- 1a ---------------------------------------------------------------------------------------------------------------
def figure_1a(source: Source) -> Figure:
    small = small_rate(source.rows)
    swept = group(source.where(strength=lambda value: value > 0, learning_rate=small), "strength")
    wanted = source.options.get("strength")
    strength = (
        float(number(wanted))
        if wanted is not None
        else max(swept, key=lambda key: float(np.mean(scores(swept[key], source.score))))[0]
    )
    plain = need(source.where(strength=0.0, learning_rate=small), f"runs at ε = {power(small)}, λ = 0")
    penalized = need(source.where(strength=strength, learning_rate=small), f"runs at λ = {power(strength)}")
    rows = alike([*plain, *penalized], varying=("strength",), **SGD)
    cells = ensemble([score_cell(penalized, source.score), score_cell(plain, source.score)], best=source.best)
    gain = cells.difference(0, 1)
    panel = Panel(
        (
            trace(plain, label="original loss, λ = 0", colour="rate"),
            trace(penalized, label=f"penalty λ = {power(strength)}", colour="strength"),
        ),
        "epochs",
        "test accuracy",
        x_scale="linear",
    )
    verdict = Verdict(
        claim="At a small learning rate, adding the regularizer to the loss raises the test accuracy.",
        seen=f"At ε = {power(small)} the highest test accuracy is {percent(cells.observed[0])} with "
        f"λ = {power(strength)} and {percent(cells.observed[1])} without.",
        number=points(gain),
        unit="points gained",
        rule=f"agrees if the whole interval lies above {100 * rules.MATERIAL:.0f} point",
        outcome=above(gain, rules.MATERIAL),
    )
    short = sum(is_short(row, group_) for group_ in (plain, penalized) for row in group_)
    says = f"Test accuracy during training at ε = {power(small)}, with and without an explicit penalty." + (
        f" Diverged on the way, drawn as far as they got, left out of the thick line: {short}." if short else ""
    )
    return figure(
        "1a",
        "Convergence with and without the penalty",
        (panel,),
        verdict,
        caption(source, rows, says=says, lines=True),
        rows,
    )


def is_short(row: Row, rows: list[Row]) -> bool:
    """Whether the run has fewer evaluations than others: it diverged on the way."""
    return len(row["history"]["epochs"]) < max(len(other["history"]["epochs"]) for other in rows)


def trace(rows: list[Row], *, label: str, colour: str) -> Curve:
    """Test accuracy against epochs: one thin line per run, the mean of all of them with its interval."""
    lines = [(tuple(row["history"]["epochs"]), tuple(row["history"]["test_accuracy"])) for row in by_seed(rows)]
    length = max(len(epochs) for epochs, _ in lines)
    seeds = tuple(int(row["spec"]["seed"]) for row in by_seed(rows) if len(row["history"]["epochs"]) == length)
    whole = [line for line in lines if len(line[0]) == length]
    columns = np.array([[0.0 if value is None else value for value in values] for _, values in whole])
    means = ensemble([Cell(seeds, columns[:, index]) for index in range(columns.shape[1])])
    levels = [share(means.point(index)) for index in range(length)]
    made = tuple(Point(float(epoch), mean, mean, ()) for epoch, mean in zip(whole[0][0], levels, strict=True))
    drawn = tuple((epochs, tuple(0.0 if value is None else value for value in values)) for epochs, values in lines)
    return Curve(label, colour, made, "line", means, drawn)


# -- 1b ---------------------------------------------------------------------------------------------------------------
def figure_1b(source: Source) -> Figure:
    found = sweeps(source)
    rates, strengths = rate_curve(found), strength_curve(found)
    best_rate, best_strength = optima(found)
    ratio = log_ratio(rates, strengths)
    dotted = level(rates, found.small_rate, strengths, f"λ = 0 at ε = {power(found.small_rate)}")
    total = score_curve(source, found.strengths, x=TOTAL.of, label=strengths.label, colour="strength")
    panels = (
        Panel((rates, strengths, dotted), "learning rate ε, or strength λ", TEST),
        Panel((rates, all_count(total)), TOTAL.label, TEST, title="The same runs against the sum"),
    )
    verdict = Verdict(
        claim="The strength that is best at a small learning rate equals the best learning rate without penalty.",
        seen=f"Test accuracy peaks at ε = {exponent_text(best_rate.location.value)} "
        f"({percent(best_rate.score.value)}) and at λ = {exponent_text(best_strength.location.value)} "
        f"({percent(best_strength.score.value)}); λ = 0 at the small rate gives "
        f"{percent(dotted.points[0].summary.value)}."
        + rules.edge_note({"ε": best_rate.at_edge, "λ": best_strength.at_edge}),
        number=ratio,
        unit="= log₂(best λ / best ε)",
        rule="agrees if the whole interval lies in ±1: one step of the grid of powers of two; undecided if a best "
        "value is at an end of its grid",
        outcome="undecided" if best_rate.at_edge or best_strength.at_edge else within(ratio, rules.SAME_FACTOR),
    )
    says = (
        f"First: test accuracy against ε at λ = 0, and against λ at ε = {power(found.small_rate)}. "
        "Then: the same runs against λ + ε, the strength that theory says they feel."
    )
    return figure(
        "1b", "Two ways to the same test accuracy", panels, verdict, caption(source, found.rows, says=says), found.rows
    )


# -- 1c ---------------------------------------------------------------------------------------------------------------
def figure_1c(source: Source) -> Figure:
    found = sweeps(source)
    best_rate, best_strength = optima(found)
    at_rate, at_strength = rate_curve(found).x[best_rate.index], strength_curve(found).x[best_strength.index]
    rates = log_curve(found.rates, "implicit_regularizer", x=RATE.of, label="original loss, against ε", colour="rate")
    label = f"penalty λ at ε = {power(found.small_rate)}"
    strengths = log_curve(found.strengths, "implicit_regularizer", x=STRENGTH.of, label=label, colour="strength")
    fall_rate = log_fall(rates, at_rate, rates, found.small_rate)
    fall_strength = log_fall(strengths, at_strength, rates, found.small_rate)
    lowest = min(strengths.points, key=lambda point: point.summary.value)
    decisive = max((fall_rate, fall_strength), key=lambda fall: fall.value)
    panel = Panel(
        (all_count(rates), all_count(strengths)),
        "learning rate ε, or strength λ",
        "implicit regularizer C_reg at the end",
        y_scale="log2",
    )
    verdict = Verdict(
        claim="A larger learning rate and a larger strength both leave a smaller implicit regularizer C_reg.",
        seen=f"From ε = {power(found.small_rate)} to the best ε = {power(at_rate)}, C_reg changes by a factor "
        f"{exponent_text(round(fall_rate.value, 1))}; from λ = 0 to the best λ = {power(at_strength)}, by "
        f"{exponent_text(round(fall_strength.value, 1))}. "
        f"Against λ it is lowest at λ = {power(lowest.x)}.",
        number=decisive,
        unit="= log₂ of the change, the larger of the two",
        rule="agrees if both intervals lie below 0",
        outcome=both(below(fall_rate, 0.0), below(fall_strength, 0.0)),
    )
    says = "C_reg = (1/4m) Σ‖∇Ĉₖ‖² at the end of training; lines are geometric means of all runs that stayed finite."
    return figure(
        "1c",
        "The implicit regularizer at the end of training",
        (panel,),
        verdict,
        caption_of_all(source, found.rows, says),
        found.rows,
    )


def log_fall(curve: Curve, at: float, base: Curve, base_at: float) -> Interval:
    """log₂ of one point minus log₂ of another, perhaps on another curve."""
    if at not in curve.x or base_at not in base.x:
        return Interval(float("nan"), float("nan"), float("nan"))
    count, i, j = len(curve.x), curve.x.index(at), base.x.index(base_at)
    if curve is base:
        return curve.drawn.difference(i, j)
    return side_by_side(curve.drawn, base.drawn).difference(i, count + j)


def caption_of_all(source: Source, rows: list[Row], says: str) -> str:
    diverged = sum(row["status"] != "finished" for row in rows)
    left = f"{diverged} runs diverged and are left out." if diverged else "No run is left out."
    runs = f"{len(rows)} runs, {seeds_text(rows)} per point."
    return f"{says} {runs} Points are runs, bands 95 % bootstrap intervals. {left}"


# -- 6a ---------------------------------------------------------------------------------------------------------------
def figure_6a(source: Source) -> Figure:
    found = sweeps(source, **APPENDIX_D)
    rates, strengths = rate_curve(found), strength_curve(found)
    best_rate, best_strength = optima(found)
    small, count = rates.x.index(found.small_rate), len(rates.x)

    top_rate, top_strength = best_rate.index, count + best_strength.index

    def recovered(y: Array) -> Array:
        gain = y[..., 0] - y[..., 2]
        return (y[..., 1] - y[..., 2]) / np.where(gain > 0, gain, np.nan)

    # Only the three points the ratio is made of: others do not touch it.
    ratio = side_by_side(rates.drawn, strengths.drawn).only(top_rate, top_strength, small).interval(recovered)
    dotted = level(rates, found.small_rate, strengths, f"λ = 0 at ε = {power(found.small_rate)}")
    panel = Panel((rates, strengths, dotted), "learning rate ε, or strength λ", TEST)
    verdict = Verdict(
        claim="Tuning the strength influences test accuracy much as tuning the learning rate does, although the best "
        "values need not coincide (they differ by a factor 8 in appendix D).",
        seen=f"Above the small rate's {percent(dotted.points[0].summary.value)}, the learning rate gains "
        f"{100 * (best_rate.score.value - dotted.points[0].summary.value):.1f} points and the strength "
        f"{100 * (best_strength.score.value - dotted.points[0].summary.value):.1f}; the best values differ by a factor "
        f"{2 ** abs(best_strength.location.value - best_rate.location.value):g}."
        + rules.edge_note({"ε": best_rate.at_edge, "λ": best_strength.at_edge}),
        number=ratio,
        unit="= gain by λ over gain by ε",
        digits=2,
        rule=f"agrees if the whole interval lies above {rules.RECOVERS}; both best points are chosen on the same runs, "
        "which favours both gains",
        outcome=above(ratio, rules.RECOVERS),
    )
    says = f"Test accuracy against ε at λ = 0, and against λ at ε = {power(found.small_rate)}."
    return figure(
        "6a",
        "Learning rate and strength, appendix D",
        (panel,),
        verdict,
        caption(source, found.rows, says=says),
        found.rows,
    )


def figure(
    id: str, title: str, panels: tuple[Panel, ...], verdict: Verdict | None, text: str, rows: list[Row]
) -> Figure:
    diverged = sum(row["status"] != "finished" for row in rows)
    return Figure(id, title, panels, verdict, text, runs=len(rows), diverged=diverged)
