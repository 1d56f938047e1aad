"""Momentum's two factors on the implicit regularizer, against `tacit.theory` and against real iterates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tacit
from tacit.advice import regularizer_factors
from tacit.advice.optimizers import Momentum, read_optimizer
from tacit.theory import Landscape, problems
from tacit.theory import modified_losses as losses
from tacit.theory.flows import flow_at_rates, gradient_flow_field
from tacit.theory.iterates import walk
from tacit.theory.orders import orders_of, steps_of
from tacit.theory.study import observed_order

RATES = torch.tensor([0.0125, 0.00625, 0.003125, 0.0015625], dtype=torch.float64)


@pytest.mark.parametrize("batches", [1, 2, 4])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_heavy_ball_has_the_modified_loss_of_the_theory(batches: int, beta: float) -> None:
    scape = Landscape(problems.logistic(batches=batches))
    w, effective = scape.start, 0.1 / (1 - beta)
    found = regularizer_factors(0.1, batches=batches, momentum=beta)
    full, variance = losses.full_gradient_regularizer(scape, w), losses.variance_regularizer(scape, w)
    expected = losses.modified_loss_momentum(scape, w, effective_learning_rate=effective, momentum=beta) - scape.loss(w)
    assert (found.full * full + found.noise * variance).item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("batches", [3, 64, 1000])
@pytest.mark.parametrize("nesterov", [False, True])
def test_the_factor_of_the_noise_is_the_mean_over_pairs_of_steps(batches: int, nesterov: bool) -> None:
    """1 − βⁿ for two steps n apart, and one power of β more for Nesterov."""
    apart = torch.arange(1, batches, dtype=torch.float64)
    rho = ((batches - apart) * (1 - 0.9 ** (apart + nesterov))).sum() / (batches * (batches - 1) / 2)
    found = regularizer_factors(1.0, batches=batches, momentum=0.9, nesterov=nesterov).noise
    assert found == pytest.approx(10 * rho.item(), rel=1e-9)


@pytest.mark.parametrize(
    ("full", "noise", "order"), [(1.0, 1.0, 3), (0.5, 1.0, 2), (2.0, 1.0, 2), (1.0, 0.5, 2), (1.0, 2.0, 2)]
)
def test_the_mean_over_orders_of_nesterov_is_on_the_flow_of_its_factors(full: float, noise: float, order: int) -> None:
    """z = ω − ε β²/(1−β) buffer, an epoch in all orders: third order, and second with either factor wrong."""
    scape, beta = Landscape(problems.logistic()), 0.5  # where the variance part is the larger one
    effective, lag = 1 / (1 - beta), beta**2 / (1 - beta)
    factors = regularizer_factors(1.0, batches=4, momentum=beta, nesterov=True)

    def rule(state: Tensor, examples: Tensor, rate: Tensor) -> Tensor:
        w, buffer = state
        g = scape.gradient_of(w, examples)
        buffer = beta * buffer + g
        return torch.stack([w - rate * (g + beta * buffer), buffer])

    def field(w: Tensor, rate: Tensor) -> Tensor:
        def loss(point: Tensor) -> Tensor:
            noisy = noise * factors.noise * losses.variance_regularizer(scape, point)
            return scape.loss(point) + rate * (
                full * factors.full * losses.full_gradient_regularizer(scape, point) + noisy
            )

        return effective * gradient_flow_field(loss)(w)

    rates = RATES / effective
    buffer = effective * scape.gradient(scape.start)
    starts = torch.stack([torch.stack([scape.start + rate * lag * buffer, buffer]) for rate in rates])
    states = walk(scape, rule, starts, rates, steps_of(scape, orders_of(4).rows))
    ends = (states[:, :, 0] - rates[:, None, None] * lag * states[:, :, 1]).mean(1)
    errors = (ends - flow_at_rates(field, scape.start, rates, updates=4)).norm(dim=1)
    assert observed_order(tuple(rates.tolist()), tuple(errors.tolist())) == pytest.approx(order, abs=0.15)


def test_without_momentum_both_factors_are_the_rate() -> None:
    found = regularizer_factors(0.3, batches=17)
    assert (found.full, found.noise) == (0.3, 0.3)


def test_an_sgd_optimizer_is_read_and_others_are_refused_with_a_way_out() -> None:
    weight = [torch.nn.Parameter(torch.zeros(2))]
    found = read_optimizer(torch.optim.SGD(weight, lr=0.1, momentum=0.9, nesterov=True))
    assert (found.learning_rate, found.momentum) == (0.1, Momentum(0.9, nesterov=True))
    for make in (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        with pytest.raises(tacit.InputError, match=r"is not covered.*search_strength"):
            read_optimizer(make(weight, lr=0.1))
    groups = [{"params": weight}, {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.2}]
    with pytest.raises(tacit.InputError, match="2 parameter groups"):
        read_optimizer(torch.optim.SGD(groups, lr=0.1))
    with pytest.raises(tacit.InputError, match="dampening"):
        read_optimizer(torch.optim.SGD(weight, lr=0.1, momentum=0.9, dampening=0.5))
    with pytest.raises(tacit.InputError, match="maximize=True"):
        read_optimizer(torch.optim.SGD(weight, lr=0.1, maximize=True))


def test_a_refusal_says_nothing_of_adam_about_optimizers_that_are_not_of_its_kind() -> None:
    weight = [torch.nn.Parameter(torch.zeros(2))]
    for make in (torch.optim.LBFGS, torch.optim.Adagrad):
        with pytest.raises(tacit.InputError, match=r"is not covered.*search_strength") as caught:
            read_optimizer(make(weight, lr=0.1))
        assert "β₂" not in str(caught.value)
        assert "root mean square" not in str(caught.value)


def test_the_package_s_own_sgd_is_read_like_torch_s() -> None:
    model = torch.nn.Linear(2, 1)
    own = tacit.FactoredSGD(model, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, strength=0.25)
    found = read_optimizer(own)
    assert (found.learning_rate, found.momentum) == (0.1, Momentum(0.9, nesterov=True))
    assert (found.weight_decay, found.strength) == (0.01, 0.25)
