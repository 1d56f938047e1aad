"""One step of sharpness-aware minimization (SAM): a direction at ω, and the whole batch's gradient at ω + ρ g/‖g‖.

    1. g = ∇Ĉ(ω) of the last closure      hooks and reducers see nothing of it
    2. parameters hold ω + ρ g/‖g‖        in memory of their own, so that ω itself is not touched
    3. ∇Ĉ there of the first closure      delivered as the objective says
    4. parameters hold ω

Both passes start with the same random numbers and buffers. Where both see the whole batch (one closure), so that masks
are the same, the step ends with those of pass 1: batch norm has counted the batch at ω. Where pass 1 sees a part of it
(two closures), the step ends with those of pass 3, as if pass 1 had not been.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tacit._util.errors import InputError
from tacit.penalty.objective import Objective, gradients_of
from tacit.penalty.surroundings.state import RandomState, placed


@dataclass(frozen=True)
class SharpnessAwareRecord:
    """What one step of `SharpnessAware` saw.

    - `loss` is Ĉ of the whole batch at the moved parameters.
    - `direction_norm` is ‖g‖, None on steps of radius 0. Where it is 0, or not finite, nothing moved.
    - `rows` is how many rows gave the direction; None without `sampled`, and on steps of radius 0.
    """

    loss: Tensor
    radius: float
    direction_norm: Tensor | None = None
    rows: int | None = None

    def to_row(self) -> dict[str, float]:
        """The numbers that this step has, for a logger: no entry is None."""
        values: dict[str, Any] = {
            "loss": self.loss,
            "radius": self.radius,
            "direction_norm": self.direction_norm,
            "rows": self.rows,
        }
        return {name: float(value) for name, value in values.items() if value is not None}


def sam_step(
    objective: Objective,
    radius: float,
    *,
    rows: int | None,
    batch: Sequence[Tensor],
    finding: AbstractContextManager[None],
) -> SharpnessAwareRecord:
    """The step of an objective whose first closure is of the whole batch, and whose last one gives the direction.

    `finding` is entered while the last closure runs for that.
    """
    if radius == 0:
        return SharpnessAwareRecord(_deliver(objective, objective.factor), radius)
    start, end = RandomState.now(objective.model, objective.generators), None
    versions = [_version(tensor) for tensor in batch]
    try:
        with finding:
            reached, direction, norm = _direction(objective)
        if len(objective.closures) == 1:
            if [_version(tensor) for tensor in batch] != versions:
                raise InputError(
                    "the closure wrote into a tensor of the batch, which it sees twice; expected the same batch both "
                    "times. Use operations that are not in place on it."
                )
            end = RandomState.now(objective.model, objective.generators)
    finally:
        start.restore()
    finite, points = _points(
        reached, direction, norm, radius, wait=objective.deferred is None or objective.may_overflow
    )
    if not finite and not objective.may_overflow:
        raise InputError(
            f"the gradient of the direction has the length {float(norm)}; expected a finite number. A learning rate or "
            "radius that is too large gives inf; where float16 overflows, a GradScaler given as scaler= skips the step."
        )
    del direction  # as large as the model
    try:
        with placed(reached, points):
            # The gradient of all rows at ω may be finite, but the scaler has to see that there was no direction.
            loss = _deliver(objective, objective.factor if finite else math.nan * objective.factor)
    finally:
        if not finite:  # a step that is skipped writes no buffer
            now = RandomState.now(objective.model, objective.generators, buffers=False)
            end = replace(now, buffers=start.buffers)
        if end is not None:
            end.restore()
    return SharpnessAwareRecord(loss, radius, norm / objective.scale, rows)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _deliver(objective: Objective, factor: float | Tensor) -> Tensor:
    loss = objective.loss(objective.closures[0])
    objective.finish(loss, factor=factor)
    return loss.detach()


def _direction(objective: Objective) -> tuple[list[nn.Parameter], list[Tensor], Tensor]:
    """The parameters that the last closure's loss reaches, scale · g for them, and scale · ‖g‖."""
    parameters = list(objective.parameters.values())
    loss = objective.loss(objective.closures[-1])
    pairs = zip(parameters, gradients_of(objective.scale * loss if objective.scaled else loss, parameters), strict=True)
    reached = {parameter: gradient for parameter, gradient in pairs if gradient is not None}
    if not reached:
        raise InputError(
            "the loss depends on none of the parameters that move; expected a closure that runs the model given to "
            "SharpnessAware."
        )
    gradients = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in reached.values()]
    return list(reached), gradients, torch.stack(torch._foreach_norm(gradients)).norm()


def _points(
    parameters: Sequence[nn.Parameter], direction: Sequence[Tensor], norm: Tensor, radius: float, *, wait: bool
) -> tuple[bool, Sequence[Tensor]]:
    """Whether g is finite, and ω + ρ g/‖g‖; ω where g is 0 or not finite. A factor of g, such as a scale, cancels.

    With `wait` the length is read from the device. Otherwise a g that is not finite moves the parameters to nan, and
    the loss there is not finite either, which `DeferredCheck` tells.
    """
    originals = [parameter.data for parameter in parameters]
    smallest = torch.finfo(norm.dtype).tiny  # a shorter g has no digits, and ρ/‖g‖ may overflow
    if not wait:
        factor = torch.where(norm > smallest, radius / norm, 0.0)
        return True, torch._foreach_add(originals, torch._foreach_mul(list(direction), factor))
    length = float(norm)
    if not smallest < length < math.inf:
        return math.isfinite(length), originals
    return True, torch._foreach_add(originals, list(direction), alpha=radius / length)
