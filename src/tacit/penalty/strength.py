"""λ of each step: a number, a schedule or `Relative`, on all steps or on some, or limited by the sharpness before.

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
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tacit._util.arguments import finite_number, whole_number
from tacit._util.errors import InputError
from tacit._util.random_generators import derive_seed
from tacit.penalty.objective import Outcome
from tacit.penalty.record import record_of
from tacit.penalty.relative import AppliedSum, Relative, RelativeStrength
from tacit.penalty.workers.ddp import Step

# Of the strength, on the first step, before any sharpness is known: a network that has just been made may be tens of
# times sharper than the one that the strength was measured on (an MLP of width 512: λs/2 = 4, and 0.3 later).
FIRST = 2.0**-10
REMEMBERED = 0.8  # of the sharpness, from one step to the next while it falls; a rise counts at once
EARLY = 20  # steps: what happens before is a beginning, and no jump
JUMP = 8.0  # times the strength of the last penalised step; a cubic ramp from 0 doubles its step to 8 times at most
GROWING = 1.25  # the first two strengths of a ramp have at least this quotient: √2 that of a root, 2 a linear one
Value = float | Callable[[int], float] | Relative
_log = logging.getLogger("tacit")


class Strength:
    """Answers "λ now", with the weight k or 1/p on steps that carry the penalty and 0 on the others."""

    def __init__(
        self,
        value: Value,
        *,
        every: int,
        probability: float | None,
        seed: int,
        largest_ratio: float | None,
        norm_of: str = "micro_batch",
    ) -> None:
        check_strength(value)
        whole_number("every", every, at_least=1)
        if probability is not None and not 0 < probability <= 1:
            raise InputError(f"probability={probability}; expected 0 < probability <= 1.")
        if probability is not None and every != 1:
            raise InputError(f"every={every} and probability={probability}; expected at most one of the two.")
        self.every, self.probability, self.seed, self.norm_of = every, probability, seed, norm_of
        self.limit = None if largest_ratio is None else RatioLimit(largest_ratio)
        self.relative: RelativeStrength | None = None
        self.jump = LateJump()
        self.set(value)
        self.passed = number_or_none(value)

    def set(self, value: Value) -> None:
        """λ from now on. Another `Relative` goes on with the averages of the one before."""
        check_strength(value)
        if not isinstance(value, Relative):
            self.relative = None
        elif self.limit is not None:
            raise InputError(
                f"largest_ratio={self.limit.ratio:g} with strength={value}; expected one of the two, because both hold "
                "the penalty's part beside the gradient. Leave largest_ratio out."
            )
        elif self.norm_of == "global_batch":
            raise InputError(
                f"norm_of='global_batch' with strength={value}, which needs the norm of a worker's own penalty part; "
                "expected norm_of='micro_batch', or a number or a function of the step as strength."
            )
        else:
            self.relative = RelativeStrength(value) if self.relative is None else self.relative.with_facts(value)
        self.value = value

    def now(self, *, step: int, call: int, views: int = 1, alone: bool = False) -> float | Tensor:
        """The float 0.0 where there is no penalty; a tensor where norms decide, so that nothing waits for them.

        Schedules and `every` count steps; the coin of `probability` is a function of the seed and the call alone.
        """
        value = self.value
        strength: float | Tensor
        if isinstance(value, Relative):
            assert self.relative is not None
            if views > 1:
                raise InputError(
                    f"second_view with strength={value}, which needs the norm of the penalty's part of one view; "
                    "expected a number or a function of the step as strength."
                )
            if alone:
                raise InputError(
                    f"penalty.add with strength={value}, which needs the gradient of the whole batch; expected a "
                    "number or a function of the step, or penalty.backward of a penalty with sampled=q."
                )
            strength = self.relative.now(step)
        elif callable(value):
            strength = _number(value(step))
            if self.limit is None:
                self.jump.see(step, strength)
        else:
            strength = float(value)
        if self.probability is not None:
            coin = random.Random(derive_seed(self.seed, "probe", call)).random()
            strength = strength / self.probability if coin < self.probability else 0.0
        elif self.every > 1:
            strength = strength * self.every if step % self.every == 0 else 0.0
        if self.limit is None or isinstance(strength, Tensor) or strength == 0:
            return strength
        return self.limit.limited(strength)

    @property
    def looks_back(self) -> bool:
        """Whether what a step was decides the next λ."""
        return self.limit is not None or self.relative is not None

    def see(
        self, outcomes: Sequence[Outcome], strength: float | Tensor, applied: AppliedSum | None, workers: Step | None
    ) -> None:
        """Take note of a penalised step: of its sharpness, or of its norms."""
        if self.limit is not None:
            sharpness = record_of(outcomes, strength=strength, method="").batch_sharpness
            self.limit.see(sharpness, None if workers is None else workers.largest_after)
        if self.relative is not None and applied is not None:
            self.see_squared_norms(*_squared_norms(outcomes, applied), strength, workers)

    def see_squared_norms(
        self, gradient: Tensor, penalty_part: Tensor, strength: float | Tensor, workers: Step | None
    ) -> None:
        """‖∇Ĉ‖² and ‖(λ/2) H∇Ĉ‖² of the step that has just applied λ = `strength`."""
        assert self.relative is not None
        squares = torch.stack([gradient.detach(), penalty_part.detach().to(gradient)])
        norms = squares if workers is None else workers.mean_after(squares)
        if norms is not None:
            self.relative.see(norms[0].sqrt(), norms[1].sqrt() / strength)

    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "strength": number_or_none(self.value),
            "passed_strength": self.passed,
            "sharpness": None if self.limit is None else self.limit.sharpness_or_none(),
            "relative": None if self.relative is None else self.relative.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Seed, sharpness and norms are the state's; a strength that differs from the stored run's wins."""
        self.seed = int(state.get("seed", self.seed))
        if self.limit is not None:
            self.limit.set_sharpness(state.get("sharpness"))
        if self.relative is not None:
            self.relative.load_state_dict(state.get("relative"))
        stored, passed = state.get("strength"), self.passed
        if stored is not None and passed is not None and passed == state.get("passed_strength", stored):
            self.set(float(stored))
        elif stored != passed:
            relative = "a relative one" if state.get("relative") else "a function of the step"
            shown = [show(self.value), relative if stored is None else f"{stored:g}"]
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


