"""Verdicts follow the world they are shown, in both directions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worlds import bump, paper_world, sde_world

from tacit.report import Criterion, Report, build_report, catalogue, read_parts
from tacit.report.numbers import Number, unknown
from tacit.report.verdict import Verdict
from tacit.studies.describe.spec import RunSpec

Maker = Callable[..., Path]


@pytest.fixture(scope="module")
def paper(make_world: Maker) -> Report:
    return build_report(read_parts([make_world(paper_world)]))


@pytest.fixture(scope="module")
def sde(make_world: Maker) -> Report:
    return build_report(read_parts([make_world(sde_world)]))


def verdict_of(report: Report, id: str) -> Verdict:
    found = next(figure for figure in report.figures if figure.id == id)
    assert found.verdict is not None
    return found.verdict


def outcome(report: Report, id: str) -> str:
    return verdict_of(report, id).outcome


# -- rules ------------------------------------------------------------------------------------------------------------
def known(value: float, half: float, *, seeds: int = 3) -> Number:
    """A number whose 95 % interval is ± half; other levels by the normal law."""
    widths = {0.90: 1.645, 0.95: 1.960, 0.975: 2.241}

    def ends(level: float) -> tuple[float, float]:
        width = half * widths[round(level, 3)] / 1.960
        return value - width, value + width

    return Number(value, ends, seeds)


def judged(value: float, half: float, kind: Any, bound: float, **more: Any) -> Criterion:
    return Criterion(known(value, half), "points", kind, bound, **more)


def test_an_interval_that_straddles_the_threshold_is_undecided() -> None:
    assert judged(2, 1.5, "above", 1).outcome() == "undecided"


def test_an_interval_on_one_side_of_the_threshold_decides() -> None:
    assert judged(2, 0.5, "above", 1).outcome() == "agrees"
    assert judged(0, 0.5, "above", 1).outcome() == "disagrees"
    assert judged(0.2, 0.1, "below", 0.5).outcome() == "agrees"
    assert judged(0.8, 0.1, "below", 0.5).outcome() == "disagrees"


def test_equality_needs_the_90_percent_interval_inside_the_margin() -> None:
    assert judged(0.0, 0.5, "within", 1).outcome() == "agrees"
    assert judged(0.12, 1.0, "within", 1).outcome() == "agrees"  # 0.12 + 0.84; the 95 % interval ends at 1.12
    assert judged(0.9, 0.5, "within", 1).outcome() == "undecided"
    assert judged(3.0, 1.0, "within", 1).outcome() == "disagrees"


def test_without_an_interval_nothing_is_decided() -> None:
    alone = Verdict("", "", (Criterion(unknown(5.0), "", "above", 0.0),))
    assert alone.outcome == "undecided"
    assert "at least two seeds" in alone.advice


def test_one_part_that_fails_decides_a_claim_with_parts_and_is_named() -> None:
    parts = (judged(5, 1, "above", 0, name="first"), judged(-5, 1, "above", 0, name="second"))
    found = Verdict("", "", parts)
    assert found.outcome == "disagrees"
    assert "The part that decides: second" in found.rule


def test_one_of_two_parts_needs_a_wider_interval_to_contradict() -> None:
    """Two chances to contradict by accident: −1.05 ± 1 contradicts alone, −1.05 ± 1.14 does not."""
    part = judged(-1.05, 1, "above", 0, name="first")
    assert Verdict("", "", (part,)).outcome == "disagrees"
    assert Verdict("", "", (part, judged(5, 1, "above", 0, name="second"))).outcome == "undecided"


def test_an_undecided_claim_says_which_way_it_points_and_how_many_seeds_it_needs() -> None:
    # 1 above the bound with ± 2 from 3 seeds: the width must halve, so four times as many.
    assert Verdict("", "", (judged(2, 2, "above", 1),)).advice == (
        "Points towards agreement; about 12 seeds would decide it."
    )
    assert "towards disagreement; about 12 seeds" in Verdict("", "", (judged(0, 2, "above", 1),)).advice
    # ± 1.5 at 95 % is ± 1.26 at 90 %; the margin leaves 0.5: 3 · (1.26/0.5)² = 19.02.
    assert "about 20 seeds" in Verdict("", "", (judged(1.0, 1.5, "within", 1.5),)).advice


def test_a_blocked_criterion_names_the_reason_and_no_number_of_seeds() -> None:
    found = Verdict("", "", (judged(9, 1, "above", 0, blocked="the best ε is an end of its grid"),))
    assert (found.outcome, found.advice) == ("undecided", "Undecided: the best ε is an end of its grid.")


# -- worlds -----------------------------------------------------------------------------------------------------------
def test_every_figure_of_the_paper_is_built_and_judged(paper: Report) -> None:
    assert [figure.id for figure in paper.figures] == list(catalogue())
    assert paper.absent == {}
    assert all(figure.verdict is not None for figure in paper.figures)


@pytest.mark.parametrize("id", ["1a", "1b", "2a", "3a", "3b", "6a", "6b", "6c", "7a", "7b", "orders"])
def test_in_a_world_made_as_the_paper_says_the_verdict_agrees(paper: Report, id: str) -> None:
    assert outcome(paper, id) == "agrees"


@pytest.mark.parametrize("id", ["3a", "3b", "6b", "6c", "7a", "7b"])
def test_in_a_world_of_effective_rates_no_collapse_is_seen(sde: Report, id: str) -> None:
    assert outcome(sde, id) == "disagrees"


def test_n_step_curves_that_reach_the_same_height_contradict_figure_4_and_confirm_7c(paper: Report) -> None:
    assert outcome(paper, "4a") == "disagrees"
    assert outcome(paper, "7c") == "agrees"


def test_n_step_curves_that_fall_with_n_confirm_figure_4(make_world: Maker) -> None:
    def falls(run: RunSpec) -> float:
        return paper_world(run) - 0.03 * math.log2(run.inner_steps)

    found = build_report(read_parts([make_world(falls, only=("inner-steps-decay", "inner-steps-constant"))]))
    assert [outcome(found, id) for id in ("4a", "4b", "4c", "7c")] == ["agrees", "agrees", "agrees", "disagrees"]


def test_a_shifted_optimum_contradicts_figure_1b(make_world: Maker) -> None:
    def shifted(run: RunSpec) -> float:
        return bump((run.learning_rate + run.strength / 4) / run.batch_size, -7)

    found = build_report(read_parts([make_world(shifted, only=("rates", "strengths"))]))
    assert outcome(found, "1b") == "disagrees"


def test_a_penalty_that_does_nothing_contradicts_figures_1a_and_6a(make_world: Maker) -> None:
    def unmoved(run: RunSpec) -> float:
        return bump(run.learning_rate / run.batch_size, -7)

    found = build_report(read_parts([make_world(unmoved, scatter=0.001, only=("rates", "strengths"))]))
    assert [outcome(found, id) for id in ("1a", "6a")] == ["disagrees", "disagrees"]


def test_orders_that_differ_are_seen(make_world: Maker) -> None:
    def ordered(run: RunSpec) -> float:
        return paper_world(run) - (0.06 if run.order == "shuffle_once" else 0.0)

    found = build_report(read_parts([make_world(ordered, only=("rates", "orders"))]))
    assert outcome(found, "orders") == "disagrees"


def test_an_n_in_the_middle_that_differs_contradicts_7c(make_world: Maker) -> None:
    def middle(run: RunSpec) -> float:
        return paper_world(run) - (0.06 if run.inner_steps == 4 else 0.0)

    found = build_report(read_parts([make_world(middle, only=("inner-steps-constant",))]))
    assert outcome(found, "7c") == "disagrees"


def test_an_optimum_at_the_end_of_the_grid_leaves_1b_undecided(make_world: Maker) -> None:
    def rising(run: RunSpec) -> float:
        return 0.5 + 0.01 * math.log2(run.learning_rate + run.strength)

    found = build_report(read_parts([make_world(rising, only=("rates", "strengths"))]))
    assert outcome(found, "1b") == "undecided"
    assert "the best ε and λ" in verdict_of(found, "1b").seen


# -- rows that do not belong together ---------------------------------------------------------------------------------
def changed(report: Report, id: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Report:
    """The report of the same parts after `change` was applied to every spec."""
    parts = [replace(part, rows=[{**row, "spec": change(row["spec"])} for row in part.rows]) for part in report.parts]
    return build_report(parts, only=[id])


@pytest.mark.parametrize("id", list(catalogue()))
def test_runs_of_another_setting_are_not_taken_for_seeds(paper: Report, id: str) -> None:
    found = changed(paper, id, lambda spec: {**spec, "width": 32} if spec["seed"] in (81, 141) else spec)
    assert found.figures == ()
    assert "differ in width: 32, 64" in found.absent[id]


@pytest.mark.parametrize(("id", "key", "value"), [
    ("4a", "schedule", "constant"), ("4b", "schedule", "constant"), ("4c", "schedule", "constant"),
    ("7a", "schedule", "paper_decay"), ("7b", "schedule", "paper_decay"), ("7c", "schedule", "paper_decay"),
    ("6a", "weight_decay", 0.5), ("6b", "weight_decay", 0.5), ("6c", "weight_decay", 0.5),
    ("1b", "order", "fixed"), ("2a", "order", "fixed"), ("2b", "schedule", "paper_decay"), ("3a", "order", "fixed"),
    ("3b", "inner_steps", 2), ("5a", "order", "fixed"), ("orders", "schedule", "paper_decay"),
])  # fmt: skip
def test_a_figure_refuses_runs_of_another_protocol(paper: Report, id: str, key: str, value: object) -> None:
    assert f"needs runs with {key} = " in changed(paper, id, lambda spec: {**spec, key: value}).absent[id]


def test_a_seed_that_is_there_twice_is_not_two_runs(paper: Report) -> None:
    found = changed(paper, "2a", lambda spec: {**spec, "seed": min(spec["seed"], 1)})
    assert "seed 1 is there twice" in found.absent["2a"]


def test_epochs_and_updates_of_equal_length_are_alike(paper: Report) -> None:
    def in_updates(spec: dict[str, Any]) -> dict[str, Any]:
        return {**spec, "epochs": None, "updates": 25600} if spec["seed"] in (81, 141) else spec

    assert changed(paper, "2a", in_updates).absent == {}


def test_one_point_with_a_single_run_leaves_the_figure_its_number(paper: Report) -> None:
    parts = [
        replace(part, rows=[r for r in part.rows if r["spec"]["learning_rate"] != 2**-2 or r["spec"]["seed"] == 0])
        for part in paper.parts
    ]
    found = build_report(parts)
    assert [outcome(found, id) for id in ("1b", "2a", "3a", "6a")] == ["agrees"] * 4


def test_points_that_did_not_learn_are_left_out_of_a_collapse(make_world: Maker) -> None:
    def fails_at_large_rates(row: dict[str, Any]) -> None:
        spec = row["spec"]
        if spec["learning_rate"] / spec["batch_size"] > 2**-8.5:
            row["best_test_accuracy"], row["final_train_accuracy"] = 0.1 + 0.01 * spec["batch_size"], 0.2

    root = make_world(paper_world, only=("rates", "batch-rates"), change=fails_at_large_rates)
    assert outcome(build_report(read_parts([root])), "3a") == "agrees"


# -- too few runs -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("seeds", "points", "label"),
    [
        (2, None, "undecided so far"),
        (3, None, "agrees"),
        (9, 5, "undecided so far"),
        (9, 6, "agrees"),
        (10, 4, "agrees"),
        (2, 9, "undecided so far"),
    ],
)
def test_a_verdict_on_few_seeds_or_points_is_undecided_so_far_on_pages(
    seeds: int, points: int | None, label: str
) -> None:
    number = Number(2.0, lambda level: (1.5, 2.5), seeds)
    verdict = Verdict("", "", (Criterion(number, "points", "above", 1.0, points=points),))
    assert verdict.outcome == "agrees"  # what is stored does not depend on how many runs there are
    assert verdict.label == label
    assert verdict.shown_outcome == label.split()[0]
    assert bool(verdict.advice) == (label != "agrees")


def test_a_claim_that_is_undecided_anyway_is_not_called_undecided_so_far() -> None:
    verdict = Verdict("", "", (Criterion(Number(2.0, lambda level: (0.5, 3.5), 2), "points", "above", 1.0),))
    assert (verdict.label, verdict.few) == ("undecided", "")
