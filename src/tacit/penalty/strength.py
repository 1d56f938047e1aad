"""λ of each step: a number or a schedule, on all steps or on some, limited by the batch sharpness of the steps before.

The limit: a step's gradient is g + (λ/2) H g, a mean over micro-batches. Along a direction where their curvatures are
hₖ ≥ 0 the penalty's part is (λ/2) E h²/E h times the plain part, and batch sharpness s = Σ⟨gₖ, Hₖ gₖ⟩/Σ‖gₖ‖² is
E h³/E h², which is never smaller than E h²/E h. So a strength of at most

    λ ≤ 2r/s

keeps the ratio of the two parts at r or below, and the step no longer than 1 + r plain steps: it is stable wherever
plain SGD with the rate (1 + r)ε is, whatever momentum there is and however the curvature changes along training.
"""

from __future__ import annotations

import logging
import math
import numbers
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit._arguments import finite_number, whole_number
from tacit._errors import InputError
from tacit._random import derive_seed

# Of the strength, on the first step, before any sharpness is known: a network that has just been made may be tens of
# times sharper than the one that the strength was measured on (an MLP of width 512: λs/2 = 4, and 0.3 later).
FIRST = 2.0**-10
REMEMBERED = 0.8  # of the sharpness, from one step to the next while it falls; a rise counts at once
Value = float | Callable[[int], float]
_log = logging.getLogger("tacit")


class Strength:
    """Answers "λ now", with the weight k or 1/p on steps that carry the penalty and 0 on the others."""

    def __init__(
        self, value: Value, *, every: int, probability: float | None, seed: int, largest_ratio: float | None
    ) -> None:
        check_strength(value)
        whole_number("every", every, at_least=1)
        if probability is not None and not 0 < probability <= 1:
            raise InputError(f"probability={probability}; expected 0 < probability <= 1.")
        if probability is not None and every != 1:
            raise InputError(f"every={every} and probability={probability}; expected at most one of the two.")
        self.value, self.passed = value, number_or_none(value)
        self.every, self.probability, self.seed = every, probability, seed
        self.limit = None if largest_ratio is None else RatioLimit(largest_ratio)

    def now(self, *, step: int, call: int) -> float | Tensor:
        """The float 0.0 where there is no penalty; a tensor where the limit decides, so that nothing waits for it.

        Schedules and `every` count steps; the coin of `probability` is a function of the seed and the call alone.
        """
        value = self.value
        if callable(value):
            value = value(step)
            check_strength(value)
        strength = float(value)
        if self.probability is not None:
            coin = random.Random(derive_seed(self.seed, "probe", call)).random()
            strength = strength / self.probability if coin < self.probability else 0.0
        elif self.every > 1:
            strength = strength * self.every if step % self.every == 0 else 0.0
        return strength if strength == 0 or self.limit is None else self.limit.limited(strength)

    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "strength": number_or_none(self.value),
            "passed_strength": self.passed,
            "sharpness": None if self.limit is None else self.limit.sharpness_or_none(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Seed and sharpness are the state's; a strength that differs from what the stored run was given wins."""
        self.seed = int(state.get("seed", self.seed))
        if self.limit is not None:
            self.limit.set_sharpness(state.get("sharpness"))
        stored, passed = state.get("strength"), self.passed
        if stored is not None and passed is not None and passed == state.get("passed_strength", stored):
            check_strength(stored)
            self.value = float(stored)
        elif stored != passed:
            shown = ["a function of the step" if value is None else f"{value:g}" for value in (passed, stored)]
            _log.warning(
                "GradientPenalty goes on with the strength passed now, %s; the checkpoint's was %s. "
                "Step count and random state are the checkpoint's.",
                *shown,
            )


class RatioLimit:
    """λ ← min(λ, 2r/s), s the batch sharpness of the steps before: the sharpest of the last few. On the device."""

    def __init__(self, ratio: float) -> None:
        self.ratio = finite_number("largest_ratio", ratio, positive=True)
        self.sharpness: Tensor | None = None  # not finite: not known yet
        self.known = True  # whether steps have a batch sharpness at all

    def limited(self, strength: float) -> float | Tensor:
        if not self.known:
            return strength
        s = self.sharpness
        if s is None:
            return FIRST * strength
        largest = torch.where(s > 0, 2 * self.ratio / s, math.inf).clamp(max=strength)
        return torch.where(s.isfinite(), largest, FIRST * strength)

    def see(self, sharpness: Tensor | None, over_workers: Callable[[Tensor], Tensor | None] | None) -> None:
        """Take note of a penalised step. Of several workers the sharpest counts; None where the step has no number."""
        if sharpness is None:
            if self.known:
                _log.warning(
                    "GradientPenalty: largest_ratio=%g is not in force, because the steps have no batch sharpness here "
                    "(two views, or norm_of='global_batch').", self.ratio,
                )  # fmt: skip
            self.known = False
            return
        self.known = True
        new = sharpness if over_workers is None else over_workers(sharpness)
        if new is None:
            return
        if self.sharpness is None:
            self.sharpness = new
            return
        old = self.sharpness.to(new)
        risen = torch.where(old.isfinite(), new.maximum(REMEMBERED * old + (1 - REMEMBERED) * new), new)
        self.sharpness = torch.where(new.isfinite(), risen, old)  # 0/0 at a gradient of zero says nothing

    def sharpness_or_none(self) -> float | None:
        value = math.nan if self.sharpness is None else float(self.sharpness)
        return value if math.isfinite(value) else None

    def set_sharpness(self, value: float | None) -> None:
        self.sharpness = None if value is None else torch.tensor(value, dtype=torch.float64)


def check_strength(value: Any) -> None:
    if callable(value):
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"strength={value!r}; expected a number or a function of the step.")
    if not math.isfinite(value) or value < 0:
        raise InputError(f"strength={value}; expected a finite number that is not negative.")


def number_or_none(value: Value) -> float | None:
    return None if callable(value) else float(value)
