"""The edge of a penalty on every k-th step: k − 1 plain steps and one with strength kλ, taken together.

On a quadratic each step of SGD with momentum is a linear map of (ω, previous ω), with the matrix

    M(κ) = (1 + β − εκ   −β)        Nesterov:  ((1 + β)(1 − εκ)   −β(1 − εκ))
           (1             0)                   (1                  0        )

so k steps are stable while the spectral radius of M(κ₁) M(h)^{k−1} is at most 1, κ₁ = h + (kλ/2)(1 + s²)h². Without
momentum that allows more than kλ < λ*, because the plain steps contract as well. With momentum it allows much less: the
penalised step kicks an oscillation that has a memory, and some curvature below λ_max resonates with the kicks. At
β = 0.9 and k = 4 the edge is a seventeenth of λ*, not a quarter.
"""

from __future__ import annotations

import numpy as np

from tacit._arguments import finite_number, whole_number
from tacit.advice.optimizers import Momentum
from tacit.edges import largest_stable_strength

CURVATURES = 48  # between 0 and λ_max, among which the least stable is looked for
STRENGTHS = np.geomspace(1e-4, 30.0, 400)  # in units of λ*: a grid of 3 %


def largest_stable_strength_every(
    learning_rate: float,
    curvature: float,
    *,
    every: int,
    momentum: Momentum | None = None,
    curvature_spread: float = 0.0,
) -> float:
    """The largest λ at which a penalty of weight kλ on every k-th step is stable for all curvatures up to λ_max.

    For k = 1 it is `tacit.edges.largest_stable_strength`; 0 where the step is unstable without a penalty.

    >>> round(largest_stable_strength_every(0.125, 5.0, every=4), 2)
    1.98
    """
    beta = momentum or Momentum()
    k = whole_number("every", every, at_least=1)
    rate, h = finite_number("learning_rate", learning_rate, positive=True), finite_number("curvature", curvature)
    alone = largest_stable_strength(
        rate, h, momentum=beta.beta, nesterov=beta.nesterov, curvature_spread=curvature_spread
    )
    if k == 1 or alone == 0:
        return alone
    curvatures = h * np.arange(1, CURVATURES + 1) / CURVATURES
    strengths = alone * STRENGTHS[:, None]
    sharp = curvatures + k * strengths / 2 * (1 + curvature_spread**2) * curvatures**2
    plain = np.linalg.matrix_power(_step(rate * curvatures, beta), k - 1)
    radii = np.abs(np.linalg.eigvals(_step(rate * sharp, beta) @ plain)).max(-1)
    unstable = (radii > 1 + 1e-9).any(1)
    if not unstable.any():
        return float(strengths[-1, 0])
    first = int(unstable.argmax())
    return 0.0 if first == 0 else float(strengths[first - 1, 0])


def _step(scaled: np.ndarray, beta: Momentum) -> np.ndarray:
    """The matrices of one step at εκ, shape (…, 2, 2)."""
    b = beta.beta
    if beta.nesterov:
        top = np.stack([(1 + b) * (1 - scaled), -b * (1 - scaled)], axis=-1)
    else:
        top = np.stack([1 + b - scaled, np.full_like(scaled, -b)], axis=-1)
    bottom = np.broadcast_to(np.array([1.0, 0.0]), top.shape)
    return np.stack([top, bottom], axis=-2)
