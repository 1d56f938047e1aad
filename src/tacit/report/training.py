"""Figures 2a, 2b, 5a and 5b: training accuracy and loss beside the test accuracy."""

from __future__ import annotations

import numpy as np

from tacit.report import verdict as rules
from tacit.report.ensemble import Interval, Row, ensemble, repeated, score_cell
from tacit.report.figure import Curve, Figure, Panel, all_count, caption, log_curve, percent, power, score_curve
from tacit.report.selection import SGD, VARIABLES, Source, alike, need, shared_strength, small_rate
from tacit.report.strengths import caption_of_all, figure, log_fall, optima, rate_curve, strength_curve, sweeps
from tacit.report.verdict import Verdict, above, points, within

RATE, STRENGTH = VARIABLES["learning_rate"], VARIABLES["strength"]
RANKS = "The training curve takes its own best runs, by highest training accuracy."
TRAINED = 0.005  # a rate trains as well as any when its accuracy is within half a point of the highest


def test_and_training(source: Source, rows: list[Row], *, colour: str, name: str) -> tuple[Curve, Curve]:
    test = score_curve(source, rows, x=RATE.of, label=f"test accuracy, {name}", colour=colour)
    train = score_curve(
        source,
        rows,
        x=RATE.of,
        label=f"training accuracy, {name}",
        colour="training",
        score="best_train_accuracy",
        style="dashed",
    )
    return all_count(test), all_count(train)


def best_indices(test: Curve, train: Curve) -> tuple[int, int]:
    """Where test accuracy is highest, and the smallest rate that trains as well as any."""
    test_values = np.array([point.summary.value for point in test.points])
    train_values = np.array([point.summary.value for point in train.points])
    taking_part = np.array(repeated(test.drawn))  # a single run is neither
    trained = train_values[taking_part] >= train_values[taking_part].max() - TRAINED
    return int(taking_part[test_values[taking_part].argmax()]), int(taking_part[np.flatnonzero(trained)[0]])


def is_edge(index: int, curve: Curve) -> bool:
    return curve.x[index] in (min(curve.x), max(curve.x))


def benefit(source: Source, rows: list[Row], test: Curve, train: Curve) -> tuple[Interval, int, int]:
    """Test accuracy at its best rate minus test accuracy at the smallest rate that trains as well as any."""
    highest, trained = best_indices(test, train)
    return test.drawn.difference(highest, trained), highest, trained


# -- 2a ---------------------------------------------------------------------------------------------------------------
def figure_2a(source: Source) -> Figure:
    rows = need(source.where(strength=0.0), "learning rates at λ = 0", points=3, key="learning_rate")
    alike(rows, varying=("learning_rate",), **SGD)
    test, train = test_and_training(source, rows, colour="rate", name="λ = 0")
    gain, highest, trained = benefit(source, rows, test, train)
    verdict = Verdict(
        claim="Without penalty, the learning rate that is best for test accuracy is larger than the one that is best "
        "for training accuracy.",
        seen=f"Test accuracy is highest at ε = {power(test.x[highest])} "
        f"({percent(test.points[highest].summary.value)}), where training accuracy is "
        f"{percent(train.points[highest].summary.value)}. Training accuracy is already at its highest from "
        f"ε = {power(test.x[trained])} on, where test accuracy is "
        f"{percent(test.points[trained].summary.value)}: a factor {test.x[highest] / test.x[trained]:g} in the rate."
        + rules.edge_note({"ε": is_edge(highest, test)}),
        number=points(gain),
        unit="points from the larger rate",
        rule=rules.gain_rule(),
        outcome=above(gain, rules.MATERIAL),
    )
    says = f"Highest test and training accuracy against ε on the original loss. {RANKS}"
    panel = Panel((test, train), RATE.label, "accuracy")
    return figure("2a", "Large rates help without a penalty", (panel,), verdict, caption(source, rows, says=says), rows)


