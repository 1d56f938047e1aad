"""Means over orders: enumeration, sampling that says so, covariance, and draws with replacement."""

from __future__ import annotations

import pytest
import torch

import tacit
from tacit.theory import (
    Landscape,
    corrections,
    mean_iterate,
    mean_iterate_with_replacement,
    order_covariance,
    orders_of,
    problems,
    sgd,
)
from tacit.theory import modified_losses as losses
from tacit.theory.flows import flow_at_rates, gradient_flow_field
from tacit.theory.iterates import sgd_rule, walk
from tacit.theory.orders import sequences_with_replacement, steps_of
from tacit.theory.study import observed_order

RATES = torch.tensor([0.01, 0.005, 0.0025, 0.00125], dtype=torch.float64)


def test_the_mean_over_all_orders_is_the_mean_of_single_walks() -> None:
    problem = problems.logistic(batches=3)
    walked = [sgd(problem, learning_rate=0.1, order=order)[-1] for order in tacit.batching.all_orders(3)]
    assert torch.allclose(mean_iterate(problem, learning_rate=0.1).mean, torch.stack(walked).mean(0), rtol=1e-14)


def test_too_many_orders_are_sampled_with_a_warning_that_says_so() -> None:
    problem = problems.quadratic(batches=7, batch_size=1)
    with pytest.warns(UserWarning, match=r"7! = 5e\+03 orders.* sampled"):
        sampled = mean_iterate(problem, learning_rate=0.01, samples=40)
    assert not sampled.exact
    assert "40 sampled orders" in str(sampled)
    assert sampled.standard_error.max() > 0


def test_few_orders_are_enumerated_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    assert mean_iterate(problems.quadratic(batches=3), learning_rate=0.01).exact
    assert not recwarn.list


def test_sampling_in_mirrored_pairs_leaves_noise_of_third_order() -> None:
    scape = Landscape(problems.tanh_mlp(batches=4))
    rows = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])
    pair = walk(scape, sgd_rule(scape), scape.start.expand(4, -1), RATES, steps_of(scape, rows)).mean(1)
    every = walk(scape, sgd_rule(scape), scape.start.expand(4, -1), RATES, steps_of(scape, orders_of(4).rows)).mean(1)
    errors = (pair - every).norm(dim=1)
    assert observed_order(tuple(RATES.tolist()), tuple(errors.tolist())) == pytest.approx(3, abs=0.15)


def test_the_sampled_interval_covers_the_exact_mean() -> None:
    # Three standard errors per coordinate, 3 coordinates, one fixed seed: a miss would be a 1 % event.
    problem = problems.quadratic(batches=6, batch_size=1)
    exact = mean_iterate(problem, learning_rate=0.05)
    with pytest.warns(UserWarning, match="sampled"):
        orders = orders_of(6, samples=200, at_most=5)
    scape = Landscape(problem)
    rates = torch.tensor([0.05], dtype=torch.float64)
    ends = walk(scape, sgd_rule(scape), scape.start.unsqueeze(0), rates, steps_of(scape, orders.rows))[0]
    pairs = ends.reshape(100, 2, 3).mean(1)
    assert ((pairs.mean(0) - exact.mean).abs() < 3 * pairs.std(0) / 10).all()


@pytest.mark.parametrize("case", tuple(problems.PROBLEMS))
def test_the_covariance_of_the_iterate_tends_to_epsilon_to_the_fourth_times_v(case: str) -> None:
    problem = problems.PROBLEMS[case]()
    v = order_covariance(problem)
    rates = (0.02, 0.01, 0.005)
    errors = tuple((mean_iterate(problem, learning_rate=e).covariance / e**4 - v).norm().item() for e in rates)
    assert observed_order(rates, errors) == pytest.approx(1, abs=0.15)  # the next term is one power of ε smaller


def test_inner_steps_do_not_change_the_leading_covariance() -> None:
    problem = problems.logistic()
    one, four = (mean_iterate(problem, learning_rate=1e-3, inner_steps=n).covariance for n in (1, 4))
    assert (one - four).norm() < 2e-3 * one.norm()  # they differ at the next order, by about m·ε·‖H‖


def test_mirrored_epochs_cancel_the_order_to_leading_order() -> None:
    problem = problems.tanh_mlp()
    once, twice = (
        mean_iterate(problem, learning_rate=1e-3, mirrored=m).covariance.trace().sqrt() for m in (False, True)
    )
    assert twice < 0.05 * once


def test_draws_with_replacement_are_all_sequences() -> None:
    assert len(sequences_with_replacement(3, length=3)) == 27
    assert mean_iterate_with_replacement(problems.logistic(batches=3), learning_rate=0.1).orders == "all 27 sequences"


def test_inner_steps_with_replacement_reward_variance() -> None:
    # The contrast with the 1/n law: φ₁ = −½Hg + ½(1 − 1/n)⟨Hⱼgⱼ⟩ is right to third order, Eq. 39 is not.
    scape = Landscape(problems.tanh_mlp())
    steps = steps_of(scape, sequences_with_replacement(4, length=4))
    ends = walk(scape, sgd_rule(scape, inner_steps=4), scape.start.expand(4, -1), RATES, steps).mean(1)

    def own(w: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        return -scape.gradient(w) + e * corrections.iid_nstep_first_correction(scape, w, inner_steps=4)

    def other(w: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        loss = losses.modified_loss_nstep
        return gradient_flow_field(lambda p: loss(scape, p, effective_learning_rate=e, inner_steps=4))(w)

    seen = []
    for field in (own, other):
        errors = (ends - flow_at_rates(field, scape.start, RATES, updates=4)).norm(dim=1)
        seen.append(observed_order(tuple(RATES.tolist()), tuple(errors.tolist())))
    assert seen == [pytest.approx(3, abs=0.15), pytest.approx(2, abs=0.15)]


def test_unequal_batches_are_refused_where_all_orders_walk_together() -> None:
    problem = problems.logistic()
    uneven = tacit.Problem(
        problem.model, problem.loss_fn, (problem.inputs, problem.targets), batch_size=3, remainder="keep"
    )
    with pytest.raises(tacit.InputError, match=r"sizes \[2, 3\]"):
        mean_iterate(uneven, learning_rate=0.1)
