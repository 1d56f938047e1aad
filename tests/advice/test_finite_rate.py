"""The finite-rate factor, against the stationary covariance of the steps themselves."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.advice import Momentum, finite_rate_factor
from tacit.diagnostics import Spectrum
from tacit.edges import stability_limit

KINDS = [Momentum(), Momentum(0.5), Momentum(0.9), Momentum(0.5, nesterov=True), Momentum(0.9, nesterov=True)]


def spectrum(*values: float) -> Spectrum:
    return Spectrum(values, tuple(1 / len(values) for _ in values), max(values), 0.0, 100)


def stationary_variance(scaled: float, momentum: Momentum) -> float:
    """Var ω at ε = 1 and h = `scaled`, unit noise: vec S = (I − M⊗M)⁻¹ vec(n nᵀ) for the state (ω, buffer)."""
    b = momentum.beta
    push = 1 + b if momentum.nesterov else 1.0  # of this step's gradient on ω
    kept = b**2 if momentum.nesterov else b  # of the old buffer on ω
    step = np.array([[1 - push * scaled, -kept], [scaled, b]])
    noise = np.array([-push, 1.0])
    flat = np.linalg.solve(np.eye(4) - np.kron(step, step), np.outer(noise, noise).ravel())
    return float(flat[0])


@pytest.mark.parametrize("momentum", KINDS, ids=str)
@pytest.mark.parametrize("share", [1e-3, 0.1, 0.3, 0.6, 0.85])
def test_it_is_the_stationary_variance_over_that_of_small_rates(momentum: Momentum, share: float) -> None:
    scaled = share * stability_limit(momentum=momentum.beta, nesterov=momentum.nesterov)
    small = 1e-7  # εh, where the variance is ε/(2h(1−β)) up to a relative error of this size
    expected = stationary_variance(scaled, momentum) * scaled / (stationary_variance(small, momentum) * small)
    found = finite_rate_factor(spectrum(scaled), learning_rate=1.0, momentum=momentum.beta, nesterov=momentum.nesterov)
    assert found == pytest.approx(expected, rel=1e-4)  # the two solves at small rates lose seven digits


def test_nesterov_has_less_noise_than_at_small_rates() -> None:
    """At a third of its edge and β = 0.9 a half; heavy ball has 1.43 times."""
    limit = stability_limit(momentum=0.9, nesterov=True)
    assert finite_rate_factor(spectrum(0.3 * limit), learning_rate=1.0, momentum=0.9, nesterov=True) < 0.5


@pytest.mark.parametrize("momentum", KINDS, ids=str)
def test_directions_without_a_stationary_variance_do_not_blow_it_up(momentum: Momentum) -> None:
    options = {"momentum": momentum.beta, "nesterov": momentum.nesterov}
    assert finite_rate_factor(spectrum(-1 / 9, -5.0), learning_rate=1.0, **options) == pytest.approx(1.0)
    assert finite_rate_factor(spectrum(50.0), learning_rate=1.0, **options) < 11
