"""How much a penalty's strength differs from the first order, because the rate that it replaces is not small.

Noise of variance σ² in the gradient keeps an iterate at the variance S along a direction of curvature h: the stationary
solution of its own linear step, εσ²/(2h(1−β)) for small rates. The force that noise exerts on the slow directions,
−½ ∇³C : S, changes by the same factor as S. (For plain SGD, summed over directions, it is the regularizer
−(1/2ε) tr log(1 − (ε/2)∇²C) of Damian, Ma and Lee, arXiv 2106.06530.) A penalty of strength λ is felt as it is, so

    λ(ε) = λ₁ · F,       F = Σᵢ wᵢ f(εhᵢ)

over the curvatures hᵢ that minibatch noise meets, wᵢ its share along them (`tacit.diagnostics.Spectrum`), with x = εh:

    f(x) = 1/(1 − x/(2(1+β)))                                                      plain and heavy ball
    f(x) = 2(1−β) ((1+βc)((1+β)² + β²) − 2β(1+β)²c) / ((1−βc)(1 + (1+2β)c))        Nesterov, c = 1 − x

Nesterov's step damps noise of a curved direction first (f is 0.47 at β = 0.9 and x of 0.3 times the edge); near the
edge all three grow without bound.

On pilots F was 1.0 to 1.1, and so was the mean of the principal flow's factor, while the strength that won back all
that a large batch had lost was 1 to 2 times the first order (MNIST-1D, SGD and momentum). Neither predicts that, so
`CALIBRATION` is added, and it is what its name says: not theory.
"""

from __future__ import annotations

import numpy as np

from tacit._util.arguments import finite_number
from tacit.diagnostics.spectrum import Spectrum
from tacit.edges import stability_limit

CALIBRATION = 2.0  # on MNIST-1D pilots, seeds 60 to 63 (docs/lessons.md): × 1 won back 62 to 190 %, × 2 98 to 240 %
CLOSEST = 0.9  # of the edge: beyond, the noise of a direction is not described by a stationary variance


def finite_rate_factor(
    spectrum: Spectrum, *, learning_rate: float, momentum: float = 0.0, nesterov: bool = False
) -> float:
    """F, for the bare rate ε of torch.optim.SGD: 1 at a small rate, without bound towards the edge of stability.

    Directions that are not curved upwards have no stationary variance; they count with 1, as at small rates.

    >>> flat = Spectrum((4.0,), (1.0,), 4.0, 0.0, 100)
    >>> finite_rate_factor(flat, learning_rate=0.25)
    2.0
    """
    rate = finite_number("learning_rate", learning_rate, positive=True)
    limit = stability_limit(momentum=momentum, nesterov=nesterov)
    scaled = np.clip(rate * np.array(spectrum.values), 0.0, CLOSEST * limit)
    return float(np.array(spectrum.weights) @ _variance_ratio(scaled, momentum, nesterov=nesterov))


def _variance_ratio(scaled: np.ndarray, beta: float, *, nesterov: bool) -> np.ndarray:
    """f(εh): the stationary variance over εσ²/(2h(1−β)), its limit at small rates."""
    if not nesterov:
        return 1 / (1 - scaled / (2 * (1 + beta)))
    # ω follows ω' = (1+β)c ω − βc ω₋₁ − ε((1+β)ξ − βξ₋₁), an ARMA(2, 1) process.
    c = 1 - scaled
    noise = (1 + beta * c) * ((1 + beta) ** 2 + beta**2) - 2 * beta * (1 + beta) ** 2 * c
    return 2 * (1 - beta) * noise / ((1 - beta * c) * (1 + (1 + 2 * beta) * c))