class LateJump:
    """Sees the strengths that a schedule gives, one for each step, and warns once of a fixed one that jumps up late.

    A network that has trained without a penalty, or with a small one, has sharpened to the edge of plain steps. A
    strength that is fine from the first step on can throw it out there: in a pilot, switched on at half of the run, it
    lost 3 of 4.

    A jump, after the first 20 steps that this object saw, is
    - a strength of more than 8 times the one before, steps of strength 0 left out, or
    - the first strength above 0 at all, unless the next step has at least 1.25 times that: so begins a ramp.
    """

    def __init__(self) -> None:
        self.steps, self.last_step = 0, -1
        self.before = 0.0  # the last strength above 0
        self.first: tuple[int, float] | None = None  # step and value of a late first strength, until the next step
        self.warned = False

    def see(self, step: int, strength: float) -> None:
        if self.warned or step == self.last_step:  # calls that accumulate one update have one step
            return
        late = self.steps >= EARLY
        self.steps, self.last_step = self.steps + 1, step
        if self.first is not None:
            (at, first), self.first = self.first, None
            if strength < GROWING * first:
                self._warn(0.0, first, at)
                return
        if strength == 0:
            return
        if late and self.before == 0:
            self.first = step, strength
        elif late and strength > JUMP * self.before:
            self._warn(self.before, strength, step)
        self.before = strength

    def _warn(self, old: float, new: float, step: int) -> None:
        self.warned = True
        _log.warning(
            "GradientPenalty: the strength jumps from %g to %g at step %d, which may throw a trained network out of "
            "where it is; let it rise over some hundred steps, penalise the first part of the run with "
            "tacit.schedules.early, or use tacit.Relative or largest_ratio=1.", old, new, step,
        )  # fmt: skip


def check_strength(value: Any) -> None:
    if not (callable(value) or isinstance(value, Relative)):
        _number(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"strength={value!r}; expected a number, a function of the step or tacit.Relative.")
    if not math.isfinite(value) or value < 0:
        raise InputError(f"strength={value}; expected a finite number that is not negative.")
    return float(value)


def number_or_none(value: Value) -> float | None:
    return None if callable(value) or isinstance(value, Relative) else float(value)


def show(value: Value) -> str:
    number = number_or_none(value)
    if number is not None:
        return f"{number:g}"
    return repr(value) if isinstance(value, Relative) else "a function of the step"


def _squared_norms(outcomes: Sequence[Outcome], applied: AppliedSum) -> tuple[Tensor, Tensor]:
    """‖∇Ĉ‖² and ‖(λ/2) H∇Ĉ‖² of what a step applied; not a number where it has no penalty's part (an overflow)."""
    nothing = torch.full_like(outcomes[0].gradient_squared_norm, math.nan)
    if any(outcome.part is None for outcome in outcomes):
        return nothing, nothing
    if applied.several:
        norms = applied.squared_norms()
    else:
        part = outcomes[0].part.squared_norm if outcomes[0].part is not None else None
        norms = None if part is None else (outcomes[0].gradient_squared_norm, part)
    if norms is None:
        raise InputError(
            "a relative strength needs the norm of the penalty's part, which is not known where a gradient is sparse; "
            "expected dense gradients. Use sparse=False, or a number as strength."
        )
    return norms
