"""Automatic backward error analysis: numeric against symbolic, closed forms, and a user's own update."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import theory_oracles as oracles
import torch
from theory_cases import CASES, dense, relative
from torch import Tensor

import tacit
from tacit.theory import (
    Landscape,
    MemoryMethod,
    adam,
    difference_field,
    gd_update,
    heavy_ball,
    mean_sgd_epoch_update,
    modified_flow,
    modified_flow_symbolic,
    nesterov,
    problems,
    sgd_epoch_update,
    slow_memory,
)
from tacit.theory.flows import flow_at_rates
from tacit.theory.study import observed_order

AGREE = 1e-10
RATES = torch.tensor([0.02, 0.01, 0.005, 0.0025], dtype=torch.float64)


def assert_agree(numeric: list[Tensor], symbolic: list[Tensor]) -> None:
    for k, (found, expected) in enumerate(zip(numeric, symbolic, strict=True)):
        assert (found - expected).norm() <= AGREE * (1 + expected.norm()), f"f{k}: {found} against {expected}"


@pytest.mark.parametrize("case", CASES)
def test_symbolic_and_numeric_corrections_of_gd_agree_to_the_fourth(case: str) -> None:
    scape = Landscape(problems.PROBLEMS[case]())
    numeric = modified_flow(gd_update(scape), order=4).corrections(scape.start)
    assert_agree(numeric, modified_flow_symbolic("gd", order=4).evaluate(scape))


@pytest.mark.parametrize("case", CASES)
def test_symbolic_and_numeric_corrections_of_nstep_gd_agree(case: str) -> None:
    scape = Landscape(problems.PROBLEMS[case]())
    numeric = modified_flow(gd_update(scape, inner_steps=3), order=2).corrections(scape.start)
    assert_agree(numeric, modified_flow_symbolic("nstep", order=2, inner_steps=3).evaluate(scape))


@pytest.mark.parametrize("case,inner_steps", [*[(case, 1) for case in CASES], ("tanh_mlp", 2)])
def test_symbolic_and_numeric_corrections_of_mean_sgd_agree(case: str, inner_steps: int) -> None:
    scape = Landscape(problems.PROBLEMS[case]())
    update = mean_sgd_epoch_update(scape, inner_steps=inner_steps)
    numeric = modified_flow(update, order=2, duration=4).corrections(scape.start)
    assert_agree(numeric, modified_flow_symbolic("sgd", order=2, inner_steps=inner_steps).evaluate(scape))
    closed = tacit.theory.sgd_second_correction(scape, inner_steps=inner_steps)
    assert_agree([numeric[2]], [closed])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name,method", [("heavy_ball", heavy_ball), ("nesterov", nesterov)])
def test_symbolic_and_numeric_corrections_with_momentum_agree(case: str, name: str, method) -> None:
    scape = Landscape(problems.PROBLEMS[case]())
    numeric = modified_flow(method(scape, momentum=0.6), order=3).corrections(scape.start)
    assert_agree(numeric, modified_flow_symbolic(name, order=3, momentum=Fraction(3, 5)).evaluate(scape))


@pytest.mark.parametrize("case", CASES)
def test_the_first_correction_of_adam_is_the_known_formula(case: str) -> None:
    problem = problems.PROBLEMS[case]()
    g, H, _ = (part.mean(0) for part in dense(problem))
    numeric = modified_flow(adam(problem, beta1=0.6, beta2=0.7, delta=0.1), order=1).corrections(
        Landscape(problem).start
    )
    assert relative(numeric[1], oracles.adam_first(g, H, 0.6, 0.7, 0.1)) < 1e-12


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_the_series_of_mean_sgd_on_a_quadratic_tends_to_the_matrix_logarithm(order: int) -> None:
    problem = problems.quadratic(batches=3)
    scape = Landscape(problem)
    w = scape.start
    H = np.stack([torch.func.hessian(scape.loss_of)(w, b).numpy() for b in scape.batches])
    b = np.stack(
        [h @ w.numpy() - scape.gradient_of(w, batch).numpy() for h, batch in zip(H, scape.batches, strict=True)]
    )
    series = modified_flow(mean_sgd_epoch_update(scape), order=order, duration=3)
    terms = series.corrections(w)
    errors = []
    for rate in RATES.tolist():
        exact = oracles.exact_field_of_affine_map(*oracles.mean_affine_epoch(H, b, rate), w.numpy(), 3 * rate)
        found = sum(rate**k * f for k, f in enumerate(terms)).numpy()
        errors.append(float(np.linalg.norm(found - exact)))
    # The truncated field misses its next power: K + 1.
    assert observed_order(tuple(RATES.tolist()), tuple(errors)) == pytest.approx(order + 1, abs=0.1)


def smooth_sign_descent(scape: Landscape):
    """Not in the package: every coordinate moves by a smoothed sign of its gradient."""

    def update(w: Tensor, rate: Tensor) -> Tensor:
        g = scape.gradient(w)
        return w - rate * g / torch.sqrt(g.square() + 0.5)

    return update


def smoothly_clipped_descent(scape: Landscape):
    """Not in the package: the whole gradient is shrunk when it is long."""

    def update(w: Tensor, rate: Tensor) -> Tensor:
        g = scape.gradient(w)
        return w - rate * g / torch.sqrt(1 + g.square().sum())

    return update


@pytest.mark.parametrize(
    "make,order",
    [(smooth_sign_descent, 0), (smooth_sign_descent, 1), (smooth_sign_descent, 2), (smoothly_clipped_descent, 1)],
)
def test_the_flow_of_an_update_of_ones_own_has_the_predicted_order(make, order: int) -> None:
    scape = Landscape(problems.tanh_mlp())
    update = make(scape)
    field = modified_flow(update, order=order)
    points = scape.start.expand(len(RATES), -1)
    for _ in range(4):
        points = torch.func.vmap(update)(points, RATES)
    reached = flow_at_rates(field, scape.start, RATES, updates=4)
    errors = (points - reached).norm(dim=1)
    assert observed_order(tuple(RATES.tolist()), tuple(errors.tolist())) == pytest.approx(order + 2, abs=0.15)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_the_derivative_free_field_has_the_same_order(order: int) -> None:
    scape = Landscape(problems.logistic())
    update = smooth_sign_descent(scape)
    rates = 2 * RATES
    points = torch.func.vmap(lambda rate: update(update(scape.start, rate), rate))(rates)
    reached = flow_at_rates(difference_field(update, order=order), scape.start, rates, updates=2)
    errors = (points - reached).norm(dim=1)
    assert observed_order(tuple(rates.tolist()), tuple(errors.tolist())) == pytest.approx(order + 2, abs=0.15)


def test_a_memory_method_of_ones_own_is_analysed() -> None:
    # RMS-normalised descent with a momentum on the normalised step: in no table.
    scape = Landscape(problems.logistic())

    def direction(w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        g = scape.gradient(w)
        square = 0.6 * memory[0] + 0.4 * g.square()
        buffer = 0.5 * memory[1] + g
        return buffer / torch.sqrt(square + 0.2), torch.stack([square, buffer])

    method = MemoryMethod(direction, slots=2)
    method.check(scape.start)
    points = scape.start.expand(len(RATES), -1)
    memories = torch.func.vmap(lambda rate: slow_memory(method, scape.start, rate, order=2))(RATES)
    for _ in range(4):
        points, memories = torch.func.vmap(method.step)(points, memories, RATES)
    reached = flow_at_rates(modified_flow(method, order=1), scape.start, RATES, updates=4)
    errors = (points - reached).norm(dim=1)
    assert observed_order(tuple(RATES.tolist()), tuple(errors.tolist())) == pytest.approx(3, abs=0.15)


def test_the_slow_memory_is_where_a_long_run_ends_up() -> None:
    # Transients die as 0.5^n: after 60 steps nothing but rounding and the truncation at ε⁴ is left.
    scape = Landscape(problems.logistic())
    method, rate = heavy_ball(scape, momentum=0.5), torch.tensor(0.001, dtype=torch.float64)
    w, memory = scape.start, torch.zeros(1, 3, dtype=torch.float64)
    for _ in range(60):
        w, memory = method.step(w, memory, rate)
    errors = [(memory - slow_memory(method, w, rate, order=k)).norm().item() for k in range(4)]
    assert all(later < 0.1 * earlier for earlier, later in itertools.pairwise(errors))
    assert errors[3] < 1e-11  # ε⁴ = 1e-12 times a coefficient of order one


def test_a_method_whose_memory_never_forgets_is_refused() -> None:
    scape = Landscape(problems.logistic())
    adagrad = MemoryMethod(lambda w, memory: (scape.gradient(w), memory + scape.gradient(w).square()))
    with pytest.raises(tacit.InputError, match="expected less than 1"):
        adagrad.check(scape.start)


def test_a_method_whose_memory_mixes_its_entries_is_refused() -> None:
    scape = Landscape(problems.logistic())
    mixing = MemoryMethod(lambda w, memory: (memory[0], 0.3 * memory.flip(1) + scape.gradient(w)))
    with pytest.raises(tacit.InputError, match="mix or forget nonlinearly"):
        mixing.check(scape.start)


def test_one_order_has_the_commutator_as_its_first_correction() -> None:
    scape = Landscape(problems.tanh_mlp())
    order = (2, 0, 3, 1)
    numeric = modified_flow(sgd_epoch_update(scape, order=order), order=1, duration=4).corrections(scape.start)
    closed = tacit.theory.sgd_first_correction(scape) + tacit.theory.commutator(scape, order=order)
    assert_agree([numeric[1]], [closed])


def test_integrate_reaches_the_iterate_within_the_order() -> None:
    scape = Landscape(problems.logistic())
    stepped = tacit.theory.gradient_descent(scape, learning_rate=0.1, steps=2)[-1]
    distances = [
        (modified_flow(gd_update(scape), order=k).integrate(scape.start, learning_rate=0.1, updates=2) - stepped).norm()
        for k in (0, 1)
    ]
    assert distances[1] < 0.05 * distances[0]  # the first correction is worth a factor of order ε


def test_a_duration_is_a_unit_of_time_for_methods_with_memory_too() -> None:
    scape = Landscape(problems.logistic())
    method = heavy_ball(scape, momentum=0.5)
    plain, longer = modified_flow(method, order=1), modified_flow(method, order=1, duration=3)
    for one, third in zip(plain.corrections(scape.start), longer.corrections(scape.start), strict=True):
        assert torch.allclose(third, one / 3, rtol=1e-14)
    ends = [field.integrate(scape.start, learning_rate=0.01, updates=2) for field in (plain, longer)]
    assert not torch.equal(ends[0], scape.start)
    # Three times the time at a third of the speed.
    assert torch.allclose(ends[0], ends[1], rtol=1e-11)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_an_update_with_hidden_derivatives_is_refused(order: int) -> None:
    scape = Landscape(problems.logistic())
    field = modified_flow(lambda w, rate: w - rate * scape.gradient(w).detach(), order=order)
    with pytest.raises(tacit.InputError, match=r"expected ε\^[34].*detach"):
        field.integrate(scape.start, learning_rate=0.01, updates=1)
    with pytest.raises(tacit.InputError, match="detach"):  # inside vmap nothing can be looked at: before it
        flow_at_rates(field, scape.start, RATES, updates=1)


def test_at_order_zero_hidden_derivatives_do_no_harm() -> None:
    scape = Landscape(problems.logistic())
    field = modified_flow(lambda w, rate: w - rate * scape.gradient(w).detach(), order=0)
    assert torch.allclose(field.corrections(scape.start)[0], -scape.gradient(scape.start))


@pytest.mark.parametrize("stiffness", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_stiff_and_flat_updates_are_not_mistaken_for_wrong_ones(stiffness: float, order: int) -> None:
    start = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for slope in (lambda w: stiffness * w, lambda w: torch.tanh(stiffness * w), lambda w: torch.sin(w) * stiffness):
        modified_flow(lambda w, rate, slope=slope: w - rate * slope(w), order=order).check(start)


def test_a_memory_method_with_hidden_derivatives_is_refused() -> None:
    scape = Landscape(problems.logistic())

    def direction(w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        buffer = 0.5 * memory + scape.gradient(w).detach()
        return buffer[0], buffer

    with pytest.raises(tacit.InputError, match=r"derivatives of the direction are .* off"):
        modified_flow(MemoryMethod(direction), order=1).corrections(scape.start)


def test_a_memory_that_never_forgets_is_refused_without_asking() -> None:
    scape = Landscape(problems.logistic())
    adagrad = MemoryMethod(lambda w, memory: (scape.gradient(w), memory + scape.gradient(w).square()))
    with pytest.raises(tacit.InputError, match="expected less than 1"):
        modified_flow(adagrad).integrate(scape.start, learning_rate=0.1, updates=1)
