"""The price of an advice: settings of equal expected regularization, inside the edge, timed on a copy of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from test_matching import MOVE, seen, with_spectrum
from torch import nn
from torch.nn import functional as F

import tacit
from tacit.advice import price


@pytest.fixture(scope="module")
def advice() -> tacit.advice.Advice:
    return tacit.match(with_spectrum(seen(3.0, 500.0, eigenvalue=2.0), values=(0.0,)), **MOVE)


BATCH = (torch.randn(256, 8), torch.randint(3, (256,)))


def test_every_setting_regularizes_as_much_in_the_mean(advice: tacit.advice.Advice) -> None:
    point = seen(3.0, 500.0)
    found = advice.price(nn.Linear(8, 3), F.cross_entropy, *BATCH, seconds=0.01)
    wanted = advice.strength * point.regularizer(16).value
    for setting in found.settings:
        assert setting.strength * point.regularizer(setting.micro_batch_size).value == pytest.approx(wanted, rel=1e-9)
    assert {each.micro_batch_size for each in found.settings} == {16, 64, 256}
    assert (found.advised.every, found.advised.micro_batch_size) == (1, 16)


def test_the_cheapest_comes_first_and_fewer_penalised_steps_cost_less(advice: tacit.advice.Advice) -> None:
    found = advice.price(nn.Linear(8, 3), F.cross_entropy, *BATCH, seconds=0.01)
    costs = [each.times_plain for each in found.settings]
    assert costs == sorted(costs)


def loss_with_a_clock(
    monkeypatch: pytest.MonkeyPatch, seconds: Callable[[list[int], bool], float]
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A loss that counts its rows, and a clock that shows what they take, in the plain step or in another."""
    rows: list[int] = []

    def loss_fn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        rows.append(len(targets))
        return F.cross_entropy(outputs, targets)

    def timed(steps: dict, **options: object) -> dict:
        found = {}
        for name, step in steps.items():
            step()  # the first one also compares and checks
            rows.clear()
            step()
            found[name] = [seconds(rows, not found)]
        return found

    monkeypatch.setattr(price, "time_interleaved", timed)
    return loss_fn


