"""Sharpness-aware steps of random models against two plain gradients in float64: 600 cases.

The gradients of every leaf, the losses, and what a step leaves behind: parameters bitwise, buffers, torch's generator.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from finite_truth import Start, Vector, buffers_of, gradient, norm_of, put_buffers, real
from fuzz_checks import SEARCH
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from random_scenarios import Scenario, Setup, scenarios, set_up
from torch import Tensor

from tacit import InputError, SharpnessAware
from tacit.penalty.pieces import drawn_rows

RADIUS = 0.05
CASES = 150
Batch = tuple[Tensor, ...]


def moved(setup: Setup, direction: Vector) -> dict[str, Tensor]:
    """Move the penalised parameters in place; what they were is returned."""
    parameters, length = dict(setup.model.named_parameters()), norm_of(direction)
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    with torch.no_grad():
        for name, step in direction.items():
            real(parameters[name]).add_(step, alpha=RADIUS / length if length else 0.0)
    return before


def pass_over(setup: Setup, batch: Batch, start: Start) -> Start:
    """What a forward and a backward pass from there leave: random numbers and buffers."""
    put_buffers(setup, start.buffers)
    torch.set_rng_state(start.random_state)
    leaves = [leaf for leaf in setup.trainable().values() if leaf.requires_grad]
    torch.autograd.grad(setup.closure(*batch), leaves, allow_unused=True)
    return Start(torch.get_rng_state(), buffers_of(setup))


def by_hand(scenario: Scenario, sampled: int | None) -> tuple[Vector, list[float], Start]:
    setup = set_up(scenario)
    start, losses = Start(torch.get_rng_state(), buffers_of(setup)), []
    total = {name: torch.zeros_like(real(leaf.detach())) for name, leaf in setup.trainable().items()}
    for call, batch in enumerate(setup.batches):
        part = batch
        if sampled is not None and sampled < scenario.batch:
            rows = drawn_rows(scenario.batch, sampled, seed=scenario.seed, call=call)
            part = tuple(tensor.detach()[rows] for tensor in batch)
        _, found = gradient(setup, part, start)
        direction = {name: found[name] for name in setup.penalised() if name in found}
        if not direction:
            raise InputError("nothing is reached")
        after = pass_over(setup, batch, start) if part is batch else None
        before = moved(setup, direction)
        loss, found = gradient(setup, batch, start)
        start = after or pass_over(setup, batch, start)
        with torch.no_grad():
            for name, parameter in setup.model.named_parameters():
                parameter.copy_(before[name])
        put_buffers(setup, start.buffers)
        losses.append(loss)
        for name, part_of_total in found.items():
            total[name] += part_of_total / scenario.calls
    return total, losses, start


def check(scenario: Scenario, sampled: int | None, by_loss: bool) -> str:
    torch.manual_seed(scenario.seed)
    random_state = torch.get_rng_state()
    try:
        expected, losses, end = by_hand(scenario, sampled)
    except (InputError, RuntimeError, ValueError) as error:  # batch norm of one row, a loss that reaches nothing
        return f"invalid: {type(error).__name__}"
    setup = set_up(scenario)
    before = {name: parameter.detach().clone() for name, parameter in setup.model.named_parameters()}
    sam = SharpnessAware(setup.model, RADIUS, sampled=sampled, seed=scenario.seed, exclude=setup.exclude)
    torch.set_rng_state(random_state)
    if not all(map(math.isfinite, losses)):
        return "not finite"
    for loss, batch in zip(losses, setup.batches, strict=True):
        if by_loss:
            found = sam.loss(setup.closure, *batch)
            (found / scenario.calls).backward()
        else:
            found = sam.backward(setup.closure, *batch, weight=1 / scenario.calls)
        torch.testing.assert_close(float(found.detach()), loss, rtol=1e-10, atol=1e-12)
    for name, leaf in setup.trainable().items():
        own = torch.zeros_like(real(leaf.detach())) if leaf.grad is None else real(leaf.grad)
        # A direction is divided by its length, so that one that is nearly 0 is mostly rounding.
        torch.testing.assert_close(own, expected[name], rtol=1e-8, atol=1e-10)
    for name, parameter in setup.model.named_parameters():
        assert torch.equal(parameter, before[name]), name
    assert torch.equal(torch.get_rng_state(), end.random_state)
    for name, buffer in setup.model.named_buffers():
        torch.testing.assert_close(buffer, end.buffers[name], rtol=1e-10, atol=1e-12)
    return "exact"


@pytest.mark.parametrize("number", range(4))
def test_no_step_of_a_random_model_is_wrong(number: int) -> None:
    ends: Counter[str] = Counter()

    @seed(number)
    @settings(SEARCH, max_examples=CASES)
    @given(scenarios(), st.sampled_from([None, 1, 2, 3]), st.booleans())
    def search(scenario: Scenario, sampled: int | None, by_loss: bool) -> None:
        ends[check(scenario, sampled, by_loss)] += 1

    search()
    assert ends["exact"] >= 0.8 * ends.total(), ends
