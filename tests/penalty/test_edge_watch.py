"""A penalty that knows the optimizer warns, once, when batch sharpness passes the edge of its steps."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import tacit


def train(
    rate: float, strength: float, caplog: pytest.LogCaptureFixture, *, momentum: float = 0.0, steps: int = 80
) -> list[str]:
    """Steps on ½h ω² with curvature h = 10, without moving: batch sharpness is h at every step."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    penalty = tacit.GradientPenalty(model, strength, method="double_backward", optimizer=optimizer)
    inputs = torch.ones(1, 1)
    with caplog.at_level(logging.WARNING, logger="tacit"):
        for _ in range(steps):
            penalty.backward(lambda: 5 * model(inputs).square().mean())
            optimizer.zero_grad()
    return [record.message for record in caplog.records]


def test_a_step_beyond_the_edge_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = train(0.5, 0.1, caplog)  # ε h (1 + λh/2) = 7.5, the edge is 2
    assert "batch sharpness is 10" in message
    assert "training may collapse" in message


def test_the_warning_comes_before_a_run_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Far beyond the edge a run is lost after five steps; three looks are enough."""
    assert len(train(0.5, 0.1, caplog, steps=3)) == 1
    caplog.clear()
    assert train(0.5, 0.1, caplog, steps=2) == []


@pytest.mark.parametrize(("rate", "warnings"), [(0.5, 1), (0.05, 0)])
def test_micro_batches_in_one_pass_are_watched(rate: float, warnings: int, caplog: pytest.LogCaptureFixture) -> None:
    """Curvatures of 5 and 15 in the two micro-batches: batch sharpness is 14."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    penalty = tacit.GradientPenalty(model, 0.1, method="gram", micro_batch_size=1, optimizer=optimizer)
    inputs = torch.tensor([[5.0], [15.0]]).sqrt()
    for _ in range(3):
        penalty.backward(lambda x: model(x).square().mean() / 2, inputs)
        optimizer.zero_grad()
        # Gradients are hω, so the mean weights with h²: (5³ + 15³)/(5² + 15²).
        assert float(penalty.last.batch_sharpness) == pytest.approx(14.0, rel=1e-5)
    assert penalty._micro_batches_in_one_pass.in_one_pass
    assert sum("batch sharpness is 14" in record.message for record in caplog.records) == warnings


def test_a_step_inside_does_not(caplog: pytest.LogCaptureFixture) -> None:
    assert train(0.05, 0.1, caplog) == []


def test_momentum_widens_the_range(caplog: pytest.LogCaptureFixture) -> None:
    assert train(0.25, 0.1, caplog, momentum=0.9) == []  # 3.75, where the edge is 3.8


def test_a_large_strength_narrows_it(caplog: pytest.LogCaptureFixture) -> None:
    """The same rate that is well inside without a penalty: h* falls from 40 to 3.8 at λ = 5."""
    assert "strength 5" in train(0.05, 5.0, caplog)[0]


OTHERS = [getattr(torch.optim, name) for name in ("Adam", "Muon") if hasattr(torch.optim, name)]


@pytest.mark.parametrize("make", OTHERS)
def test_an_optimizer_of_another_rule_is_left_alone_and_that_is_said(
    make: type[torch.optim.Optimizer], caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(1, 1, bias=False)
    penalty = tacit.GradientPenalty(model, 5.0, optimizer=make(model.parameters(), lr=10.0))  # type: ignore[call-arg]
    for _ in range(80):
        penalty.backward(lambda: 5 * model(torch.ones(1, 1)).square().mean())
    (record,) = caplog.records
    assert "the edge is not watched" in record.message
    assert make.__name__ in record.message


def test_something_else_is_refused() -> None:
    with pytest.raises(tacit.InputError, match="optimizer is a float; expected a torch optimizer"):
        tacit.GradientPenalty(nn.Linear(1, 1), 0.1, optimizer=0.1)
