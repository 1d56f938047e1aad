"""`match`: its formulas at their limits, its honesty about small samples, and its refusals."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tacit
import tacit.edges
from cases import batch_norm_net, labels, numbers, spread
from tacit.advice.every_edge import largest_stable_strength_every
from tacit.advice.finite_rate import CALIBRATION
from tacit.advice.matching import SHARE_OF_EDGE
from tacit.advice.optimizers import Momentum
from tacit.diagnostics import Measurement, Spectrum
from tacit.diagnostics.estimates import Estimate, SampleMoments

N = 4096


def seen(squared_norm: float, variance: float, *, eigenvalue: float | None = None) -> Measurement:
    """A measurement of all N examples with these two numbers."""

    def known(value: float) -> Estimate:
        return Estimate(value, value, value)

    gamma = (N - 1) / N * variance
    return Measurement(
        train_size=N, sample=N, confidence=0.95, full_loss=known(1.0), full_gradient_squared_norm=known(squared_norm),
        gradient_covariance_trace=known(gamma), implicit_regularizer={}, signal_to_noise={}, tail_index=None,
        noise_scale=known(gamma / squared_norm if squared_norm else math.inf), learning_rate=None, self_test=None,
        largest_eigenvalue=None if eigenvalue is None else known(eigenvalue), methods={}, notes=(),
        moments=SampleMoments(N, N, squared_norm, variance),
    )  # fmt: skip


MOVE = {"learning_rate": 0.1, "batch_size": 16, "new_batch_size": 256}


def test_both_sides_regularize_equally() -> None:
    point = seen(3.0, 500.0)
    advice = tacit.match(point, **MOVE, new_learning_rate=0.07, micro_batch_size=32)
    before = 0.1 * point.regularizer(16).value
    after = 0.07 * point.regularizer(256).value + advice.strength * point.regularizer(32).value
    assert after == pytest.approx(before, rel=1e-12)
    assert advice.matched_learning_rate * point.regularizer(256).value == pytest.approx(before, rel=1e-12)


def test_where_noise_rules_the_strength_is_b_times_the_difference_of_temperatures() -> None:
    advice = tacit.match(seen(1e-9, 500.0), **MOVE, new_learning_rate=0.07, micro_batch_size=8)
    short = 8 * (0.1 / 16 - 0.07 / 256)
    assert advice.noise_dominated_strength == pytest.approx(short, rel=1e-12)
    assert advice.strength == pytest.approx(short, rel=0.01)  # B/N = 256/4096 is neglected in the short form


def test_where_noise_rules_the_matched_rate_is_linear_scaling() -> None:
    advice = tacit.match(seen(1e-9, 500.0), learning_rate=0.1, batch_size=4, new_batch_size=64)
    assert advice.matched_learning_rate == pytest.approx(1.6, rel=0.02)  # B/N is neglected in linear scaling
    assert "linear scaling holds" in advice.sentence


def test_where_the_full_gradient_rules_the_rate_stays() -> None:
    advice = tacit.match(seen(1e9, 1.0), **MOVE)
    assert advice.matched_learning_rate == pytest.approx(0.1, rel=1e-6)
    assert advice.strength == pytest.approx(0.0, abs=1e-6)


def test_linear_scaling_stops_where_the_two_terms_are_equal() -> None:
    point = seen(2.0, 500.0)
    stops = tacit.match(point, **MOVE).linear_scaling_stops
    noise = (N - 1) / N * 500.0 / stops
    assert noise == pytest.approx(2.0, rel=1e-12)


def test_a_new_rate_alone_finds_the_batch_size_that_matches() -> None:
    point = seen(1.0, 2000.0)
    advice = tacit.match(point, learning_rate=0.1, batch_size=16, new_learning_rate=0.3)
    wanted = 0.1 * point.regularizer(16).value / 0.3
    neighbours = [abs(point.regularizer(advice.new_batch_size + shift).value - wanted) for shift in (-1, 0, 1)]
    assert neighbours[1] == min(neighbours)


def test_a_rate_that_no_batch_size_can_match_is_refused() -> None:
    with pytest.raises(tacit.InputError, match="no batch size"):
        tacit.match(seen(10.0, 1.0), learning_rate=0.1, batch_size=16, new_learning_rate=0.5)


def test_a_rate_beyond_stability_is_named() -> None:
    advice = tacit.match(seen(3.0, 500.0, eigenvalue=5.0), **MOVE)
    assert advice.stability == pytest.approx(0.5)
    assert any("linear scaling to ε' = 1.6 is beyond 2/λ_max = 0.4: unstable" in note for note in advice.notes)
    assert not any("unstable" in note for note in tacit.match(seen(3.0, 500.0, eigenvalue=0.5), **MOVE).notes)


def test_a_matched_rate_beyond_stability_is_not_what_the_first_sentence_recommends() -> None:
    risky = tacit.match(seen(3.0, 500.0, eigenvalue=5.0), **MOVE).sentence
    assert risky.index("keep ε' = 0.1 and add a penalty") < risky.index("beyond 2/λ_max = 0.4 and may diverge")
    assert "use ε'" not in risky
    calm = tacit.match(seen(3.0, 500.0, eigenvalue=0.5), **MOVE).sentence
    assert "use ε'" in calm
    assert "diverge" not in calm


def test_a_requested_rate_beyond_stability_is_named() -> None:
    advice = tacit.match(seen(3.0, 500.0, eigenvalue=5.0), **MOVE, new_learning_rate=0.5)
    assert any(note.startswith("the rate ε' = 0.5 is beyond 2/λ_max = 0.4") for note in advice.notes)


def test_the_text_and_the_json_have_the_sentence_first_and_then_every_number() -> None:
    advice = tacit.match(with_spectrum(seen(3.0, 500.0, eigenvalue=5.0), values=(5.0,)), **MOVE)
    back = json.loads(advice.to_json())
    assert back["sentence"] == str(advice).splitlines()[0] == advice.sentence
    symbols = {"matched_learning_rate": "ε'", "strength": "λ", "first_order_strength": "λ₁",
               "largest_stable_strength": "λ*", "linear_scaling_stops": "Γ/‖∇C‖²", "stability": "ε'·λ_max"}  # fmt: skip
    for name, symbol in symbols.items():
        assert line(advice, symbol).split()[1] == f"{back[name]:.4g}"
    assert len(str(advice).splitlines()) == 1 + len(symbols) + len(advice.notes)


def test_the_json_has_no_infinite_numbers() -> None:
    """Without curvature no edge limits the alternatives; JSON has no word for that but null."""
    text = tacit.match(seen(3.0, 500.0), **MOVE).to_json()
    assert json.loads(text, parse_constant=pytest.fail)["alternatives"][0]["most"]["1"] is None


NUMBERS = ("strength", "matched_learning_rate", "first_order_strength", "linear_scaling_stops", "stability")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_to_train_with_is_a_float_that_json_takes_and_its_interval_stands_beside_it(name: str) -> None:
    point = with_spectrum(seen(3.0, 500.0, eigenvalue=15.0), values=(15.0,))
    advice = tacit.match(point, **MOVE)
    number = getattr(advice, name)
    assert type(number) is float
    assert json.loads(json.dumps({name: number, "interval": advice.intervals[name]})) == {
        name: number, "interval": [number, number]
    }  # fmt: skip
    assert json.loads(advice.to_json())[name] == number


def few_examples(sample: int, seed: int, new_rate: float, batch_size: int = 4) -> tacit.advice.Advice:
    model = spread(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))).double()
    data = (numbers(800, 3, seed=1), labels(800, 3, 2))
    seen = tacit.measure(model, F.cross_entropy, data, sample=sample, batch_size=4, learning_rate=0.1, seed=seed)
    return tacit.match(seen, learning_rate=0.1, batch_size=batch_size, new_batch_size=64, new_learning_rate=new_rate)


@pytest.mark.parametrize("new_rate", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("batch_size", [4, 32])
def test_no_number_or_interval_of_a_rate_or_a_strength_goes_below_zero(new_rate: float, batch_size: int) -> None:
    """Eight examples say next to nothing: intervals are wide, and some numbers are not known at all."""
    for seed in range(8):
        advice = few_examples(8, seed, new_rate, batch_size)
        for name in ("strength", "matched_learning_rate", "first_order_strength", "linear_scaling_stops"):
            assert not getattr(advice, name) < 0
            assert not any(end < 0 for end in advice.intervals[name]), (name, advice.intervals[name])
        assert not re.search(r"\bnan\b|\binf\b", str(advice)), advice
        assert "[-" not in "".join(each for each in str(advice).splitlines() if "ε'·λ_max" not in each)


def test_a_rate_beyond_the_edge_is_not_called_one_that_needs_no_penalty() -> None:
    """λ* is 0 there: no strength is stable, which is another thing than a strength that is not needed."""
    advice = tacit.match(with_spectrum(seen(3.0, 500.0, eigenvalue=25.0), values=(25.0,)), **MOVE)
    assert advice.largest_stable_strength == 0
    assert "at ε' = 0.1 no penalty is stable" in advice.sentence
    assert "no penalty is needed" not in advice.sentence
    assert "must stay below" not in str(advice)
    assert "a part of the regularization" not in str(advice)


def test_a_small_sample_says_that_it_cannot_tell_and_how_many_examples_it_takes() -> None:
    model = spread(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))).double()
    data = (numbers(800, 3, seed=1), labels(800, 3, 2))
    few = tacit.match(tacit.measure(model, F.cross_entropy, data, sample=8, batch_size=4), **MOVE)
    assert not few.decided
    assert few.notes[0].startswith("can't tell from this sample: use at least")
    everything = tacit.match(tacit.measure(model, F.cross_entropy, data, batch_size=4), **MOVE)
    assert everything.decided


def test_the_interval_of_the_advice_covers_what_all_examples_say() -> None:
    model = spread(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))).double()
    data = (numbers(800, 3, seed=1), labels(800, 3, 2))
    exact = tacit.match(tacit.measure(model, F.cross_entropy, data, batch_size=4), **MOVE)
    inside = 0
    for seed in range(40):
        sampled = tacit.measure(model, F.cross_entropy, data, sample=200, batch_size=4, seed=seed)
        low, high = tacit.match(sampled, **MOVE).intervals["strength"]
        inside += low <= exact.strength <= high
    assert inside >= 33  # 95 % of 40 is 38; fewer than 33 has probability 1e-3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"learning_rate": 0.1, "batch_size": 16}, "nothing to match"),
        ({**MOVE, "learning_rate": -0.1}, "learning_rate=-0.1; expected a positive"),
        ({**MOVE, "new_batch_size": 5000}, "new_batch_size=5000 with 4096 examples"),
        ({**MOVE, "micro_batch_size": 0}, "micro_batch_size=0"),
        ({**MOVE, "batch_size": "16"}, "batch_size='16'; expected a whole number"),
        ({**MOVE, "batch_size": 16.5}, r"batch_size=16\.5; expected a whole number"),
        ({**MOVE, "learning_rate": "0.1"}, r"learning_rate='0\.1'; expected a positive number"),
        ({**MOVE, "new_learning_rate": [0.1]}, "new_learning_rate=.*; expected a positive number"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(tacit.InputError, match=said):
        tacit.match(seen(3.0, 500.0), **arguments)


def test_a_model_with_batch_norm_gets_no_advice() -> None:
    data = (numbers(64, 3, seed=1), labels(64, 3, 2))
    mixed = tacit.measure(spread(batch_norm_net()).double(), F.cross_entropy, data, batch_size=8)
    with pytest.raises(tacit.InputError, match="batch norm"):
        tacit.match(mixed, learning_rate=0.1, batch_size=8, new_batch_size=16)


def test_a_move_that_regularizes_more_already_needs_a_strength_of_zero() -> None:
    advice = tacit.match(seen(3.0, 500.0), **MOVE, new_learning_rate=50.0)
    assert advice.strength == 0
    assert any("λ would be -6.98: (ε', B') regularizes more" in note for note in advice.notes)
    assert "no penalty is needed" in advice.sentence


def test_a_measurement_is_left_as_it_was() -> None:
    point = seen(3.0, 500.0)
    copy = replace(point)
    tacit.match(point, **MOVE)
    assert point == copy


def test_the_best_accuracy_of_a_stored_run_is_not_below_that_at_its_end() -> None:
    stored = Path(__file__).parents[2] / "benchmarks" / "results" / "advice.jsonl"
    runs = [row for row in map(json.loads, stored.read_text().splitlines()) if row["kind"] in ("run", "tuning")]
    assert runs
    assert [row for row in runs if row["best_test_accuracy"] < row["final_test_accuracy"]] == []


# -- momentum ---------------------------------------------------------------------------------------------------------
def test_where_noise_rules_momentum_multiplies_the_strength_by_one_over_one_minus_beta() -> None:
    plain = tacit.match(seen(1e-9, 500.0), **MOVE).strength
    heavy = tacit.match(seen(1e-9, 500.0), **MOVE, momentum=0.9).strength
    assert heavy == pytest.approx(10 * plain, rel=0.1)  # ρ_m of 256 and of 16 minibatches are not quite 1


def test_both_sides_regularize_equally_with_momentum() -> None:
    point = seen(3.0, 500.0)
    advice = tacit.match(point, **MOVE, new_learning_rate=0.07, micro_batch_size=32, momentum=0.9)
    old, new = (tacit.advice.regularizer_factors(rate, batches=N // size, momentum=0.9)
                for rate, size in ((0.1, 16), (0.07, 256)))  # fmt: skip

    def regularizer(full: float, noise: float, size: int) -> float:
        return (full * 3.0 + noise * (1 / size - 1 / N) * 500.0) / 4

    before = regularizer(old.full, old.noise, 16)
    after = regularizer(new.full, new.noise, 256) + advice.strength * point.regularizer(32).value
    assert after == pytest.approx(before, rel=1e-12)


def test_an_optimizer_says_the_same_as_its_numbers() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9, nesterov=True)
    by_object = tacit.match(seen(3.0, 500.0), optimizer=optimizer, batch_size=16, new_batch_size=256)
    by_number = tacit.match(seen(3.0, 500.0), **MOVE, momentum=0.9, nesterov=True)
    assert by_object == by_number
    with pytest.raises(tacit.InputError, match="both given"):
        tacit.match(seen(3.0, 500.0), **MOVE, optimizer=optimizer, momentum=0.9)


# -- the edge and finite rates ----------------------------------------------------------------------------------------
def with_spectrum(
    point: Measurement,
    *,
    values: tuple[float, ...],
    variance: float = 0.0,
    square_spreads: dict[int, float] | None = None,
) -> Measurement:
    assert point.largest_eigenvalue is not None
    weights, largest = tuple(1 / len(values) for _ in values), point.largest_eigenvalue.value
    return replace(point, spectrum=Spectrum(values, weights, largest, variance, N, square_spreads or {}))


def test_flat_directions_leave_the_first_order_strength_and_its_calibration() -> None:
    point = with_spectrum(seen(3.0, 500.0, eigenvalue=0.1), values=(0.0,))
    advice = tacit.match(point, **MOVE)
    assert advice.finite_rate_factor == 1.0
    assert advice.first_order_strength == tacit.match(seen(3.0, 500.0), **MOVE).strength
    assert advice.strength == pytest.approx(CALIBRATION * advice.first_order_strength, rel=1e-12)


def test_noise_along_curved_directions_needs_more_strength() -> None:
    """At ε h = 1, half of the edge, the noise is twice what the first order says, and so is λ."""
    curved, flat = (with_spectrum(seen(3.0, 500.0, eigenvalue=0.1), values=(h,)) for h in (10.0, 0.0))
    advice = tacit.match(curved, **MOVE)
    assert advice.finite_rate_factor == pytest.approx(2.0)
    assert advice.strength == pytest.approx(2 * tacit.match(flat, **MOVE).strength, rel=1e-12)
    assert "λ = 2 F λ₁, F = 2" in line(advice, "λ")


def test_the_advice_never_exceeds_its_share_of_the_edge() -> None:
    point = with_spectrum(seen(3.0, 500.0, eigenvalue=15.0), values=(15.0,))
    advice = tacit.match(point, **MOVE)
    edge = tacit.edges.largest_stable_strength(0.1, 15.0)
    assert advice.largest_stable_strength == pytest.approx(edge)
    assert advice.strength == pytest.approx(SHARE_OF_EDGE * edge)
    assert any("is not made up" in note for note in advice.notes)
    every = tacit.match(point, **MOVE, every=4, momentum=0.9)
    own = largest_stable_strength_every(0.1, 15.0, every=4, momentum=Momentum(0.9))
    assert every.strength == pytest.approx(SHARE_OF_EDGE * own)


def test_micro_batches_that_differ_in_curvature_lower_the_edge() -> None:
    """(1/b − 1/N) variance = λ_max², so the mean of squared Hessians is twice the square of the mean."""
    variance = 25.0 / (1 / 16 - 1 / N)
    point = with_spectrum(seen(3.0, 500.0, eigenvalue=5.0), values=(0.0,), variance=variance)
    edge = tacit.edges.largest_stable_strength(0.1, 5.0)
    assert tacit.match(point, **MOVE).largest_stable_strength == pytest.approx(edge / 2)


def test_a_changed_rate_is_not_kept() -> None:
    assert "keep ε' = 0.1" in tacit.match(seen(3.0, 500.0), **MOVE).sentence
    changed = tacit.match(seen(3.0, 500.0), **MOVE, new_learning_rate=0.05).sentence
    assert "set ε' = 0.05" in changed
    assert "keep" not in changed


def test_the_advice_makes_the_objects_to_train_with() -> None:
    advice = tacit.match(seen(3.0, 500.0), **MOVE, momentum=0.9)
    model = nn.Linear(2, 2)
    penalty, optimizer = advice.penalty(model), advice.optimizer(model.parameters(), weight_decay=0.1)
    assert (penalty.strength, penalty.micro_batch_size) == (advice.strength, 16)
    x = torch.ones(16, 2)
    applied = []
    for made in (penalty, advice.penalty(model, largest_ratio=None)):
        # Curvatures far beyond those that were measured: at most as much penalty as loss, unless that is switched off.
        for _ in range(2):
            made.backward(lambda x: 1e6 * model(x).square().mean(), x)
        applied.append((made.last.strength, 2 / float(made.last.batch_sharpness)))
    assert applied[0][0] == pytest.approx(applied[0][1], rel=1e-4)  # float32, and the first step is a weak one
    assert applied[1][0] == advice.strength > 100 * applied[0][0]
    group = optimizer.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 0.1)


def test_the_optimizer_keeps_the_weight_decay_of_the_one_that_was_given() -> None:
    weights = [[nn.Parameter(torch.zeros(2))] for _ in range(2)]
    options = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
    move = {"batch_size": 16, "new_batch_size": 256}
    given = torch.optim.SGD(weights[0], **options, weight_decay=0.01)
    made = tacit.match(seen(3.0, 500.0), optimizer=given, **move).optimizer(weights[0]).param_groups[0]
    assert (made["weight_decay"], made["momentum"], made["nesterov"]) == (0.01, 0.9, True)
    groups = [{"params": weights[0], "weight_decay": 0.01}, {"params": weights[1]}]
    differ = tacit.match(seen(3.0, 500.0), optimizer=torch.optim.SGD(groups, **options), **move)
    with pytest.raises(tacit.InputError, match="differed in weight decay"):
        differ.optimizer(weights[0])
    assert differ.optimizer(weights[0], weight_decay=0.5).param_groups[0]["weight_decay"] == 0.5


def test_a_penalty_of_the_optimizer_itself_is_named() -> None:
    for strength in (0.0, 0.25):
        own = tacit.FactoredSGD(nn.Linear(2, 1), lr=0.1, strength=strength)
        advice = tacit.match(seen(3.0, 500.0), optimizer=own, batch_size=16, new_batch_size=256)
        assert any("own penalty of strength 0.25" in note for note in advice.notes) == (strength > 0)


def test_numpy_s_numbers_are_as_good_as_others() -> None:
    move = {"learning_rate": np.float32(0.5), "batch_size": np.int64(16), "new_batch_size": np.int32(256)}
    advice = tacit.match(seen(3.0, 500.0), **move, micro_batch_size=np.int64(8))
    assert json.loads(advice.to_json())["new_batch_size"] == 256


@pytest.mark.parametrize("other", [{"every": 4}, {"micro_batch_size": 64}])
def test_a_penalty_with_settings_that_the_advice_does_not_know_is_refused(other: dict[str, int]) -> None:
    advice = tacit.match(seen(3.0, 500.0), **MOVE)
    with pytest.raises(tacit.InputError, match=r"use tacit\.match\(…, "):
        advice.penalty(nn.Linear(2, 2), **other)
    assert advice.penalty(nn.Linear(2, 2), every=1, micro_batch_size=16).micro_batch_size == 16


def test_an_advice_that_is_not_decided_makes_no_penalty() -> None:
    undecided = replace(tacit.match(seen(3.0, 500.0), **MOVE), decided=False, notes=("can't tell",))
    with pytest.raises(tacit.InputError, match="no strength yet: can't tell"):
        undecided.penalty(nn.Linear(2, 2))


# -- what the text says -----------------------------------------------------------------------------------------------
def line(advice: tacit.advice.Advice, symbol: str) -> str:
    return next(line for line in str(advice).splitlines()[1:] if line.split()[0] == symbol)


def test_the_sentence_says_which_number_is_first_order_and_which_is_calibrated() -> None:
    calibrated = tacit.match(with_spectrum(seen(3.0, 500.0, eigenvalue=0.1), values=(0.0,)), **MOVE)
    assert "the first-order match" in calibrated.sentence
    assert f"λ = {calibrated.strength:.4g} (calibrated)" in calibrated.sentence
    assert "calibrated" not in tacit.match(seen(3.0, 500.0), **MOVE).sentence
    held = tacit.match(with_spectrum(seen(3.0, 500.0, eigenvalue=15.0), values=(15.0,)), **MOVE)
    assert f"λ = {held.strength:.4g} (held at the edge)" in held.sentence


def test_at_a_changed_rate_the_text_claims_no_common_factor_and_names_the_two_of_the_noise() -> None:
    """At the first-order match itself λ₁ is 0 and λ is not: no number times λ₁ is λ."""
    point = with_spectrum(seen(3.0, 500.0, eigenvalue=0.1), values=(1.0,))
    matched = tacit.match(point, **MOVE).matched_learning_rate
    advice = tacit.match(point, **MOVE, new_learning_rate=matched)
    assert advice.first_order_strength == pytest.approx(0.0, abs=1e-9)
    assert advice.strength > 0
    assert any("matched to first order" in note for note in advice.notes)
    assert "F λ₁" not in str(advice)
    now, then = (tacit.advice.finite_rate_factor(point.spectrum, learning_rate=rate) for rate in (0.1, matched))
    assert f"F = {now:.3g} at ε and {then:.3g} at ε'" in line(advice, "λ")
    assert not any("matched to first order" in note for note in tacit.match(point, **MOVE).notes)


def test_the_lines_of_the_strengths_say_how_one_follows_from_the_other() -> None:
    advice = tacit.match(with_spectrum(seen(3.0, 500.0, eigenvalue=0.1), values=(10.0,)), **MOVE)
    assert "λ = 2 F λ₁, F = 2" in line(advice, "λ")
    assert advice.strength == pytest.approx(2 * 2 * advice.first_order_strength, rel=1e-12)
    short = f"if noise rules b(ε/B − ε'/B') = {advice.noise_dominated_strength:.4g}"
    assert f"to first order (Eq. 22); {short}" in line(advice, "λ₁")
    alone = tacit.match(seen(3.0, 500.0), **MOVE)
    assert short in line(alone, "λ")
    assert "λ₁" not in str(alone)
    assert "b(ρε_e/B − ρ'ε_e'/B')" in line(tacit.match(seen(3.0, 500.0), **MOVE, momentum=0.9), "λ")


@pytest.mark.parametrize("nesterov", [False, True])
def test_with_momentum_linear_scaling_stops_where_its_own_two_terms_are_equal(nesterov: bool) -> None:
    point = seen(2.0, 500.0)
    advice = tacit.match(point, **MOVE, momentum=0.9, nesterov=nesterov)
    factors = tacit.advice.regularizer_factors(0.1, batches=N // 256, momentum=0.9, nesterov=nesterov)
    stops = advice.linear_scaling_stops
    assert factors.noise * (N - 1) / N * 500.0 / stops == pytest.approx(factors.full * 2.0, rel=1e-12)
    assert f"{stops:.4g}" in line(advice, "ρΓ/a‖∇C‖²")
    assert stops < tacit.match(point, **MOVE).linear_scaling_stops / 10


def test_with_momentum_nothing_is_said_of_the_theory_of_plain_sgd() -> None:
    point = seen(3.0, 500.0, eigenvalue=5.0)
    assert "inside the theory" in line(tacit.match(point, **MOVE), "ε'·λ_max")
    heavy = line(tacit.match(point, **MOVE, momentum=0.9), "ε'·λ_max")
    assert "above 3.8: unstable" in heavy
    assert "theory" not in heavy
    assert "log" not in heavy


def test_minibatches_that_differ_in_curvature_lower_the_edge_of_momentum_and_of_nothing_else() -> None:
    """Momentum remembers the scatter (docs/large-batch.md); at a larger batch there is less of it, and more room."""
    point = with_spectrum(seen(3.0, 500.0, eigenvalue=15.0), values=(15.0,), variance=15.0**2 * 20)
    of_micro_batches = point.spectrum.curvature_spread(16)
    for beta, sizes in ((0.0, (256, 512)), (0.9, (256, 512))):
        alone = tacit.edges.largest_stable_strength(
            0.01, 15.0, step=tacit.edges.Step(momentum=beta, curvature_spread=of_micro_batches)
        )
        edges = [
            tacit.match(
                point, learning_rate=0.01, batch_size=16, new_batch_size=size, micro_batch_size=16, momentum=beta
            ).largest_stable_strength
            for size in sizes
        ]
        if beta == 0:
            assert edges == [alone, alone]
        else:
            assert edges[0] < edges[1] < alone
