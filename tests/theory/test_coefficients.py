"""Orders see coefficients: doubling or halving any of them loses an order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from tacit.theory import Landscape, corrections, experiments, experiments_beyond, problems, updates
from tacit.theory import modified_losses as losses
from tacit.theory.comparisons import Experiment
from tacit.theory.flows import flow_at_rates, gradient_flow_field
from tacit.theory.memory import memory_corrections
from tacit.theory.orders import orders_of
from tacit.theory.study import observed_order

# Doubling or halving a coefficient changes the field by ε^k times at least half of it, so the error loses one order:
# ±0.15 tells 2 from 3 and 3 from 4 with room to spare. m·ε·‖H‖ stays below 0.1.
RATES = torch.tensor([0.0125, 0.00625, 0.003125, 0.0015625], dtype=torch.float64)
Field = Callable[[Tensor, Tensor], Tensor]
FACTORS = (0.5, 2.0)


def order_of(experiment: Experiment, scape: Landscape, field: Field) -> float:
    rates = RATES / experiment.stiffness
    reached = flow_at_rates(field, scape.start, rates, updates=experiment.updates)
    errors = (experiment.ends(rates) - reached).norm(dim=1)
    found = observed_order(tuple(rates.tolist()), tuple(errors.tolist()))
    assert found is not None
    return found


def descent(loss: Callable[[Tensor, Tensor], Tensor]) -> Field:
    return lambda w, rate: gradient_flow_field(lambda point: loss(point, rate))(w)


@pytest.fixture(scope="module")
def scape() -> Landscape:
    return Landscape(problems.tanh_mlp())


@pytest.fixture(scope="module")
def orders():
    return orders_of(4)


@pytest.mark.parametrize("factor,order", [(1.0, 3), (0.5, 2), (2.0, 2)])
def test_the_quarter_of_gradient_descent(scape: Landscape, factor: float, order: int) -> None:
    field = descent(lambda w, e: scape.loss(w) + factor * e * losses.full_gradient_regularizer(scape, w))
    assert order_of(experiments.gradient_descent(scape), scape, field) == pytest.approx(order, abs=0.15)


@pytest.mark.parametrize("factor,order", [(1.0, 3), (0.5, 2), (2.0, 2)])
def test_the_quarter_of_mean_sgd(scape: Landscape, orders, factor: float, order: int) -> None:
    field = descent(lambda w, e: scape.loss(w) + factor * e * losses.implicit_regularizer(scape, w))
    assert order_of(experiments.mean_sgd(scape, orders), scape, field) == pytest.approx(order, abs=0.15)


@pytest.mark.parametrize("factor", FACTORS)
def test_the_variance_part_alone_also_needs_its_coefficient(scape: Landscape, orders, factor: float) -> None:
    field = descent(
        lambda w, e: (
            losses.modified_loss_gd(scape, w, learning_rate=e) + factor * e * losses.variance_regularizer(scape, w)
        )
    )
    assert order_of(experiments.mean_sgd(scape, orders), scape, field) == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("factor", FACTORS)
def test_one_over_n_of_nstep_sgd(scape: Landscape, orders, factor: float) -> None:
    field = descent(lambda w, e: scape.loss(w) + factor * e / 4 * losses.implicit_regularizer(scape, w))
    assert order_of(experiments.nstep(scape, orders, 4), scape, field) == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("term", ["chain", "bush"])
def test_the_third_and_the_twelfth_of_the_second_gd_correction(scape: Landscape, term: str, factor: float) -> None:
    def second(w: Tensor) -> Tensor:
        g = scape.gradient(w)
        chain = -scape.hessian_product(w, scape.hessian_product(w, g)) / 3
        bush = -scape.third(w, g, g) / 12
        return factor * chain + bush if term == "chain" else chain + factor * bush

    field = descent(lambda w, e: losses.modified_loss_gd(scape, w, learning_rate=e))
    wrong: Field = lambda w, e: field(w, e) + e**2 * second(w)  # noqa: E731
    assert order_of(experiments.gradient_descent(scape), scape, wrong) == pytest.approx(3, abs=0.15)


@pytest.mark.parametrize("factor", FACTORS)
def test_the_twelfth_of_the_double_bracket(scape: Landscape, orders, factor: float) -> None:
    modified = descent(lambda w, e: losses.modified_loss_sgd(scape, w, learning_rate=e))

    def wrong(w: Tensor, e: Tensor) -> Tensor:
        own = corrections.own_second_corrections(scape, w).mean(0)
        return modified(w, e) + e**2 * (own + factor * corrections.double_bracket(scape, w))

    assert order_of(experiments.mean_sgd(scape, orders), scape, wrong) == pytest.approx(3, abs=0.15)


@pytest.mark.parametrize("factor", FACTORS)
def test_the_half_of_the_commutator(scape: Landscape, factor: float) -> None:
    modified = descent(lambda w, e: losses.modified_loss_sgd(scape, w, learning_rate=e))
    wrong: Field = lambda w, e: modified(w, e) + factor * e * corrections.commutator(scape, w)  # noqa: E731
    assert order_of(experiments.fixed_order(scape), scape, wrong) == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("factor", FACTORS)
def test_the_gamma_factor_of_random_partitions(scape: Landscape, factor: float) -> None:
    def loss(w: Tensor, e: Tensor) -> Tensor:
        gamma = losses.expected_minibatch_variance(8, 2) * losses.gradient_covariance_trace(scape, w)
        return losses.modified_loss_gd(scape, w, learning_rate=e) + factor * e * losses.quarter_of(gamma)

    experiment = experiments_beyond.random_partitions(scape, (2, 2, 2, 2), name="", where="")
    assert order_of(experiment, scape, descent(loss)) == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("factor", FACTORS)
def test_the_own_share_of_sgd_on_a_penalized_loss(scape: Landscape, orders, factor: float) -> None:
    field = descent(lambda w, e: scape.loss(w) + (4 + factor) * e * losses.implicit_regularizer(scape, w))
    assert order_of(experiments.penalized(scape, orders), scape, field) == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("full,variance", [(2.0, 1.0), (0.5, 1.0), (1.0, 2.0), (1.0, 0.5)])
def test_the_two_factors_of_momentum_with_minibatches(orders, full: float, variance: float) -> None:
    scape = Landscape(problems.logistic())  # where the variance part is the larger one
    beta = 0.5
    effective = 1 / (1 - beta)

    def loss(w: Tensor, e: Tensor) -> Tensor:
        amplified = (1 + beta) / (1 - beta) * losses.full_gradient_regularizer(scape, w)
        weakened = losses.momentum_variance_factor(4, beta) * losses.variance_regularizer(scape, w)
        return scape.loss(w) + effective * e * (full * amplified + variance * weakened)

    field = descent(loss)
    wrong: Field = lambda w, e: effective * field(w, e)  # noqa: E731
    experiment = experiments_beyond.minibatch_momentum(scape, orders, momentum=beta)
    assert order_of(experiment, scape, wrong) == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(
    "make", [partial(updates.heavy_ball, momentum=0.5), partial(updates.adam, beta1=0.5, beta2=0.6, delta=0.1)]
)
def test_the_first_correction_of_methods_with_memory(scape: Landscape, make, factor: float) -> None:
    method = make(scape)

    def wrong(w: Tensor, e: Tensor) -> Tensor:
        zeroth, first = memory_corrections(method, w, order=1)[0]
        return zeroth + factor * e * first

    experiment = experiments_beyond.memory(scape, "method", method, stiffness=4)
    assert order_of(experiment, scape, wrong) == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("inner_steps,order", [(1, 4), (2, 4)])
def test_the_second_correction_also_holds_for_inner_steps(
    scape: Landscape, orders, inner_steps: int, order: int
) -> None:
    rates = losses.modified_loss_nstep
    modified = descent(lambda w, e: rates(scape, w, effective_learning_rate=e, inner_steps=inner_steps))

    def field(w: Tensor, e: Tensor) -> Tensor:
        return modified(w, e) + e**2 * corrections.sgd_second_correction(scape, w, inner_steps=inner_steps)

    assert order_of(experiments.nstep(scape, orders, inner_steps), scape, field) == pytest.approx(order, abs=0.15)


def test_the_mean_with_replacement_has_its_own_second_correction(scape: Landscape) -> None:
    modified = descent(lambda w, e: losses.modified_loss_gd(scape, w, learning_rate=e))
    field: Field = lambda w, e: modified(w, e) + e**2 * corrections.iid_second_correction(scape, w)  # noqa: E731
    assert order_of(experiments.with_replacement(scape), scape, field) == pytest.approx(4, abs=0.15)
