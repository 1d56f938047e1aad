"""`PenaltyRecord`: what one penalised step saw."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tacit._util.tree import total
from tacit.penalty.objective import LARGEST_ERROR, Outcome


@dataclass(frozen=True)
class PenaltyRecord:
    """What one step saw; the penalty is (λ/4)‖∇Ĉ‖² with λ the strength applied.

    - `method` is the one that computed it: an exact one where an approximate method did not trust itself.
    - `gradient_squared_norm`, ‖∇Ĉ‖², is None on steps without a penalty.
    - `error` is the estimated relative error of the penalty's part of the gradient, for approximate methods, from the
      last step that checked it.
    - `curvature` is ⟨∇Ĉ, ∇²Ĉ ∇Ĉ⟩, over the penalised parameters. It is None, and `batch_sharpness` with it, on steps
      of weight 0 or without a penalty, with two views, `norm_of="global_batch"` or sparse gradients.
    - `penalty_gradient_norm` is ‖(λ/2) ∇²Ĉ ∇Ĉ‖, None there and where `gram` does not form a weight's gradient: with
      micro-batches in one pass, and in the Gram form with several uses or many rows.
    - `price` is how many plain passes the step took, timed: for sampled penalties on the CPU, whose plain pass is one
      of its own.
    - `sampling_error` is the standard error of `penalty` as an estimate of the mean over all micro-batches of the
      batch, by the scatter of those drawn. None where one was drawn, or several went in one pass.

    With micro-batches, all or drawn, these numbers are means over them, `penalty_gradient_norm` the root of the mean
    square. So `batch_sharpness` is Σₖ⟨gₖ, Hₖ gₖ⟩ / Σₖ‖gₖ‖², which weights each micro-batch with its ‖gₖ‖².
    """

    loss: Tensor
    applied: float | Tensor  # λ, on the device where a limit decides it
    method: str
    gradient_squared_norm: Tensor | None = None
    error: float | None = None
    curvature: Tensor | None = None
    penalty_gradient_norm: Tensor | None = None
    price: float | None = None
    standard_error: Tensor | None = None  # of `gradient_squared_norm`, from the micro-batches that were drawn
    drawn_of: int = 0  # micro-batches; 0 where all of them, or the whole batch, have the penalty

    @property
    def strength(self) -> float:
        """λ of this step, with the weight k or 1/p, after the limit."""
        return float(self.applied)

    @property
    def penalty(self) -> Tensor:
        if self.gradient_squared_norm is None:
            return torch.zeros_like(self.loss)
        return self.applied / 4 * self.gradient_squared_norm

    @property
    def sampling_error(self) -> Tensor | None:
        return None if self.standard_error is None else self.applied / 4 * self.standard_error

    @property
    def batch_sharpness(self) -> Tensor | None:
        """⟨g, H g⟩ / ‖g‖² with the minibatch's own g = ∇Ĉ and H = ∇²Ĉ: the curvature that the step itself meets.

        Plain SGD with learning rate ε is reported to settle where its mean is 2/ε (Andreyev and Beneventano,
        arXiv 2412.20553).
        """
        if self.curvature is None or self.gradient_squared_norm is None:
            return None
        return self.curvature / self.gradient_squared_norm

    def to_row(self) -> dict[str, float | str]:
        """The numbers that this step has, for a logger: no entry is None."""
        row: dict[str, float | str | None] = {
            "loss": float(self.loss),
            "strength": self.strength,
            "penalty": float(self.penalty),
            "method": self.method,
            "gradient_squared_norm": _number(self.gradient_squared_norm),
            "batch_sharpness": _number(self.batch_sharpness),
            "penalty_gradient_norm": _number(self.penalty_gradient_norm),
            "error": self.error,
            "sampling_error": _number(self.sampling_error),
            "price": self.price,
        }
        return {name: value for name, value in row.items() if value is not None}


class LastStep:
    """The record of the last step, made when somebody asks for it: most steps nobody does."""

    def __init__(self) -> None:
        self.error: float | None = None  # of the last step that estimated it
        self._record: PenaltyRecord | None = None
        self._facts: dict[str, Any] | None = None

    def see(
        self, outcomes: list[Outcome], *, step: int, strength: float | Tensor, weight: float, method: str, parts: int
    ) -> None:
        """Take note of a step; warns where an approximate method's error is large."""
        if weight == 0:  # the penalty's part of a gradient of weight 0 is not known
            outcomes = [replace(outcome, part=None) for outcome in outcomes]
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        if errors:
            self.error = max(errors)
            if self.error > LARGEST_ERROR:
                warnings.warn(
                    f"method={method!r}: the penalty's gradient has an estimated relative error of {self.error:.0%} at "
                    f"step {step}; an exact method has none.",
                    stacklevel=5,
                )
        # Of several micro-batches an exact method may have taken some: the record is that of the others.
        others = [outcome for outcome in outcomes if outcome.method is None]
        instead = None if others else outcomes[0].method
        error = self.error if instead is None else None
        facts = {"strength": strength, "method": instead or method, "error": error, "parts": parts}
        self._record, self._facts = None, {"outcomes": outcomes, **facts}

    def record(self) -> PenaltyRecord | None:
        if self._record is None and self._facts is not None:
            self._record = record_of(**self._facts)
        return self._record


def record_of(
    outcomes: Sequence[Outcome],
    *,
    strength: float | Tensor,
    method: str,
    error: float | None = None,
    parts: int = 0,
) -> PenaltyRecord:
    """The record of one step from the outcomes of its micro-batches, drawn of so many `parts`, or not drawn (0)."""
    loss = mean_over_rows(outcomes, [outcome.loss for outcome in outcomes])
    if not isinstance(strength, Tensor) and strength == 0:
        return PenaltyRecord(loss, strength, method)
    norm = mean_over_rows(outcomes, [outcome.gradient_squared_norm for outcome in outcomes])
    curvatures = [None if outcome.part is None else outcome.part.curvature for outcome in outcomes]
    squares = [None if outcome.part is None else outcome.part.squared_norm for outcome in outcomes]
    length = _mean_where_known(outcomes, squares)
    return PenaltyRecord(
        loss, strength, method, norm, error, _mean_where_known(outcomes, curvatures),
        None if length is None else length.sqrt(), outcomes[0].price, _standard_error(outcomes, parts), parts,
    )  # fmt: skip


def _standard_error(outcomes: Sequence[Outcome], parts: int) -> Tensor | None:
    """Of the mean of q numbers drawn of m without repetition: √(S²/q · (1 − q/m))."""
    if not parts or len(outcomes) == 1:
        return None
    drawn = torch.stack([outcome.gradient_squared_norm for outcome in outcomes])
    return (drawn.var() / len(outcomes) * (1 - len(outcomes) / parts)).sqrt()


def _mean_where_known(outcomes: Sequence[Outcome], values: Sequence[Tensor | None]) -> Tensor | None:
    known = [value for value in values if value is not None]
    return mean_over_rows(outcomes, known) if len(known) == len(values) else None


def mean_over_rows(outcomes: Sequence[Outcome], values: Sequence[Tensor]) -> Tensor:
    """The mean of one value for each outcome, weighted by the rows of each."""
    if len(values) == 1:
        return values[0]
    return total(outcome.share * value for outcome, value in zip(outcomes, values, strict=True))


def _number(value: Tensor | None) -> float | None:
    return None if value is None else float(value)
