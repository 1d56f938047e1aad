"""A schedule that jumps up late gets one warning; warm-ups, decays and early schedules get none."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tacit
from tacit.penalty.strength import EARLY, GROWING, JUMP
from tacit.schedules import early

STEPS = 300


def warnings_of(
    schedule: Callable[[int], float], caplog: pytest.LogCaptureFixture, steps: range = range(STEPS), **options: Any
) -> list[str]:
    model = nn.Linear(1, 1)
    penalty = tacit.GradientPenalty(model, schedule, method="double_backward", **options)
    with caplog.at_level(logging.WARNING, logger="tacit"):
        for step in steps:
            penalty.backward(lambda: model(torch.ones(1, 1)).square().mean(), step=step)
    return [record.getMessage() for record in caplog.records]


def test_a_strength_switched_on_late_is_warned_of_once_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = warnings_of(lambda step: 0.1 if step >= 100 else 0.0, caplog)
    assert "jumps from 0 to 0.1 at step 100" in message
    for remedy in ("rise over", "tacit.schedules.early", "tacit.Relative", "largest_ratio"):
        assert remedy in message


def test_a_late_multiple_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = warnings_of(lambda step: 0.01 * 10 ** (step // 100), caplog)
    assert "jumps from 0.01 to 0.1 at step 100" in message


def test_a_pause_hides_no_jump(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = warnings_of(lambda step: 0.01 if step < 50 else 0.0 if step < 100 else 0.1, caplog)
    assert "jumps from 0.01 to 0.1 at step 100" in message


SILENT: dict[str, Callable[[int], float]] = {
    "constant": lambda step: 0.1,
    "linear ramp from 0": lambda step: 0.1 * min(1.0, step / 100),
    "linear ramp that ends": lambda step: 0.1 * min(1.0, (1 + step) / 100),
    "cosine ramp from 0": lambda step: 0.05 * (1 - math.cos(math.pi * step / STEPS)),
    "root ramp": lambda step: 0.1 * math.sqrt(step / STEPS),
    "cubic ramp": lambda step: 0.1 * (step / STEPS) ** 3,
    "delayed linear ramp": lambda step: 0.1 * max(0, step - 150) / STEPS,
    "delayed cosine ramp": lambda step: 0.1 * (1 - math.cos(max(0, step - 150) / 100)),
    "on after the first steps": lambda step: 0.1 if step >= EARLY // 2 else 0.0,
    "doubled now and then": lambda step: 0.01 * 2 ** (step // 100),
    "decay": lambda step: 0.1 * 0.9**step,
    "early": early(0.1, STEPS),
    "every fourth step by hand": lambda step: 0.4 if step % 4 == 0 else 0.0,
    "every fiftieth step by hand": lambda step: 0.4 if step % 50 == 0 else 0.0,
    "never": lambda step: 0.0,
}


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("options", [{}, {"every": 4}, {"probability": 0.25}])
def test_no_warning(name: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(SILENT[name], caplog, **options) == []


def test_a_held_strength_may_jump(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(lambda step: 0.1 if step >= 100 else 0.0, caplog, largest_ratio=1.0) == []


def test_a_relative_strength_may_jump(caplog: pytest.LogCaptureFixture) -> None:
    ratio = tacit.Relative(lambda step: 0.4 if step >= 100 else 0.0)
    assert warnings_of(ratio, caplog) == []  # type: ignore[arg-type]


def test_a_resumed_run_starts_with_what_it_has(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(lambda step: 0.1 if step >= 100 else 0.0, caplog, range(150, STEPS)) == []


def test_calls_that_accumulate_one_update_are_one_step(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the second call of the first step of a ramp would look like a strength that stays."""
    model = nn.Linear(1, 1)
    penalty = tacit.GradientPenalty(model, SILENT["delayed linear ramp"])
    with caplog.at_level(logging.WARNING, logger="tacit"):
        for call in range(4 * 160):
            penalty.backward(lambda: model(torch.ones(1, 1)).square().mean(), weight=0.25, step=call // 4)
    assert caplog.records == []


def test_the_rule_lets_the_ramps_through_that_it_names() -> None:
    assert math.sqrt(2) > GROWING
    assert JUMP >= 2**3
