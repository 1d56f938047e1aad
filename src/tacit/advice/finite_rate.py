"""How much more strength a penalty needs than the first order says, because the rate that it replaces is not small.

Noise of variance σ² in the gradient keeps an iterate at the variance S = εσ²/(h(2 − εh)) along a direction of curvature
h. That is the εσ²/(2h) of small rates times 1/(1 − εh/2), and the force that noise exerts on the slow directions,
−½ ∇³C : S, grows by the same factor. (Summed over directions it is the regularizer −(1/2ε) tr log(1 − (ε/2)∇²C) of
Damian, Ma and Lee, arXiv 2106.06530.) A penalty of strength λ is felt as it is, so it must be that much stronger:

    λ(ε) = λ₁ · F,       F = Σᵢ wᵢ / (1 − εhᵢ/l),        l = 2 plain, 2(1+β) heavy ball, 2(1+β)/(1+2β) Nesterov

over the curvatures hᵢ that minibatch noise meets, wᵢ its share along them (`tacit.diagnostics.Spectrum`).

On pilots F was 1.0 to 1.1, and so was the mean of the principal flow's factor, while the strength that won back all
that a large batch had lost was 1 to 2 times the first order (MNIST-1D, SGD and momentum). Neither predicts that, so
`CALIBRATION` is added, and it is what its name says: not theory.
"""

from __future__ import annotations

import numpy as np

from tacit.advice.optimizers import Momentum
from tacit.diagnostics.spectrum import Spectrum
from tacit.edges import stability_limit

CALIBRATION = 2.0  # on MNIST-1D pilots, seeds 60 to 63 (LOG.md): × 1 won back 62 to 190 %, × 2 98 to 240 %
CLOSEST = 0.9  # of the edge: beyond, the noise of a direction is not described by a stationary variance


def finite_rate_factor(spectrum: Spectrum, *, learning_rate: float, momentum: Momentum | None = None) -> float:
    """F: 1 at a small rate, growing without bound as the curvatures that noise meets come to the edge of stability.

    >>> flat = Spectrum((4.0,), (1.0,), 4.0, 0.0, 100)
    >>> finite_rate_factor(flat, learning_rate=0.25)
    2.0
    """
    momentum = momentum or Momentum()
    limit = stability_limit(momentum=momentum.beta, nesterov=momentum.nesterov)
    shares = np.clip(learning_rate * np.array(spectrum.values) / limit, None, CLOSEST)
    return float(np.array(spectrum.weights) @ (1 / (1 - shares)))
