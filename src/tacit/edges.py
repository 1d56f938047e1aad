"""Edges of stability: the largest curvature, strength and learning rate at which a step still contracts.

On the quadratic ½hω² every method below is linear in ω, so "stable" has one meaning: the spectral radius of the step is
at most 1. All of them see the curvature through the gradient of the loss they descend, κ(h)·ω, with

    κ(h) = (h + μ) + (λ/2) ((h + μ)² + s² h²)

λ the strength of the penalty, μ the weight decay (inside the norm of the penalty), and s the relative spread of the
curvature over micro-batches: the penalty squares each micro-batch's Hessian, and the mean of squares is larger than the
square of the mean. A step is stable while ε·κ(h) stays below a number of the method alone, `stability_limit`.

No torch here: the penalty and the advice use these formulas too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacit._util.arguments import finite_number, whole_number
from tacit._util.errors import InputError


def stability_limit(*, momentum: float = 0.0, nesterov: bool = False, inner_steps: int = 1) -> float:
    """The largest stable ε·κ: what the learning rate times the curvature must not exceed.

    plain 2,   heavy ball 2(1+β),   Nesterov 2(1+β)/(1+2β),   n-step: n times as much, because ε = nα

    Momentum is that of torch.optim.SGD without dampening: buffer ← β buffer + g, ω ← ω − ε buffer, and with Nesterov
    ω ← ω − ε (g + β buffer). It widens the range of heavy ball and narrows that of Nesterov.

    >>> stability_limit(momentum=0.5), stability_limit(momentum=0.5, nesterov=True), stability_limit(inner_steps=3)
    (3.0, 1.5, 6.0)
    """
    beta = _momentum(momentum)
    own = 2 * (1 + beta) / (1 + 2 * beta) if nesterov else 2 * (1 + beta)
    return whole_number("inner_steps", inner_steps, at_least=1) * own


@dataclass(frozen=True)
class Step:
    """What a step's stability depends on besides its rate and its penalty, by the names of `torch.optim.SGD`.

    `learning_rate` is everywhere the effective rate ε = nα when there are inner steps. Weight decay of the optimizer,
    outside the norm of the penalty, is `weight_decay_penalized=False`.
    """

    momentum: float = 0.0
    nesterov: bool = False
    inner_steps: int = 1
    weight_decay: float = 0.0
    weight_decay_penalized: bool = True
    curvature_spread: float = 0.0

    def __post_init__(self) -> None:
        finite_number("weight_decay", self.weight_decay)
        finite_number("curvature_spread", self.curvature_spread)

    @property
    def limit(self) -> float:
        return stability_limit(momentum=self.momentum, nesterov=self.nesterov, inner_steps=self.inner_steps)

    @property
    def decay_inside(self) -> float:
        """Weight decay inside the norm of the penalty."""
        return self.weight_decay if self.weight_decay_penalized else 0.0

    def gradient_coefficients(self, strength: float) -> tuple[float, float, float]:
        """κ(h) = constant + linear·h + square·h², the gradient of the descended loss per unit of ω."""
        strength, inside = finite_number("strength", strength), self.decay_inside
        square = strength * (1 + self.curvature_spread**2) / 2
        return self.weight_decay + strength * inside**2 / 2, 1 + strength * inside, square


_PLAIN = Step()


def largest_stable_curvature(learning_rate: float, *, strength: float = 0.0, step: Step = _PLAIN) -> float:
    """h*, the curvature at which the step stops contracting.

    plain 2/ε,   penalized (√(1 + 4λ/ε) − 1)/λ,   in general the root of ε κ(h) = `stability_limit`

    It is 1.24/ε for λ = ε. 0 if weight decay alone is unstable.

    >>> largest_stable_curvature(0.5), round(largest_stable_curvature(0.5, strength=0.5), 3)
    (4.0, 2.472)
    >>> largest_stable_curvature(0.5, step=Step(momentum=0.5))
    6.0
    """
    rate = finite_number("learning_rate", learning_rate, positive=True)
    constant, linear, square = step.gradient_coefficients(strength)
    left = step.limit / rate - constant
    if left <= 0:
        return 0.0
    # The positive root of square·h² + linear·h = left, in the form that does not cancel for a small square.
    return 2 * left / (linear + math.sqrt(linear**2 + 4 * square * left))


def largest_stable_strength(learning_rate: float, curvature: float, *, step: Step = _PLAIN) -> float:
    """λ*, the strength of the penalty at which the step stops contracting along a direction of this curvature.

    plain (2/h)(2/(εh) − 1),   heavy ball (2/h)(2(1+β)/(εh) − 1)

    0 when the step is unstable without any penalty. It is a bound of the quadratic, not a recommendation: micro-batches
    are sharper than the full batch (`curvature_spread`), so stay well below it.

    >>> round(largest_stable_strength(1 / 8, 7.4), 2)
    0.31
    """
    rate = finite_number("learning_rate", learning_rate, positive=True)
    h = finite_number("curvature", curvature, positive=True)
    left = step.limit / rate - h - step.weight_decay
    if left <= 0:
        return 0.0
    return 2 * left / ((h + step.decay_inside) ** 2 + (step.curvature_spread * h) ** 2)


def largest_stable_learning_rate(curvature: float, *, strength: float = 0.0, step: Step = _PLAIN) -> float:
    """ε*, the learning rate at which the step stops contracting: `stability_limit` over κ(h).

    >>> largest_stable_learning_rate(4.0), largest_stable_learning_rate(4.0, strength=0.5)
    (0.5, 0.25)
    """
    h = finite_number("curvature", curvature, positive=True)
    constant, linear, square = step.gradient_coefficients(strength)
    return step.limit / (constant + linear * h + square * h**2)


def sampling_factor(batches: int, sampled: int) -> float:
    """F = (m−q)/((m−1)q), the variance of a mean over q of m without replacement, beside that of one: 1, …, 0.

    >>> sampling_factor(16, 1), sampling_factor(16, 16)
    (1.0, 0.0)
    """
    if not 1 <= whole_number("sampled", sampled) <= whole_number("batches", batches, at_least=1):
        raise InputError(f"sampled={sampled} of {batches} micro-batches; expected 1 to {batches}.")
    return (batches - sampled) / ((batches - 1) * sampled) if batches > 1 else 0.0


def largest_stable_strength_sampled(
    learning_rate: float,
    curvatures: Sequence[float],
    *,
    sampled: int,
    squares: Sequence[float] | None = None,
    momentum: float = 0.0,
) -> float:
    """λ*(q), up to which the mean square stays bounded when each step penalises q of the m micro-batches.

    Along one direction where micro-batches have the curvatures hₖ, a step with the drawn ones has the curvature

        κ = h̄ + (λ/2) mean hₖ² over the q drawn,   E κ = h̄ + (λ/2) ⟨h²⟩,   Var κ = (λ/2)² F Var(h²)

    with F of `sampling_factor`: drawn without repetition in a step, independently from step to step. Plain SGD
    multiplies by 1 − εκ, so its mean square shrinks while (1 − εEκ)² + ε²Var κ < 1. A heavy ball's E x², E xy, E y²
    follow a 3x3 matrix, whose spectral radius is below 1 while

        ε (E κ + (1+β)/(1−β) Var κ/E κ) < 2(1+β)

    which is plain SGD's condition at β = 0. It is a quadratic in λ, and λ* its positive root; at q = m the edge of the
    whole penalty. 0 where the plain step is unstable, inf where no curvature is penalised.

    `squares` are hₖ² where they are measured apart: a Hessian Hₖ has vᵀHₖv and ‖Hₖv‖² along v, and the second is
    larger than the square of the first. For plain SGD the one direction bounds the edge of all from above: E M⊗M is
    symmetric, and its part along v⊗v is no more than its spectral radius. The whole matrices are in
    `tacit.theory.sampled_penalty_edge`. Not for Nesterov.

    >>> round(largest_stable_strength_sampled(0.2, [0.5, 1.0, 2.0, 3.0], sampled=1), 2)
    2.76
    >>> round(largest_stable_strength_sampled(0.2, [0.5, 1.0, 2.0, 3.0], sampled=4), 2)
    4.7
    """
    rate, beta = finite_number("learning_rate", learning_rate, positive=True), _momentum(momentum)
    own = [_real("curvatures", value) for value in curvatures]
    second = [h * h for h in own] if squares is None else [finite_number("squares", value) for value in squares]
    if len(second) != len(own) or not own:
        raise InputError(
            f"{len(own)} curvatures and {len(second)} squares; expected one of each for every micro-batch."
        )
    m = len(own)
    factor = sampling_factor(m, sampled)
    h, square = sum(own) / m, sum(second) / m
    variance = factor * sum((value - square) ** 2 for value in second) / m
    limit = stability_limit(momentum=beta) / rate
    if not 0 < h < limit:
        return 0.0
    if square == 0:
        return math.inf
    # With u = λ/2: (⟨h²⟩² + (1+β)/(1−β) variance) u² + (2h̄ − limit) ⟨h²⟩ u = h̄ (limit − h̄).
    leading = square**2 + (1 + beta) / (1 - beta) * variance
    half, left = (h - limit / 2) * square, h * (limit - h)
    root = math.sqrt(half**2 + leading * left)
    # Of the two forms of the positive root the one that does not cancel.
    return 2 * (left / (half + root) if half > 0 else (root - half) / leading)


def _real(name: str, value: float) -> float:
    """Finite; a micro-batch may be curved downwards."""
    return math.copysign(finite_number(name, abs(value)), value)


def _momentum(momentum: float) -> float:
    found = finite_number("momentum", momentum)
    if found >= 1:
        raise InputError(f"momentum={momentum!r}; expected 0 <= momentum < 1.")
    return found
