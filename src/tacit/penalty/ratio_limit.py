"""A limit on the penalty's part of a step beside the plain part, from the batch sharpness of the steps before.

The step's gradient is g + (λ/2) H g, a mean over micro-batches. Along a direction where their curvatures are hₖ ≥ 0 the
penalty's part is (λ/2) E h²/E h times the plain part, and batch sharpness s = Σ⟨gₖ, Hₖ gₖ⟩/Σ‖gₖ‖² is E h³/E h², which
is never smaller than E h²/E h. So a strength of at most

    λ ≤ 2r/s

keeps the ratio of the two parts at r or below, and the step no longer than 1 + r plain steps: it is stable wherever
plain SGD with the rate (1 + r)ε is, whatever momentum there is and however the curvature changes along training.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from torch import Tensor

from tacit._arguments import finite_number

# Of the strength, on the first step, before any sharpness is known: a network that has just been made may be tens of
# times sharper than the one that the strength was measured on (an MLP of width 512: λs/2 = 4, and 0.3 later).
FIRST = 2.0**-10
REMEMBERED = 0.8  # of the sharpness, from one step to the next while it falls; a rise counts at once
_log = logging.getLogger("tacit")


class RatioLimit:
    """λ ← min(λ, 2r/s), s the batch sharpness of the steps before: the sharpest of the last few."""

    def __init__(self, ratio: float) -> None:
        self.ratio = finite_number("largest_ratio", ratio, positive=True)
        self.sharpness: float | None = None
        self.known = True  # whether steps have a batch sharpness at all

    def held(self, strength: float) -> float:
        """The strength of the next step."""
        if not self.known:
            return strength
        if self.sharpness is None:
            return FIRST * strength
        return min(strength, 2 * self.ratio / self.sharpness) if self.sharpness > 0 else strength

    def see(self, sharpness: Tensor | None, over_workers: Callable[[float], float | None]) -> None:
        """Take note of a penalised step. Of several workers the sharpest counts; None where the step has no number."""
        if sharpness is None:
            if self.known:
                _log.warning(
                    "GradientPenalty: largest_ratio=%g is not in force, because the steps have no batch sharpness here "
                    "(two views, of='global_batch', or wide weights of `gram` without micro-batches).", self.ratio,
                )  # fmt: skip
            self.known = False
            return
        self.known = True
        found = over_workers(float(sharpness))
        if found is not None and math.isfinite(found):  # 0/0 at a gradient of zero says nothing
            old = found if self.sharpness is None else self.sharpness
            self.sharpness = max(found, REMEMBERED * old + (1 - REMEMBERED) * found)
