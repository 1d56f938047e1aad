"""The resummed flow: an error of O(1/m²) at a fixed length of the epoch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import tacit
from tacit.theory import Landscape, problems, resummed_mean
from tacit.theory import modified_losses as losses
from tacit.theory.flows import flow, gradient_flow_field
from tacit.theory.iterates import sgd_rule, walk
from tacit.theory.orders import steps_of


def two_kinds(copies: int) -> Landscape:
    """Minibatches of two kinds, each so often: its orders are few enough to enumerate even for many minibatches."""
    base = problems.logistic(batches=2)
    dataset = (base.inputs.repeat(copies, 1), base.targets.repeat(copies, 1))
    return Landscape(tacit.Problem(base.model, base.loss_fn, dataset, batch_size=2, dtype=torch.float64))


def exact_mean(scape: Landscape, rate: float) -> torch.Tensor:
    batches = scape.batches_per_epoch
    rows = []
    for first_kind in itertools.combinations(range(batches), batches // 2):
        rows.append([0 if position in first_kind else 1 for position in range(batches)])  # batches alternate in kind
    rates = torch.tensor([rate], dtype=torch.float64)
    return walk(scape, sgd_rule(scape), scape.start.unsqueeze(0), rates, steps_of(scape, torch.tensor(rows)))[0].mean(0)


def test_the_resummed_flow_gains_a_power_of_the_number_of_batches() -> None:
    length, errors, plain = 1.0, [], []
    for copies in (2, 6):
        scape = two_kinds(copies)
        rate = length / scape.batches_per_epoch
        exact = exact_mean(scape, rate)
        errors.append((resummed_mean(scape, learning_rate=rate) - exact).norm().item())
        modified = gradient_flow_field(lambda w, s=scape, e=rate: losses.modified_loss_sgd(s, w, learning_rate=e))
        plain.append((flow(modified, scape.start, time=length, rtol=1e-10) - exact).norm().item())
    slope = math.log(errors[1] / errors[0]) / math.log(3)
    assert slope == pytest.approx(-2, abs=0.2)
    assert math.log(plain[1] / plain[0]) / math.log(3) > -1.8  # C̃_SGD alone heads for -1
    assert errors[1] < 0.7 * plain[1]
