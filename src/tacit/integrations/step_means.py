"""Means of what a rule saw over several micro-batches, each with the factor that the trainer gives its loss.

Sums stay on the device: numbers are read when the trainer logs, not at every step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.penalty import PenaltyRecord, SharpnessAwareRecord

NAMES = ("penalty", "gradient_squared_norm", "batch_sharpness", "gradient_share", "direction_norm")


class StepMeans:
    """Sums since the last `clear`: of each quantity over penalised micro-batches, and of the factors of all of them."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.micro_batches = self.penalised = self.optimizer_steps = 0
        self.factors: Tensor | float = 0.0
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, record: PenaltyRecord | SharpnessAwareRecord, factor: Tensor | None = None) -> None:
        """One micro-batch; without a factor all count equally. Numbers that are not finite are left out."""
        factor = torch.ones_like(record.loss) if factor is None else factor
        self.micro_batches += 1
        self.factors = self.factors + factor
        found = _quantities(record)
        self.penalised += bool(found)
        for name, value in found.items():
            used = torch.where(value.isfinite(), factor, 0.0)
            total = torch.where(value.isfinite(), factor * value, 0.0)
            known = self._sums.get(name)
            self._sums[name] = (total, used) if known is None else (known[0] + total, known[1] + used)

    def means(self) -> dict[str, Tensor]:
        """The mean of each quantity over penalised micro-batches, as tensors of the device."""
        return {name: total / used for name, (total, used) in self._sums.items()}

    @property
    def penalised_share(self) -> float:
        return self.penalised / max(self.micro_batches, 1)

    def packed(self, device: torch.device) -> Tensor:
        """All sums as one row, which processes can add up; `from_packed` reads it."""
        zero = torch.zeros((), device=device)
        pairs = [self._sums.get(name, (zero, zero)) for name in NAMES]
        numbers = [*(value for pair in pairs for value in pair), self.factors, self.micro_batches, self.penalised]
        return torch.stack([torch.as_tensor(number, dtype=torch.float32, device=device) for number in numbers])

    @classmethod
    def from_packed(cls, row: Tensor, *, optimizer_steps: int) -> StepMeans:
        found, numbers = cls(), row.double().cpu()
        for place, name in enumerate(NAMES):
            if numbers[2 * place + 1] != 0:
                found._sums[name] = (numbers[2 * place], numbers[2 * place + 1])
        factors, micro_batches, penalised = numbers[2 * len(NAMES) :].tolist()
        found.factors, found.micro_batches, found.penalised = factors, round(micro_batches), round(penalised)
        found.optimizer_steps = optimizer_steps
        return found


def _quantities(record: PenaltyRecord | SharpnessAwareRecord) -> dict[str, Tensor]:
    """What one micro-batch has of them: nothing without a penalty, or without a move."""
    if isinstance(record, SharpnessAwareRecord):
        return {} if record.direction_norm is None else {"direction_norm": record.direction_norm}
    if record.gradient_squared_norm is None:
        return {}
    length = record.gradient_squared_norm.sqrt()
    part = record.penalty_gradient_norm
    found = {
        "penalty": record.penalty,
        "gradient_squared_norm": record.gradient_squared_norm,
        "batch_sharpness": record.batch_sharpness,
        # ‖(λ/2) ∇²Ĉ ∇Ĉ‖ / ‖∇Ĉ‖: how large the penalty's part of the step is beside the plain part, which is not that
        # of micro-batches that were drawn
        "gradient_share": None if part is None or record.drawn_of else part / length,
    }
    return {name: value for name, value in found.items() if value is not None}
