"""Which of the drawn micro-batches are proposed: the fewest whose edge λ*(q) leaves room for the strength."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_matching import MOVE, seen, with_spectrum
from torch import nn
from torch.nn import functional as F

import tacit
from tacit.advice.matching import SHARE_OF_EDGE, SHARE_OF_SAMPLED_EDGE
from tacit.diagnostics import Measurement
from tacit.edges import largest_stable_strength, largest_stable_strength_sampled

MICRO, BATCHES = 16, 16


def point(spread: float | None, *, eigenvalue: float = 5.0) -> Measurement:
    """A measured point; squared curvatures of micro-batches of 16 scatter by `spread` times their mean."""
    spreads = {} if spread is None else {MICRO: spread}
    return with_spectrum(seen(3.0, 500.0, eigenvalue=eigenvalue), values=(eigenvalue,), square_spreads=spreads)


def edge(q: int, spread: float, *, eigenvalue: float = 5.0, momentum: float = 0.0) -> float:
    """λ*(q) in closed form, of sixteen micro-batches one of which is sharper than the others."""
    sharper = [-(15**-0.5)] * 15 + [15**0.5]
    squares = [eigenvalue**2 * (1 + spread * each) for each in sharper]
    return largest_stable_strength_sampled(
        0.1, [eigenvalue] * BATCHES, squares=squares, sampled=q, momentum=momentum
    )  # fmt: skip


@pytest.mark.parametrize(("spread", "fewest"), [(0.0, 1), (0.9, 1), (2.0, 2), (3.0, 4), (3.8, 4)])
def test_the_fewest_micro_batches_whose_edge_leaves_room_are_proposed(spread: float, fewest: int) -> None:
    advice = tacit.match(point(spread), **MOVE)
    asked = tacit.match(point(None), **MOVE).strength
    assert advice.sampled == fewest
    assert next(q for q in (1, 2, 4, 8) if asked <= SHARE_OF_SAMPLED_EDGE * edge(q, spread)) == fewest
    assert advice.strength == asked
    assert advice.largest_stable_strength == pytest.approx(edge(fewest, spread), rel=1e-6)
    assert f"{fewest} drawn of 16 micro-batches of 16" in advice.sentence
    assert f"λ*({fewest})" in str(advice)


@pytest.mark.parametrize("eigenvalue", [8.0, 15.0])  # at 15 the whole penalty is held too
def test_where_only_all_of_them_leave_room_the_whole_penalty_is_proposed(eigenvalue: float) -> None:
    sampled, whole = (tacit.match(point(spread, eigenvalue=eigenvalue), **MOVE) for spread in (50.0, None))
    assert sampled.sampled is None
    assert sampled.strength == whole.strength
    assert sampled.largest_stable_strength == whole.largest_stable_strength
    assert "drawn" not in sampled.sentence
    assert not any("was not measured" in note for note in sampled.notes)


def test_the_strength_of_a_proposed_sample_is_that_of_the_whole_penalty() -> None:
    drawn, whole = tacit.match(point(0.3), **MOVE), tacit.match(point(0.3), **MOVE, sampled=BATCHES)
    assert (drawn.sampled, whole.sampled) == (1, None)
    for name in ("strength", "first_order_strength", "matched_learning_rate", "finite_rate_factor", "intervals"):
        assert getattr(drawn, name) == getattr(whole, name)
    assert whole.largest_stable_strength == pytest.approx(largest_stable_strength(0.1, 5.0))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_number_of_ones_own_holds_the_strength_to_half_of_its_edge(momentum: float) -> None:
    advice = tacit.match(point(0.9, eigenvalue=15.0), **MOVE, sampled=2, momentum=momentum)
    wanted = edge(2, 0.9, eigenvalue=15.0, momentum=momentum)
    assert advice.sampled == 2
    assert advice.held
    assert advice.strength == pytest.approx(0.5 * wanted, rel=1e-6)
    assert any(f"held to 0.5 λ*(2) = {0.5 * wanted:.3g}" in note for note in advice.notes)


def test_where_micro_batches_were_not_compared_the_advice_says_so_and_proposes_all() -> None:
    advice = tacit.match(point(None), **MOVE)
    assert advice.sampled is None
    assert any("micro-batches of 16 was not measured, so all are penalised: measure with" in n for n in advice.notes)
    for other in ({"every": 2}, {"sampled": BATCHES}, {"new_batch_size": 31}, {"new_learning_rate": 50.0}):
        assert not any("was not measured" in note for note in tacit.match(point(None), **{**MOVE, **other}).notes)
    own = tacit.match(point(None), **MOVE, sampled=1)
    assert own.sampled == 1
    assert any("so λ*(1) is not known" in note for note in own.notes)
    assert own.largest_stable_strength == advice.largest_stable_strength
    without = tacit.match(seen(3.0, 500.0), **MOVE)
    assert without.sampled is None
    assert any("the edge was not measured" in note for note in without.notes)


@pytest.mark.parametrize("sampled", [0, 17, 1.5])
def test_a_number_that_is_not_one_of_the_micro_batches_is_refused(sampled: Any) -> None:
    with pytest.raises(tacit.InputError, match="sampled="):
        tacit.match(point(0.3), **MOVE, sampled=sampled)


def test_penalty_search_and_json_know_how_many_are_drawn() -> None:
    advice = tacit.match(point(0.3), **MOVE)
    penalty = advice.penalty(nn.Linear(2, 2))
    assert (penalty.sampled, penalty.micro_batch_size, penalty.strength) == (1, 16, advice.strength)
    assert tacit.match(point(None), **MOVE).penalty(nn.Linear(2, 2)).sampled is None
    with pytest.raises(tacit.InputError, match=r"sampled=4, but this λ was advised for sampled=1; use tacit\.match"):
        advice.penalty(nn.Linear(2, 2), sampled=4)
    assert json.loads(advice.to_json())["sampled"] == 1

    def train(strength: float) -> Any:
        yield from [-strength] * 12

    tried = {arm.strength for arm in tacit.search_strength(train, advice=advice).arms}
    assert max(tried) < advice.largest_stable_strength < SHARE_OF_EDGE * largest_stable_strength(0.1, 5.0) / 0.5


def test_price_names_the_drawn_setting_and_the_whole_one_beside_it() -> None:
    batch = (torch.randn(256, 8), torch.randint(3, (256,)))
    advice = tacit.match(point(0.3), **MOVE)
    found = advice.price(nn.Linear(8, 3), F.cross_entropy, *batch, seconds=0.01)
    assert (found.advised.sampled, found.advised.strength) == (1, advice.strength)
    whole = [each for each in found.settings if each.sampled is None and each.micro_batch_size == 16]
    assert {each.every for each in whole} >= {1}
    assert not found.advised.held
    assert replace(found.advised, sampled=None) not in found.settings


def test_measured_curvatures_of_micro_batches_lead_to_a_sampled_advice() -> None:
    draws = torch.Generator().manual_seed(0)
    data = torch.randn(512, 6, generator=draws), torch.randint(3, (512,), generator=draws)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draws) / 2)
    measured = tacit.measure(model, F.cross_entropy, data, batch_size=8, learning_rate=0.05)
    advice = tacit.match(measured, learning_rate=0.05, batch_size=8, new_batch_size=128)
    assert advice.sampled == 1
    assert "1 drawn of 16 micro-batches of 8" in str(advice)