def test_steps_between_penalised_ones_are_timed_as_they_run(
    advice: tacit.advice.Advice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that shows 1 s for the plain step, 3 s for a penalty's pass of the whole batch, 9 s for other steps."""
    loss_fn = loss_with_a_clock(monkeypatch, lambda rows, plain: 1.0 if plain else 3.0 if rows == [256] else 9.0)
    found = advice.price(nn.Linear(8, 3), loss_fn, *BATCH)
    by_every = {each.every: each.times_plain for each in found.settings if each.micro_batch_size == 16}
    assert by_every == {k: (9 + 3 * (k - 1)) / k for k in by_every}
    assert len(by_every) > 1


@pytest.mark.parametrize("sampled", [1, 4])
def test_a_sampled_advice_is_priced_at_the_same_strength(advice: tacit.advice.Advice, sampled: int) -> None:
    drawn = tacit.match(with_spectrum(seen(3.0, 500.0, eigenvalue=2.0), values=(0.0,)), **MOVE, sampled=sampled)
    found = drawn.price(nn.Linear(8, 3), F.cross_entropy, *BATCH, seconds=0.01)
    assert (found.advised.sampled, found.advised.every, found.advised.micro_batch_size) == (sampled, 1, 16)
    assert found.advised.strength == drawn.strength == advice.strength
    assert [each for each in found.settings if each.sampled] == [found.advised]
    assert f"{sampled} drawn of the micro-batches of 16" in str(found)
    assert "drawn" not in str(advice.price(nn.Linear(8, 3), F.cross_entropy, *BATCH, seconds=0.01))
    if sampled == 4:
        with pytest.raises(tacit.InputError, match="64 examples; expected more than 4 micro-batches of 16"):
            drawn.price(nn.Linear(8, 3), F.cross_entropy, BATCH[0][:64], BATCH[1][:64])


def test_a_sampled_setting_has_the_time_of_its_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that shows so many seconds as rows went through the loss; plain: 256."""
    loss_fn = loss_with_a_clock(monkeypatch, lambda rows, plain: float(sum(rows)))
    spreads = {16: 0.1, 64: 0.1}
    point = with_spectrum(seen(3.0, 500.0, eigenvalue=2.0), values=(0.0,), square_spreads=spreads)
    for every in (1, 4):
        found = tacit.match(point, **MOVE, every=every, sampled=1).price(nn.Linear(8, 3), loss_fn, *BATCH)
        by_size = {each.micro_batch_size: each.times_plain for each in found.settings if each.sampled == 1}
        assert by_size == {16: 1 + 16 / 256 / every, 64: 1 + 64 / 256}


def test_no_setting_exceeds_its_share_of_the_edge(advice: tacit.advice.Advice) -> None:
    (first, *rest) = advice.alternatives
    most = {1: 9.0, 2: 1.01 * first.strength, 4: 0.99 * first.strength, 8: 0.0}
    narrow = replace(advice, alternatives=(replace(first, most=most), *rest))
    found = narrow.price(nn.Linear(8, 3), F.cross_entropy, *BATCH, seconds=0.01)
    assert {each.every for each in found.settings if each.micro_batch_size == 16} == {1, 2}


def test_the_model_is_left_as_it_was(advice: tacit.advice.Advice) -> None:
    model = nn.Linear(8, 3)
    before = [parameter.clone() for parameter in model.parameters()]
    advice.price(model, F.cross_entropy, *BATCH, seconds=0.01)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(tacit.InputError, match="expected a multiple of the micro-batch size 16"):
        advice.price(model, F.cross_entropy, torch.randn(8, 8), torch.randint(3, (8,)), seconds=0.01)


@pytest.mark.parametrize("eigenvalue", [2.0, 15.0])  # 15: the edge binds
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("every", [1, 3, 4])
def test_the_advised_setting_is_priced_whatever_its_every(eigenvalue: float, momentum: float, every: int) -> None:
    point = with_spectrum(seen(3.0, 500.0, eigenvalue=eigenvalue), values=(eigenvalue,))
    advice = tacit.match(point, **MOVE, every=every, momentum=momentum)
    found = advice.price(nn.Linear(8, 3), F.cross_entropy, *BATCH, seconds=0.001).advised
    assert (found.every, found.micro_batch_size) == (every, 16)
    assert found.strength == pytest.approx(advice.strength, rel=1e-12)
    assert found.held == any("is held to" in note for note in advice.notes)


def test_settings_that_the_edge_holds_back_say_so_and_come_last() -> None:
    """Larger micro-batches need a larger λ: here the edge holds some sizes and leaves others."""
    advice = tacit.match(with_spectrum(seen(3.0, 500.0, eigenvalue=6.5), values=(0.0,)), **MOVE)
    found = advice.price(nn.Linear(8, 3), F.cross_entropy, *BATCH, seconds=0.001)
    held = [each.held for each in found.settings]
    assert held == sorted(held)
    assert {False, True} == set(held)
    assert not found.cheapest.held
    point, asked = seen(3.0, 500.0), advice.strength * seen(3.0, 500.0).regularizer(16).value
    for each in found.settings:
        regularization = each.strength * point.regularizer(each.micro_batch_size).value
        assert (regularization < 0.999 * asked) == each.held
        assert ("held at the edge: less regularization" in str(each)) == each.held


def test_a_refusal_gives_the_true_reason(advice: tacit.advice.Advice) -> None:
    none = tacit.match(seen(3.0, 500.0), **MOVE, new_learning_rate=50.0)
    with pytest.raises(tacit.InputError, match="no penalty; expected an advice with a positive strength"):
        none.price(nn.Linear(8, 3), F.cross_entropy, *BATCH, seconds=0.001)


def test_the_text_says_which_clock_and_what_was_timed_on(advice: tacit.advice.Advice) -> None:
    found = advice.price(nn.Linear(8, 3), F.cross_entropy, *BATCH, seconds=0.001)
    cores = torch.get_num_threads()
    assert found.device == f"{cores} CPU core{'s' if cores > 1 else ''}; GPU not measured"
    assert found.clock in ("CPU time of all threads", "wall clock")
    assert f"plain steps of {found.plain_seconds:.3g} s ({found.clock}, {found.device})" in str(found)
