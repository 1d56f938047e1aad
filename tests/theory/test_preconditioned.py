"""Preconditioned methods: f̃ = −P(∇C')∇C̃, with the lags of their averages, and where it ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy
import theory_oracles as oracles
import torch
from theory_cases import CASES, dense, relative
from torch import Tensor
from torch.func import jvp

import tacit
from tacit.theory import (
    Landscape,
    MemoryMethod,
    adam,
    inverse_root,
    modified_flow,
    muon,
    normalized_gd,
    preconditioned_field,
    preconditioned_loss,
    preconditioned_loss_symbolic,
    problems,
    rmsprop,
    smooth_lion,
    verify_update,
)

BETA, RHO, DELTA = 0.6, 0.7, 0.1


def lag(keep: float) -> float:
    return (1 + keep) / (2 * (1 - keep))


def first_of(field: Any, w: Tensor) -> Tensor:
    """The ε term of a field."""
    zero = torch.zeros((), dtype=torch.float64)
    return jvp(lambda rate: field(w, rate), (zero,), (torch.ones_like(zero),))[1]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("beta,rho", [(0.6, 0.7), (0.0, 0.9), (0.9, 0.5)])
def test_adams_published_first_correction_is_that_of_two_lags(case: str, beta: float, rho: float) -> None:
    problem = problems.PROBLEMS[case]()
    scape = Landscape(problem)
    g, H, _ = (part.mean(0) for part in dense(problem))
    field = preconditioned_field(scape, inverse_root(DELTA), gradient_lag=lag(beta), preconditioner_lag=lag(rho))
    assert relative(first_of(field, scape.start), oracles.adam_first(g, H, beta, rho, DELTA)) < 1e-12


@pytest.mark.parametrize("case", CASES)
def test_decoupled_decay_acts_half_a_step_late_and_enters_the_loss(case: str) -> None:
    # In dense arrays: D = g/√(g²+δ) + μω, and f₁ = −τ P H D − τ' P'[H D]g − (μ/2) D.
    problem, decay = problems.PROBLEMS[case](), 0.3
    scape = Landscape(problem)
    g, H, _ = (part.mean(0) for part in dense(problem))
    root, w = np.sqrt(g**2 + DELTA), scape.start.numpy()
    direction = g / root + decay * w
    pushed = H @ direction
    expected = -lag(BETA) * pushed / root + lag(RHO) * g**2 / root**3 * pushed - decay / 2 * direction
    method = adam(scape, beta1=BETA, beta2=RHO, delta=DELTA, weight_decay=decay)
    assert relative(modified_flow(method, order=1).corrections(scape.start)[1], expected) < 1e-12
    seen = preconditioned_loss(method, scape)
    assert seen.order == 1
    assert seen.gradient_lag.value == pytest.approx(lag(BETA))

    def potential(p: Tensor) -> Tensor:
        """Φ = φ(∇C) + μ(⟨ω, ∇C⟩ − C), φ(g) = Σ √(g²+δ): H D is its gradient."""
        g = scape.gradient(p)
        return (g.square() + DELTA).sqrt().sum() + decay * (p @ g - scape.loss(p))

    assert relative(torch.func.grad(potential)(scape.start), pushed) < 1e-12


# The age of an average that keeps β of itself is β/(1−β) steps. The momentum of Lion's last step is one step older than
# the gradient that it is mixed with.
LION = 0.5 + BETA / (1 - RHO)
METHODS = {
    "RMSprop": (lambda s: rmsprop(s, decay=RHO, delta=DELTA), lag(0), lag(RHO)),
    "Adam": (lambda s: adam(s, beta1=BETA, beta2=RHO, delta=DELTA), lag(BETA), lag(RHO)),
    "Lion": (lambda s: smooth_lion(s, beta1=BETA, beta2=RHO, delta=DELTA), LION, LION),
    "Muon": (lambda s: muon(s, momentum=BETA, delta=1.0), lag(BETA), lag(BETA)),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_lags_of_a_preconditioned_method_are_the_ages_of_its_averages(name: str) -> None:
    make, gradient, preconditioner = METHODS[name]
    scape = Landscape(problems.logistic())
    seen = preconditioned_loss(make(scape), scape)
    assert seen.order == 1, str(seen)
    assert seen.gradient_lag.value == pytest.approx(gradient, rel=1e-8)
    assert seen.preconditioner_lag is not None
    assert seen.preconditioner_lag.value == pytest.approx(preconditioner, rel=1e-8)
    assert "exists to order ε" in str(seen)


def test_lags_in_symbols() -> None:
    beta, rho = sympy.symbols("β ρ")
    seen = preconditioned_loss_symbolic(lambda x, average: average(x, beta), lambda x, average: average(x, rho))
    assert sympy.simplify(seen.gradient - (1 + beta) / (2 * (1 - beta))) == 0
    assert str(seen) == "C̃ = C + (β + 1)/(2(1−β)) εΦ, C' = C + (ρ + 1)/(2(1−ρ)) εΦ"
    assert str(preconditioned_loss_symbolic(lambda x, average: x, lambda x, average: average(x, 0.6))) == (
        "C̃ = C + ½ εΦ, C' = C + 2 εΦ"
    )
    nesterov = preconditioned_loss_symbolic(lambda x, average: x + beta * (average(x, beta) - x), lambda x, average: x)
    assert sympy.simplify(nesterov.gradient - (sympy.Rational(1, 2) + beta**2 / (1 - beta))) == 0


def test_newton_schulz_leaves_a_residual_on_matrices_and_none_on_rows() -> None:
    """Singular values are divided by the size of the whole matrix: P(G)G is no gradient in G, and Φ does not exist."""
    scapes = [Landscape(problems.logistic()), Landscape(problems.tanh_mlp())]
    row, matrix = (preconditioned_loss(muon(scape, momentum=0.5, steps=2, delta=1.0), scape) for scape in scapes)
    assert row.asymmetry.value < 1e-12
    assert matrix.first_residual.value < 1e-8  # the lags are right there too
    assert matrix.order == 0
    assert matrix.asymmetry.low > 0
    assert "Φ exists up to an asymmetry" in str(matrix)


def test_exact_orthogonalization_has_a_loss() -> None:
    """The gradient of the smooth nuclear norm Σ √(σ²+δ) in place of Newton-Schulz: its Φ exists on matrices as well."""
    scape = Landscape(problems.tanh_mlp())
    shapes = [tuple(v.shape) for v in scape.problem.parameters.values()]
    sizes = [v.numel() for v in scape.problem.parameters.values()]

    def norm(g: Tensor) -> Tensor:
        parts = [p.reshape(s if len(s) > 1 else (1, -1)) for p, s in zip(g.split(sizes), shapes, strict=True)]
        squares = [m.T @ m if m.shape[0] > m.shape[1] else m @ m.T for m in parts]
        return sum((torch.linalg.eigvalsh(square) + DELTA).sqrt().sum() for square in squares)

    slope = lambda w: scape.hessian_product(w, torch.func.grad(norm)(scape.gradient(w)))  # noqa: E731
    assert tacit.theory.asymmetry(slope, scape.start) < 1e-10


def test_a_wrong_preconditioner_is_seen_in_f0() -> None:
    scape = Landscape(problems.logistic())
    seen = preconditioned_loss(rmsprop(scape, delta=DELTA), scape, preconditioner=inverse_root(4 * DELTA))
    assert seen.order == -1
    assert "f₀ is not −P∇C" in str(seen)


def test_decay_inside_the_preconditioner_would_be_something_else() -> None:
    """AdamW has no C̃ with f₀ = −P∇C̃: the decay lies outside P, and P⁻¹ω is no gradient."""
    scape = Landscape(problems.tanh_mlp())
    method = adam(scape, beta1=BETA, beta2=RHO, delta=DELTA, weight_decay=0.3)
    seen = preconditioned_loss(method, scape, preconditioner=inverse_root(DELTA), weight_decay=0.0)
    assert seen.order == -1
    assert seen.zeroth_residual.low > 0
    inside = lambda w: w * (scape.gradient(w).square() + DELTA).sqrt()  # noqa: E731
    assert tacit.theory.asymmetry(inside, scape.start) > 0.01


def test_a_part_of_f1_that_no_lag_explains_is_measured_with_an_interval() -> None:
    # Every parameter has a memory of its own length, so that no two lags serve all of them.
    scape = Landscape(problems.logistic())
    keep = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)

    def direction(w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        g = scape.gradient(w)
        buffer = keep * memory[0] + (1 - keep) * g
        return buffer / torch.sqrt(g.square() + DELTA), buffer.unsqueeze(0)

    seen = preconditioned_loss(MemoryMethod(direction, preconditioner=inverse_root(DELTA)), scape)
    assert seen.order == 0
    assert 0.01 < seen.first_residual.low < seen.first_residual.value < seen.first_residual.high
    assert "misses" in str(seen)


def test_a_constant_preconditioner_penalizes_in_its_own_norm() -> None:
    scape = Landscape(problems.logistic())
    scale = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    seen = preconditioned_loss(
        lambda w, e: w - e * scale * scape.gradient(w), scape, preconditioner=lambda g, v: scale * v
    )
    assert (seen.order, seen.preconditioner_lag) == (1, None)
    assert seen.gradient_lag.value == pytest.approx(0.5)  # C + (ε/4)⟨∇C, P∇C⟩, φ = ½⟨g, Pg⟩


def test_normalized_descent_penalizes_the_norm_itself() -> None:
    # P = 1/‖g‖, φ = ‖g‖: C + (ε/2)‖∇C‖, for the gradient and for P alike.
    scape = Landscape(problems.tanh_mlp())
    seen = preconditioned_loss(normalized_gd(scape), scape, preconditioner=lambda g, v: v / g.norm())
    assert seen.order == 1
    assert seen.gradient_lag.value == pytest.approx(0.5)
    assert seen.preconditioner_lag is not None
    assert seen.preconditioner_lag.value == pytest.approx(0.5)


@pytest.mark.slow
def test_at_the_second_order_there_is_a_flow_and_no_loss() -> None:
    seen = preconditioned_loss(rmsprop(scape := Landscape(problems.logistic()), decay=0.6, delta=DELTA), scape, order=2)
    assert seen.order == 1
    assert seen.second_asymmetry is not None
    assert seen.second_asymmetry.low > 0.01
    assert "at ε² an asymmetry of" in str(seen)


@pytest.mark.slow
def test_on_a_quadratic_with_a_constant_preconditioner_the_loss_exists_to_the_second_order() -> None:
    scape = Landscape(problems.quadratic())
    scale = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    update = lambda w, e: w - e * scale * scape.gradient(w)  # noqa: E731
    seen = preconditioned_loss(update, scape, preconditioner=lambda g, v: scale * v, order=2)
    assert seen.order == 2  # HPHPH is symmetric


def test_the_study_of_an_update_prints_both_losses() -> None:
    scape = Landscape(problems.logistic())
    study = verify_update(rmsprop(scape, decay=0.6, delta=DELTA), scape, order=1)
    lines = str(study).splitlines()[-2:]
    assert "only a flow exists" in lines[0]
    assert lines[1] == "problem: f̃ = −P(∇C + 2 ε∇Φ) ∇C̃, C̃ = C + 0.5 εΦ: exists to order ε"
    assert '"gradient_lag"' in study.to_json()
