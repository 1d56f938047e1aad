"""Closed forms at the next order: dense oracles, enumeration, and the random-sign estimate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import theory_oracles as oracles
import torch
from theory_cases import CASES, dense, relative

import tacit
from tacit.theory import Landscape, corrections, problems

EXACT = 1e-12
# The oracle's third derivative of the network is a fourth-order difference with h = 1e-4: good to about 1e-9.
CLOSED = {"quadratic": EXACT, "logistic": EXACT, "tanh_mlp": 1e-8}


@pytest.mark.parametrize("case", CASES)
def test_the_second_correction_of_gd_agrees_with_dense_algebra(case: str) -> None:
    g, H, T = (part.mean(0) for part in dense(problems.PROBLEMS[case]()))
    assert (
        relative(corrections.gd_second_correction(problems.PROBLEMS[case]()), oracles.gd_second(g, H, T)) < CLOSED[case]
    )


@pytest.mark.parametrize("case", CASES)
def test_the_second_correction_of_mean_sgd_agrees_with_dense_lie_brackets(case: str) -> None:
    problem = problems.PROBLEMS[case]()
    assert relative(corrections.sgd_second_correction(problem), oracles.sgd_second(*dense(problem))) < CLOSED[case]


@pytest.mark.parametrize("case", CASES)
def test_inner_steps_divide_the_own_terms_and_leave_the_bracket(case: str) -> None:
    problem = problems.PROBLEMS[case]()
    own = np.mean([oracles.gd_second(*parts) for parts in zip(*dense(problem), strict=True)], axis=0)
    expected = own / 9 + oracles.double_bracket(*dense(problem))
    assert relative(corrections.sgd_second_correction(problem, inner_steps=3), expected) < CLOSED[case]


@pytest.mark.parametrize("case", CASES)
def test_the_double_bracket_vanishes_for_identical_batches(case: str) -> None:
    problem = problems.PROBLEMS[case](batches=1)
    twice = tacit.Problem(
        problem.model,
        problem.loss_fn,
        (problem.inputs.repeat(3, 1), problem.targets.repeat((3,) + (1,) * (problem.targets.dim() - 1))),
        batch_size=2,
        dtype=torch.float64,
    )
    assert corrections.double_bracket(twice).abs().max().item() < EXACT


@pytest.mark.parametrize("case", CASES)
def test_the_mean_of_the_second_correction_over_all_partitions_is_its_closed_form(case: str) -> None:
    problem = problems.PROBLEMS[case](batches=3)
    data, found = (problem.inputs, problem.targets), []
    for parts in ALL_PAIRINGS:
        batches = [torch.tensor(part) for part in parts]
        dealt = tacit.Problem(problem.model, problem.loss_fn, data, batches=batches, dtype=torch.float64)
        found.append(corrections.sgd_second_correction(dealt))
    expected = corrections.expected_second_correction(problem)
    assert torch.allclose(torch.stack(found).mean(0), expected, rtol=EXACT, atol=EXACT)


# The 15 ways to deal six examples into three pairs.
ALL_PAIRINGS = [
    ((0, a), (b, c), tuple({1, 2, 3, 4, 5} - {a, b, c}))
    for a in range(1, 6)
    for b, c in [(min({1, 2, 3, 4, 5} - {a}), c) for c in sorted({1, 2, 3, 4, 5} - {a})[1:]]
]


@pytest.mark.parametrize("case", ["quadratic", "logistic"])
def test_the_second_correction_of_an_order_there_and_back_is_that_of_its_map(case: str) -> None:
    # The same field without any bracket: the logarithm of the six steps, by automatic differentiation.
    scape = Landscape(problems.PROBLEMS[case](batches=3))
    update = tacit.theory.sgd_epoch_update(scape, order=(2, 0, 1, 1, 0, 2))
    automatic = tacit.theory.modified_flow(update, order=2, duration=6).corrections(scape.start)[2]
    closed = corrections.mirrored_second_correction(scape, order=(2, 0, 1))
    assert torch.allclose(closed, automatic, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_averaging_the_estimate_over_all_signs_gives_the_second_correction(case: str) -> None:
    problem = problems.PROBLEMS[case]()
    signs = torch.tensor(list(itertools.product((-1, 1), repeat=4)))
    estimate = corrections.sgd_second_correction_estimate(problem, signs=signs)
    exact = corrections.sgd_second_correction(problem)
    assert torch.allclose(estimate, exact, rtol=EXACT, atol=EXACT)


def test_the_estimate_from_one_row_of_signs_is_not_exact() -> None:
    problem = problems.tanh_mlp()
    estimate = corrections.sgd_second_correction_estimate(problem, signs=torch.tensor([[1, 1, -1, 1]]))
    assert (estimate - corrections.sgd_second_correction(problem)).norm().item() > 0.1


@pytest.mark.parametrize("case", CASES)
def test_the_mean_of_xi_over_all_orders_is_equation_16(case: str) -> None:
    problem = problems.PROBLEMS[case]()
    scape = Landscape(problem)
    values = [corrections.order_correction(scape, order=order) for order in itertools.permutations(range(4))]
    expected = corrections.expected_order_correction(scape)
    assert torch.allclose(torch.stack(values).mean(0), expected, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("case", CASES)
def test_xi_and_its_moments_agree_with_dense_enumeration(case: str) -> None:
    problem = problems.PROBLEMS[case]()
    g, H, _ = dense(problem)
    mean, covariance = oracles.xi_moments(g, H)
    assert relative(corrections.order_correction(problem, order=(2, 0, 3, 1)), oracles.xi(g, H, (2, 0, 3, 1))) < EXACT
    assert relative(corrections.expected_order_correction(problem), mean) < EXACT
    assert relative(corrections.order_covariance(problem), covariance) < EXACT


@pytest.mark.parametrize("case", CASES)
def test_the_covariance_of_xi_is_the_closed_form_over_all_orders(case: str) -> None:
    scape = Landscape(problems.PROBLEMS[case]())
    values = torch.stack([corrections.order_correction(scape, order=o) for o in itertools.permutations(range(4))])
    away = values - values.mean(0)
    assert torch.allclose(away.T @ away / 24, corrections.order_covariance(scape), rtol=EXACT, atol=EXACT)


def test_the_commutator_of_an_order_and_of_its_reverse_cancel() -> None:
    scape = Landscape(problems.tanh_mlp())
    there, back = (corrections.commutator(scape, order=o) for o in ((2, 0, 3, 1), (1, 3, 0, 2)))
    assert there.norm().item() > 0.1
    assert torch.allclose(there, -back, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("case", CASES)
def test_the_first_correction_is_minus_the_gradient_of_the_implicit_regularizer(case: str) -> None:
    scape = Landscape(problems.PROBLEMS[case]())
    slope = torch.func.grad(lambda w: tacit.theory.implicit_regularizer(scape, w))(scape.start)
    assert torch.allclose(corrections.sgd_first_correction(scape), -slope, rtol=EXACT, atol=EXACT)


def test_the_second_corrections_are_gradients_on_quadratics_but_not_on_networks() -> None:
    for problem, largest in ((problems.quadratic(), EXACT), (problems.tanh_mlp(), None)):
        scape = Landscape(problem)
        jacobian = torch.func.jacfwd(lambda w, scape=scape: corrections.gd_second_correction(scape, w))(scape.start)
        twist = (jacobian - jacobian.T).norm() / jacobian.norm()
        assert twist < largest if largest is not None else twist > 0.01
