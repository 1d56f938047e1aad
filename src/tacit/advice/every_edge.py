"""The edge of a penalised step with momentum: on every step or every k-th, whole or from drawn micro-batches.

On a quadratic of curvature κ a step of SGD with momentum maps x = ω and what it remembers, y, to

    ((1 + β − εκ)x − βy, x)        heavy ball;        ((1 + β)(1 − εκ)x − βy, (1 − εκ)x)        Nesterov

A plain step has κ = h, one with strength λ κ = h + (λ/2)(1 + s²)h². Both are means over minibatches; the κ of a single
minibatch of B examples in micro-batches of b scatters around them with the variance

    σ² = S²h² ((1 + λh)² + (λ²/2) s²h²),        s = s(b), S = s(B) (`Spectrum.curvature_spread`), Gaussian scatter

so E x², E xy and E y² follow a linear map of their own, which has E(εκ)² where the step has εκ. Steps are stable in the
mean square while the spectral radius of that map is at most 1: for a heavy ball while

    εκ ≤ 2(1+β) / (1 + c²(1+β)/(1−β)),        c = σ/κ

Momentum remembers the scatter for 1/(1−β) steps: at β = 0.9 it weighs c² by 19, and a c of 0.4 lowers the edge
fourfold. That is why λ* without scatter was not safe with momentum (docs/large-batch.md). Without momentum c² weighs 1,
which the share of λ* that is advised covers; `batch_spread` is then not needed.

A penalty on q drawn of the m micro-batches has the same mean, and its κ scatters more, by

    (λ/2)² ((1 + s²)h²)² d²,        d² = F Var(h²)/⟨h²⟩²,  F = (m−q)/((m−1)q) of `tacit.edges.sampling_factor`

which with the scatter of minibatches left out is the edge of `tacit.edges.largest_stable_strength_sampled`.

With the penalty of weight kλ on every k-th step the maps of k steps are multiplied, and the penalised step alone must
be stable too: kλ ≤ λ*. On a quadratic the plain steps would make up for more without momentum, but a network does not
come back from a step that is ten times too long: of eight runs at the strength that k = 8 steps together allow, seven
were lost (docs/large-batch.md). With momentum the k steps together allow much less: the penalised step kicks an
oscillation that has a memory, and some curvature below λ_max resonates with the kicks. At β = 0.9 and k = 4 the edge is
a seventeenth of λ*, not a quarter.
"""

from __future__ import annotations

import numpy as np

from tacit._util.arguments import finite_number, whole_number
from tacit.advice.optimizers import Momentum
from tacit.edges import Step, largest_stable_strength

CURVATURES = 48  # between 0 and λ_max, among which the least stable is looked for
STRENGTHS = np.geomspace(1e-4, 1.0, 300)  # in units of λ*/k: a grid of 3 %
HALVINGS = 40  # of the interval that holds the edge of a penalty on every step


def largest_stable_strength_every(
    learning_rate: float,
    curvature: float,
    *,
    every: int,
    momentum: Momentum | None = None,
    curvature_spread: float = 0.0,
    batch_spread: float = 0.0,
    draw_spread: float = 0.0,
) -> float:
    """The largest λ at which a penalty of weight kλ on every k-th step, and all k together, are stable up to λ_max.

    `curvature_spread` is s of micro-batches, `batch_spread` that of whole minibatches, and `draw_spread` d of a sampled
    penalty. For k = 1 and neither of the last two it is `tacit.edges.largest_stable_strength`; 0 where the step is
    unstable without a penalty.

    >>> round(largest_stable_strength_every(0.125, 5.0, every=4), 2)
    0.22
    >>> heavy = Momentum(0.9)
    >>> round(largest_stable_strength_every(0.01, 5.0, every=1, momentum=heavy), 1)
    30.0
    >>> round(largest_stable_strength_every(0.01, 5.0, every=1, momentum=heavy, batch_spread=0.4), 1)
    2.3
    """
    beta = momentum or Momentum()
    k = whole_number("every", every, at_least=1)
    rate, h = finite_number("learning_rate", learning_rate, positive=True), finite_number("curvature", curvature)
    step = Step(momentum=beta.beta, nesterov=beta.nesterov, curvature_spread=curvature_spread)
    alone = largest_stable_strength(rate, h, step=step)
    spreads = (
        finite_number("curvature_spread", curvature_spread),
        finite_number("batch_spread", batch_spread),
        finite_number("draw_spread", draw_spread),
    )

    def unstable(strengths: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
        penalised = second_moments(rate, curvatures, k * strengths[:, None], beta, spreads)
        plain = second_moments(rate, curvatures, np.zeros((1, 1)), beta, spreads)
        radii = np.abs(np.linalg.eigvals(penalised @ np.linalg.matrix_power(plain, k - 1))).max(-1)
        return (radii > 1 + 1e-9).any(1)

    if alone == 0 or (k == 1 and batch_spread == draw_spread == 0):
        return alone
    if k == 1:  # the sharpest direction decides, and nothing resonates: by halving
        low, high = 0.0, alone
        if unstable(np.array([low]), np.array([h]))[0]:
            return 0.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if unstable(np.array([middle]), np.array([h]))[0] else (middle, high)
        return low
    one_step = largest_stable_strength_every(
        rate, h, every=1, momentum=beta, curvature_spread=curvature_spread, batch_spread=batch_spread,
        draw_spread=draw_spread,
    )  # fmt: skip
    strengths = one_step / k * STRENGTHS
    found = unstable(strengths, h * np.arange(1, CURVATURES + 1) / CURVATURES)
    if not found.any():
        return one_step / k
    first = int(found.argmax())
    return 0.0 if first == 0 else float(strengths[first - 1])


def second_moments(
    rate: float, h: np.ndarray, strength: np.ndarray, beta: Momentum, spreads: tuple[float, float, float]
) -> np.ndarray:
    """The map of (E x², E xy, E y²) in one step of this strength, shape (strengths, curvatures, 3, 3)."""
    of_micro_batches, of_batches, of_draws = spreads
    penalty = strength / 2 * (1 + of_micro_batches**2) * h**2
    scaled = rate * (h + penalty)
    scatter = (1 + strength * h) ** 2 + (strength * of_micro_batches * h) ** 2 / 2
    noise = (rate * of_batches * h) ** 2 * scatter + (rate * of_draws * penalty) ** 2  # ε²σ²
    b = beta.beta
    c, p = 1 - scaled, 1 + b - scaled
    one, zero = np.ones_like(p), np.zeros_like(p)
    if beta.nesterov:
        square = c**2 + noise  # E (1 − εκ)²
        rows = [
            [(1 + b) ** 2 * square, -2 * b * (1 + b) * c, b**2 * one],
            [(1 + b) * square, -b * c, zero],
            [square, zero, zero],
        ]
    else:
        rows = [[p**2 + noise, -2 * b * p, b**2 * one], [p, -b * one, zero], [one, zero, zero]]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
