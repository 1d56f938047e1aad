"""Batch sharpness against dense algebra, and what a run's values are called."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from theory_cases import CASES, dense
from torch import nn

import tacit
from tacit.theory import Landscape, batch_sharpness, problems

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
try:
    from batch_sharpness import batch_sharpness_of, reported_limit, settling
finally:
    sys.path.pop(0)


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_ratio_of_the_means_and_not_the_mean_of_the_ratios(case: str) -> None:
    problem = problems.PROBLEMS[case]()
    g, H, _ = dense(problem)
    expected = np.einsum("ja,jab,jb->", g, H, g) / np.einsum("ja,ja->", g, g)
    assert batch_sharpness(problem) == pytest.approx(expected, rel=1e-12)
    apart = np.mean([gj @ Hj @ gj / (gj @ gj) for gj, Hj in zip(g, H, strict=True)])
    assert batch_sharpness(problem) != pytest.approx(apart, rel=1e-3)


def test_a_model_in_training_gives_the_same_number_and_is_left_alone() -> None:
    problem = problems.tanh_mlp()
    model = problem.model
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    losses = [
        lambda b=batch: problem.loss_fn(model(problem.inputs[b]), problem.targets[b]) for batch in problem.batches
    ]
    found = batch_sharpness_of(losses, list(model.parameters()))
    assert found == pytest.approx(batch_sharpness(problem), rel=1e-12)
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters() if p.grad is not None)


def test_at_the_limit_a_step_leaves_the_loss_of_its_own_minibatch_as_it_is() -> None:
    # On quadratics a minibatch's loss changes by −ε‖g‖² + (ε²/2)⟨g, Hg⟩ exactly: a mean of 0 at ε = 2/sharpness.
    scape = Landscape(problems.quadratic())
    rate = 2 / batch_sharpness(scape)
    changes = []
    for batch in scape.batches:
        moved = scape.start - rate * scape.gradient_of(scape.start, batch)
        changes.append((scape.loss_of(moved, batch) - scape.loss_of(scape.start, batch)).item())
    assert max(map(abs, changes)) > 0.01
    assert sum(changes) == pytest.approx(0, abs=1e-12)


def test_a_linear_loss_has_none() -> None:
    layer = nn.Linear(3, 1)
    assert batch_sharpness_of([lambda: layer(torch.ones(2, 3)).sum()], list(layer.parameters())) == 0.0


def test_the_limits_are_the_reported_ones() -> None:
    assert reported_limit(0.1) == pytest.approx(20)
    assert reported_limit(0.1, momentum=0.9) == pytest.approx(2)
    assert reported_limit(0.1, momentum=0.9, full_batch=True) == pytest.approx(38)


@pytest.mark.parametrize(
    "values,verdict",
    [
        ([0.0] * 9 + [10.5, 9.2, 10.2], "confirmed"),
        ([10.0] * 9 + [8.5, 8.8, 8.9], "below"),
        ([10.0] * 9 + [11.5, 12.0, 12.5], "above"),
        ([10.0] * 9 + [math.nan] * 3, "diverged"),
    ],
)
def test_the_last_quarter_of_a_run_decides(values: list[float], verdict: str) -> None:
    assert settling(values, limit=10.0).verdict == verdict


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(tacit.InputError, match="losses is empty"):
        batch_sharpness_of([], [])
    with pytest.raises(tacit.InputError, match="values is empty"):
        settling([], limit=1.0)
