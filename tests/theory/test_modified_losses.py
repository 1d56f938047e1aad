"""The modified losses: identities by enumeration, limits, and agreement with dense oracles."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import theory_oracles as oracles
import torch
from theory_cases import CASES, dense
from torch import nn

import tacit
from tacit.theory import Landscape, problems
from tacit.theory import modified_losses as losses
from tacit.theory.orders import steps_of_all_partitions

EXACT = 1e-12  # sums of a few dozen float64 terms of order one


def regrouped(problem: tacit.Problem, batches: list[list[int]]) -> tacit.Problem:
    return tacit.Problem(
        problem.model, problem.loss_fn, (problem.inputs, problem.targets), batches=batches, dtype=torch.float64
    )


def six_examples(case: str) -> Landscape:
    problem = problems.PROBLEMS[case]()
    dataset = (problem.inputs[:6], problem.targets[:6])
    return Landscape(tacit.Problem(problem.model, problem.loss_fn, dataset, batch_size=2, dtype=torch.float64))


@pytest.mark.parametrize("case", CASES)
def test_the_implicit_regularizer_is_a_quarter_of_the_mean_squared_minibatch_gradient(case: str) -> None:
    problem = problems.PROBLEMS[case]()
    g, _, _ = dense(problem)
    assert losses.implicit_regularizer(problem).item() == pytest.approx(oracles.implicit_regularizer(g), rel=EXACT)


@pytest.mark.parametrize("case", CASES)
def test_both_forms_of_the_modified_loss_are_equal(case: str) -> None:
    problem = problems.PROBLEMS[case]()
    one = losses.modified_loss_sgd(problem, learning_rate=0.3)
    two = losses.modified_loss_sgd_by_variance(problem, learning_rate=0.3)
    assert one.item() == pytest.approx(two.item(), rel=EXACT)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batch_size", range(1, 9))
def test_appendix_a_holds_over_all_subsets(case: str, batch_size: int) -> None:
    scape = Landscape(problems.PROBLEMS[case]())
    gradients = scape.example_gradients(scape.start)
    full = gradients.mean(0)
    subsets = [gradients[list(s)].mean(0) for s in itertools.combinations(range(8), batch_size)]
    enumerated = torch.stack([(s - full).square().sum() for s in subsets]).mean().item()
    factor = losses.expected_minibatch_variance(8, batch_size)
    assert enumerated == pytest.approx(factor * losses.gradient_covariance_trace(scape).item(), rel=EXACT, abs=EXACT)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sizes", [(1,) * 6, (2, 2, 2), (3, 3), (6,)], ids=str)
def test_the_expected_modified_loss_is_the_mean_over_all_partitions(case: str, sizes: tuple[int, ...]) -> None:
    scape, rate = six_examples(case), 0.3
    gradients = scape.example_gradients(scape.start)
    example_losses = torch.stack([scape.loss_of(scape.start, torch.tensor([j])) for j in range(6)])
    values = []
    for parts in zip(*[step.tolist() for step in steps_of_all_partitions(6, sizes)], strict=True):
        batch_loss = torch.stack([example_losses[list(p)].mean() for p in parts]).mean()
        regularizer = torch.stack([gradients[list(p)].mean(0).square().sum() for p in parts]).mean() / 4
        values.append(batch_loss + rate * regularizer)
    expected = losses.expected_modified_loss_sgd(scape, learning_rate=rate, updates_per_epoch=len(sizes))
    assert torch.stack(values).mean().item() == pytest.approx(expected.item(), rel=EXACT)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 2, 1), (4, 2), (2, 2), (5,)], ids=str)
def test_the_mean_order_correction_over_all_partitions_gives_the_loss_in_updates_per_epoch(
    case: str, sizes: tuple[int, ...]
) -> None:
    # E ξ = (m²/2) H g − m ∇(loss − C)/ε, also where sizes do not divide the six examples or leave some out.
    scape, updates = six_examples(case), len(sizes)
    w = scape.start
    gradients = scape.example_gradients(w)
    hessians = torch.stack([torch.func.hessian(scape.loss_of)(w, torch.tensor([j])) for j in range(6)])
    values = []
    for parts in zip(*[step.tolist() for step in steps_of_all_partitions(6, sizes)], strict=True):
        g = [gradients[list(p)].mean(0) for p in parts]
        pairs = [hessians[list(parts[j])].mean(0) @ g[k] for j in range(updates) for k in range(j)]
        values.append(torch.stack(pairs).sum(0) if pairs else torch.zeros_like(w))
    enumerated = torch.stack(values).mean(0)

    def added(point: torch.Tensor) -> torch.Tensor:
        loss = losses.expected_modified_loss_sgd(scape, point, learning_rate=1.0, updates_per_epoch=updates)
        return loss - scape.full_loss(point)

    full = updates**2 / 2 * hessians.mean(0) @ gradients.mean(0)
    assert torch.allclose(enumerated, full - updates * torch.func.grad(added)(w), rtol=EXACT, atol=EXACT)


def test_equation_22_is_the_formula_in_updates_per_epoch_when_batches_divide_the_data() -> None:
    problem = problems.tanh_mlp()
    gamma, rate = losses.gradient_covariance_trace(problem), 0.3
    eq22 = losses.modified_loss_gd(problem, learning_rate=rate) + rate * losses.quarter_of(
        losses.expected_minibatch_variance(8, 2) * gamma
    )
    assert eq22.item() == pytest.approx(
        losses.expected_modified_loss_sgd(problem, learning_rate=rate).item(), rel=EXACT
    )


def test_one_batch_per_epoch_is_gradient_descent() -> None:
    problem = problems.tanh_mlp(batches=1, batch_size=8)
    sgd = losses.modified_loss_sgd(problem, learning_rate=0.3)
    assert sgd.item() == pytest.approx(losses.modified_loss_gd(problem, learning_rate=0.3).item(), rel=EXACT)


def test_one_inner_step_is_sgd_bitwise() -> None:
    problem = problems.logistic()
    nstep = losses.modified_loss_nstep(problem, effective_learning_rate=0.3, inner_steps=1)
    assert torch.equal(nstep, losses.modified_loss_sgd(problem, learning_rate=0.3))


def test_scaling_the_loss_scales_the_regularizer_by_the_square() -> None:
    problem = problems.tanh_mlp()
    tripled = tacit.Problem(
        problem.model,
        lambda outputs, targets: 3 * problem.loss_fn(outputs, targets),
        (problem.inputs, problem.targets),
        batch_size=2,
        dtype=torch.float64,
    )
    assert losses.implicit_regularizer(tripled).item() == pytest.approx(
        9 * losses.implicit_regularizer(problem).item(), rel=EXACT
    )


def test_weight_decay_cancels_in_the_variance_part_but_not_in_the_regularizer() -> None:
    plain, decayed = problems.logistic(), problems.logistic(weight_decay=0.5)
    assert losses.variance_regularizer(decayed).item() == pytest.approx(
        losses.variance_regularizer(plain).item(), rel=EXACT
    )
    scape = Landscape(plain)
    inside = (scape.minibatch_gradients(scape.start) + 0.5 * scape.start).square().sum(1).mean() / 4
    assert losses.implicit_regularizer(decayed).item() == pytest.approx(inside.item(), rel=EXACT)


def test_momentum_zero_is_sgd() -> None:
    problem = problems.tanh_mlp()
    without = losses.modified_loss_momentum(problem, effective_learning_rate=0.3, momentum=0.0)
    assert without.item() == pytest.approx(losses.modified_loss_sgd(problem, learning_rate=0.3).item(), rel=EXACT)


def test_the_variance_factor_of_momentum_tends_to_one_with_many_batches() -> None:
    factors = [losses.momentum_variance_factor(m, 0.9) for m in (4, 64, 1024)]
    assert factors[0] < factors[1] < factors[2] < 1
    assert factors[2] == pytest.approx(1, abs=0.02)  # 1 − 2β/((1−β)m) to leading order


def test_a_float32_problem_is_measured_in_float64() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    inputs = torch.linspace(-1, 1, 8).reshape(4, 2)
    problem = tacit.Problem(model, nn.functional.mse_loss, (inputs, inputs[:, :1]), batch_size=2)
    value = losses.implicit_regularizer(problem)
    own = np.mean([sum((g**2).sum().item() for g in problem.minibatch_gradient(k).values()) for k in range(2)]) / 4
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(own, rel=1e-5)  # the problem's own gradients are float32


def test_fixed_unequal_batches_follow_the_mean_over_batches() -> None:
    problem = regrouped(problems.logistic(batches=3), [[0, 1, 2], [3, 4], [5]])
    scape = Landscape(problem)
    by_batch = torch.stack([scape.loss_of(scape.start, b) for b in scape.batches]).mean()
    assert losses.modified_loss_sgd(problem, learning_rate=0.0).item() == pytest.approx(by_batch.item(), rel=EXACT)
    assert abs(by_batch.item() - scape.full_loss(scape.start).item()) > 1e-3  # and that is not C


def test_parameters_may_be_a_dictionary_or_a_vector() -> None:
    problem = problems.tanh_mlp()
    shifted = {name: value + 0.1 for name, value in problem.parameters.items()}
    vector = Landscape(problem).start + 0.1
    assert torch.equal(losses.implicit_regularizer(problem, shifted), losses.implicit_regularizer(problem, vector))