# -- 2b ---------------------------------------------------------------------------------------------------------------
def figure_2b(source: Source) -> Figure:
    strength = shared_strength(source.rows)
    with_penalty = need(source.where(strength=strength), "learning rates at one λ > 0", points=3, key="learning_rate")
    without = need(source.where(strength=0.0), "learning rates at λ = 0", points=3, key="learning_rate")
    rows = alike([*with_penalty, *without], varying=("learning_rate", "strength"), **SGD)
    test, train = test_and_training(source, with_penalty, colour="strength", name=f"λ = {power(strength)}")
    plain_test, plain_train = test_and_training(source, without, colour="rate", name="λ = 0")
    gain, highest, trained = benefit(source, with_penalty, test, train)
    plain_gain, plain_highest, plain_trained = benefit(source, without, plain_test, plain_train)
    values = [
        score_cell([row for row in rows if row["spec"]["learning_rate"] == curve.x[index]], source.score)
        for rows, curve, index in (
            (without, plain_test, plain_highest),
            (without, plain_test, plain_trained),
            (with_penalty, test, highest),
            (with_penalty, test, trained),
        )
    ]
    lost = ensemble(values, best=source.best).interval(lambda y: (y[..., 0] - y[..., 1]) - (y[..., 2] - y[..., 3]))
    verdict = Verdict(
        claim="With a good strength in the loss, the benefit of a large learning rate is diminished.",
        seen=f"With λ = {power(strength)}, test accuracy is highest at ε = {power(test.x[highest])} "
        f"({percent(test.points[highest].summary.value)}), training accuracy from ε = {power(test.x[trained])} on "
        f"(test {percent(test.points[trained].summary.value)}): the two optima differ by a factor "
        f"{test.x[highest] / test.x[trained]:g}, and the larger rate gives {100 * gain.value:.1f} points. Without the "
        f"penalty they differ by a factor {plain_test.x[plain_highest] / plain_test.x[plain_trained]:g}, and it gives "
        f"{100 * plain_gain.value:.1f} points."
        + rules.edge_note({"ε with λ": is_edge(highest, test), "ε without": is_edge(plain_highest, plain_test)}),
        number=points(lost),
        unit="points less benefit",
        rule=f"agrees if the whole interval lies above {100 * rules.MATERIAL:.0f} point; both best points are "
        "chosen on the same runs, which favours either gain by up to about a point on average",
        outcome=above(lost, rules.MATERIAL),
    )
    says = f"Highest test and training accuracy against ε with λ = {power(strength)}, and λ = 0 beside it. {RANKS}"
    panel = Panel((test, train, plain_test), RATE.label, "accuracy")
    return figure(
        "2b", "Large rates help less with a penalty", (panel,), verdict, caption(source, rows, says=says), rows
    )


# -- 5a, 5b -----------------------------------------------------------------------------------------------------------
def figure_5a(source: Source) -> Figure:
    found = sweeps(source)
    label = f"penalty λ at ε = {power(found.small_rate)}"
    key = "best_train_accuracy"
    rates = score_curve(source, found.rates, x=RATE.of, label="original loss, against ε", colour="rate", score=key)
    strengths = score_curve(source, found.strengths, x=STRENGTH.of, label=label, colour="strength", score=key)
    drop = strengths.drawn.difference(0, len(strengths.x) - 1)
    best_index = int(np.argmax([point.summary.value for point in rates.points]))
    verdict = Verdict(
        claim="At a small learning rate, a small strength allows a high training accuracy and a large one does not.",
        seen=f"Training accuracy is {percent(strengths.points[0].summary.value)} at λ = {power(strengths.x[0])} and "
        f"{percent(strengths.points[-1].summary.value)} at λ = {power(strengths.x[-1])}. Against ε it reaches "
        f"{percent(rates.points[best_index].summary.value)} and ends at {percent(rates.points[-1].summary.value)} for "
        f"ε = {power(rates.x[-1])}.",
        number=points(drop),
        unit="points lost at the largest λ",
        rule=f"agrees if the whole interval lies above {100 * rules.MATERIAL:.0f} point",
        outcome=above(drop, rules.MATERIAL),
    )
    panel = Panel(
        (all_count(rates), all_count(strengths)), "learning rate ε, or strength λ", "highest training accuracy"
    )
    says = "The highest training accuracy of the runs of figure 1b."
    return figure(
        "5a",
        "Training accuracy of the two sweeps",
        (panel,),
        verdict,
        caption(source, found.rows, says=says).replace("by highest test", "by highest training"),
        found.rows,
    )


def figure_5b(source: Source) -> Figure:
    found = sweeps(source)
    best_rate, best_strength = optima(found)
    at_rate, at_strength = rate_curve(found).x[best_rate.index], strength_curve(found).x[best_strength.index]
    label = f"penalty λ at ε = {power(small_rate(source.rows))}"
    rates = log_curve(found.rates, "full_loss", x=RATE.of, label="original loss, against ε", colour="rate")
    strengths = log_curve(found.strengths, "full_loss", x=STRENGTH.of, label=label, colour="strength")
    ratio = log_fall(strengths, at_strength, rates, at_rate)
    verdict = Verdict(
        claim="A large learning rate and a large strength end at similar values of the original loss C.",
        seen=f"At the best λ = {power(at_strength)} the loss ends at {_loss(strengths, at_strength)}, at the best "
        f"ε = {power(at_rate)} at {_loss(rates, at_rate)}.",
        number=ratio,
        unit="= log₂ of the ratio of the losses",
        rule="agrees if the whole interval lies in ±1, a factor of two; each sweep at its best test accuracy",
        outcome=within(ratio, rules.SAME_FACTOR),
    )
    panel = Panel(
        (all_count(rates), all_count(strengths)),
        "learning rate ε, or strength λ",
        "original loss C at the end",
        y_scale="log2",
    )
    says = "The original loss on the training set at the end of the runs of figure 1b; lines are geometric means."
    return figure(
        "5b", "Training loss of the two sweeps", (panel,), verdict, caption_of_all(source, found.rows, says), found.rows
    )


def _loss(curve: Curve, at: float) -> str:
    value = next((point.summary.value for point in curve.points if point.x == at), float("nan"))
    return f"{2**value:.2g}"
