"""The integrator."""

from __future__ import annotations

import torch

from tacit.theory import Landscape, flow, gradient_flow_field, problems
from tacit.theory.flows import flow_at_rates


def test_a_linear_flow_is_the_matrix_exponential() -> None:
    matrix = torch.tensor([[-1.0, 2.0], [-0.5, -0.3]], dtype=torch.float64)
    start = torch.tensor([1.0, -1.0], dtype=torch.float64)
    exact = torch.linalg.matrix_exp(3.0 * matrix) @ start
    assert torch.allclose(flow(lambda w: matrix @ w, start, time=3.0), exact, rtol=1e-10)


def test_gradient_flow_of_a_network_goes_downhill() -> None:
    scape = Landscape(problems.tanh_mlp())
    path = flow(gradient_flow_field(scape.loss), scape.start, time=2.0, times=[0.0, 0.5, 1.0, 2.0])
    values = [scape.loss(w).item() for w in path]
    assert values == sorted(values, reverse=True)


def test_rates_in_one_integration_are_the_separate_ones() -> None:
    rates = torch.tensor([0.1, 0.02], dtype=torch.float64)
    start = torch.ones(2, dtype=torch.float64)
    together = flow_at_rates(lambda w, e: -w - e * w**3, start, rates, updates=5)
    for row, rate in zip(together, rates.tolist(), strict=True):
        assert torch.allclose(row, flow(lambda w, e=rate: -w - e * w**3, start, time=5 * rate), rtol=1e-11)


def test_no_time_is_no_motion() -> None:
    start = torch.ones(2, dtype=torch.float64)
    assert torch.equal(flow(lambda w: -w, start, time=0.0), start)
