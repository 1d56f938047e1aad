"""One step: surroundings, then a method on every micro-batch. `GradientPenalty` and `FactoredSGD` share it.

`backward` → λ now (`strength`) → `StepRunner.run` → surroundings → method → sink → record
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from tacit.layers.kinds import LinearUse
from tacit.layers.second_derivatives import AttentionNotice, check_attention, twice_differentiable
from tacit.penalty.methods.micro_batches import MicroBatches
from tacit.penalty.objective import Closure, Objective, Outcome
from tacit.penalty.pieces import Cut, Piece
from tacit.penalty.surroundings.autocast import AmbientAutocast
from tacit.penalty.surroundings.compiled import CompiledNotice
from tacit.penalty.surroundings.loss_scaling import LossScaling

Outcomes = tuple[Outcome, list[LinearUse]]


class StepRunner:
    """Runs steps of one model, and remembers what was looked at once: scalers, layers, micro-batches in one pass."""

    def __init__(self, model: nn.Module, *, attention: str, check_every: int, scaler_remedy: str) -> None:
        self.model, self.attention, self.check_every = model, check_attention(attention), check_every
        self.notice, self.compiled = AttentionNotice(), CompiledNotice()
        self.micro_batches = MicroBatches()
        self.scaling = LossScaling(scaler_remedy)
        self.layers_checked = False
        self.steps = 0

    @property
    def due(self) -> bool:
        """Whether this step looks at what others take for granted."""
        return self.check_every > 0 and self.steps % self.check_every == 0

    def twice_differentiable(self) -> AbstractContextManager[None]:
        return twice_differentiable(self.attention, self.notice)

    def run(
        self,
        objective: Objective,
        closure: Callable[..., Tensor],
        cut: Cut,
        method: Callable[[Objective], Outcomes],
        *,
        second_view: Closure | None = None,
        scaler: torch.amp.GradScaler | None = None,
        in_one_pass: bool = False,
        keep_factors: bool = False,
    ) -> tuple[list[Outcome], list[LinearUse]]:
        """The outcomes of all penalised pieces, and the layers that kept their factors.

        `objective` has the weight of the whole batch, and no closures yet. With `in_one_pass` pieces go together where
        that is possible.
        """
        autocast = AmbientAutocast.now(next(iter(objective.parameters.values())).device)
        due = self.due
        look = self.scaling.looking(scaler) if due or not self.scaling.looked else None
        objective = dataclasses.replace(
            objective, check_layers=not self.layers_checked, look=look, compiled=self.compiled
        )

        def one_after_another(objective: Objective, pieces: Sequence[Piece]) -> tuple[list[Outcome], list[LinearUse]]:
            outcomes: list[Outcome] = []
            uses: list[LinearUse] = []
            for piece in pieces:
                closures = [partial(closure, *piece.batch) if piece.batch else closure]
                if second_view is not None:
                    closures.append(second_view)
                around = tuple(autocast.around(each) for each in closures)
                part = dataclasses.replace(objective, closures=around, weight=objective.weight * piece.share)
                with self.twice_differentiable() if part.exact and part.penalised else nullcontext():
                    outcome, more = method(part)
                outcomes.append(outcome if piece.share == 1 else dataclasses.replace(outcome, share=piece.share))
                uses += more
            return outcomes, uses

        with autocast.switched_off(), torch.enable_grad():
            if len(cut.pieces) > 1 or cut.drawn:
                outcomes, uses = self.micro_batches.run(
                    objective,
                    lambda *part: autocast.around(partial(closure, *part))(),
                    cut,
                    loop=one_after_another,
                    step=self.steps,
                    check_every=self.check_every,
                    one_pass=self.twice_differentiable if in_one_pass else None,
                    keep_factors=keep_factors,
                )
            else:
                outcomes, uses = one_after_another(objective, cut.pieces)
        self.steps += 1
        self.layers_checked = self.layers_checked or any(outcome.checked for outcome in outcomes)
        return outcomes, uses
