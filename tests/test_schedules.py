"""The paper's decay: constant for half of training, then halved every remaining tenth."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.schedules import SCHEDULES, early, paper_decay, schedule


@given(total=st.integers(1, 5000), place=st.floats(0, 1, exclude_max=True))
@settings(derandomize=True, max_examples=300)
def test_the_factor_is_two_to_minus_the_tenths_begun_after_the_half(total: int, place: float) -> None:
    step = min(int(place * total), total - 1)
    done = Fraction(step, total)
    tenths_begun = sum(done >= Fraction(mark, 10) for mark in range(5, 10))  # counted, not divided
    assert paper_decay(step, total) == 0.5**tenths_begun


def test_half_of_the_steps_have_the_full_rate_and_each_later_factor_a_tenth() -> None:
    assert Counter(paper_decay(step, 200) for step in range(200)) == {
        1.0: 100,
        0.5: 20,
        0.25: 20,
        0.125: 20,
        0.0625: 20,
        0.03125: 20,
    }


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_starts_at_one_and_never_rises(name: str) -> None:
    factors = [schedule(name, 37)(step) for step in range(37)]
    assert factors[0] == 1.0
    assert factors == sorted(factors, reverse=True)


def test_constant_is_one_throughout() -> None:
    assert {schedule("constant", 5)(step) for step in range(20)} == {1.0}


def test_torch_may_ask_for_the_step_after_the_last() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule("paper_decay", 3))
    seen = []
    for _ in range(3):
        seen.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    # Thirds of training begin after 0, 3 and 6 whole tenths: no halving, none, and two.
    assert seen == [1.0, 1.0, 0.25]


@pytest.mark.parametrize(
    ("total", "share", "on"), [(10, 0.5, 5), (10, 0.7, 7), (3, 0.5, 2), (10, 1, 10), (10, 0.01, 1)]
)
def test_early_has_the_strength_on_its_share_of_the_steps_rounded_and_on_one_at_least(
    total: int, share: float, on: int
) -> None:
    found = [early(0.1, total, share=share)(step) for step in range(total + 2)]
    assert found == [0.1] * on + [0.0] * (total + 2 - on)
