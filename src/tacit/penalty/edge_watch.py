"""A warning when the curvature that penalised steps meet is more than twice the edge of their stability."""

from __future__ import annotations

import logging
from typing import Any

from torch.optim import Optimizer

from tacit._errors import InputError
from tacit.edges import largest_stable_curvature, largest_stable_strength
from tacit.penalty.record import PenaltyRecord

FIRST_LOOKS = 5  # penalised steps that are all looked at: far beyond the edge a run is lost after five
LOOK_EVERY = 10  # penalised steps from then on: reading a number stops a GPU until it is there
FEWEST_LOOKS = 3  # before a warning: one minibatch may be unusual
REMEMBERED = 0.8  # of the mean, from one look to the next: about five looks
# Minibatches see a sharper loss than the whole training set, and plain SGD itself settles where batch sharpness is at
# its edge or above: at B = 16 on MNIST-1D up to 1.8 times. Penalised runs that trained had at most 1.3 times the edge
# (B = 16 and 256), those that were lost 4 to 5 times at their first steps.
PASSED = 2.0
_log = logging.getLogger("tacit")


class EdgeWatch:
    """Compares batch sharpness with the edge of the penalised step at the optimizer's present rate; warns once.

    h* = (√(1 + 2lλ/ε) − 1)/λ, l = 2 for plain SGD: `tacit.edges.largest_stable_curvature`, λ the strength of the step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise InputError(f"optimizer is a {type(optimizer).__name__}; expected a torch optimizer.")
        self.optimizer = optimizer
        if not _is_sgd(optimizer.param_groups[0]):
            _log.warning(
                "GradientPenalty: the edge is not watched, because it is known in closed form for torch.optim.SGD and "
                "not for %s.", type(optimizer).__name__,
            )  # fmt: skip
        self.warned = False
        self._steps = 0
        self._looks = 0
        self._ratio: float | None = None

    def look(self, record: PenaltyRecord) -> None:
        """Take note of one step; optimizers with another rule than SGD's have no edge in closed form."""
        group = self.optimizer.param_groups[0]
        if self.warned or record.strength == 0 or record.curvature is None or not _is_sgd(group):
            return
        self._steps += 1
        if self._steps > FIRST_LOOKS and self._steps % LOOK_EVERY:
            return
        sharpness = float(record.batch_sharpness)  # type: ignore[arg-type]
        rate, options = float(group["lr"]), self._options(group)
        if not (sharpness > 0 and rate > 0):
            return
        ratio = sharpness / largest_stable_curvature(rate, strength=record.strength, **options)
        self._looks += 1
        self._ratio = ratio if self._ratio is None else REMEMBERED * self._ratio + (1 - REMEMBERED) * ratio
        if self._looks >= FEWEST_LOOKS and self._ratio > PASSED:
            self.warned = True
            allowed = largest_stable_strength(rate, sharpness, **options)
            _log.warning(
                "GradientPenalty: batch sharpness is %.3g, %.1f times the edge of a penalised step with rate %.3g and "
                "strength %.3g; training may collapse. On a quadratic of this curvature strengths below %.2g hold.",
                sharpness, self._ratio, rate, record.strength, allowed,
            )  # fmt: skip

    @staticmethod
    def _options(group: dict[str, Any]) -> dict[str, Any]:
        return {"momentum": float(group["momentum"]), "nesterov": bool(group["nesterov"])}


def _is_sgd(group: dict[str, Any]) -> bool:
    """By its settings, so that wrappers of SGD count; Muon has Nesterov's momentum too, but no dampening."""
    return "nesterov" in group and "dampening" in group
