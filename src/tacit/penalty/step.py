"""One step: surroundings, then a method on every micro-batch, then where its gradients go.

`backward` → λ now (`strength`) → `GradientRule.take_step` → `StepRunner.run` → method → sink → record

`GradientPenalty` and `SharpnessAware` are gradient rules; `FactoredSGD` has the runner in common with them.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit._util.arguments import whole_number
from tacit._util.gradient_sources import GradientSource
from tacit.layers.kinds import LinearUse
from tacit.layers.second_derivatives import AttentionNotice, TwiceDifferentiable, check_attention
from tacit.penalty.methods.micro_batches import MicroBatches
from tacit.penalty.objective import Closure, DeferredCheck, Objective, Outcome
from tacit.penalty.parameters import PenalisedParameters
from tacit.penalty.pieces import Cut, Piece
from tacit.penalty.sink import GradientSum
from tacit.penalty.surroundings.loss_scaling import LossScaling, scale_now
from tacit.penalty.surroundings.refusals import refuse_backward, refuse_closure, refuse_known
from tacit.penalty.surroundings.state import checked_generators
from tacit.penalty.surroundings.switches import AmbientAutocast, CompiledNotice
from tacit.penalty.workers.ddp import Step, Workers
from tacit.penalty.workers.wrappers import in_a_group, refuse_wrapped

Outcomes = tuple[Outcome, list[LinearUse]]
# Where a step's gradients are (None: in `.grad`), its loss, and what the gradients are multiplied with.
Differentiated = tuple[GradientSum | Step | None, Tensor, float | Tensor]


class StepRunner:
    """Runs steps of one model, and remembers what was looked at once: scalers, layers, micro-batches in one pass."""

    def __init__(self, model: nn.Module, *, attention: str, check_every: int, scaling: LossScaling) -> None:
        self.model, self.attention = model, check_attention(attention)
        self.check_every = whole_number("check_every", check_every, at_least=0)
        self.notice, self.compiled = AttentionNotice(), CompiledNotice()
        self.micro_batches = MicroBatches()
        self.scaling = scaling
        self.layers_checked = False
        self.steps = 0

    @property
    def due(self) -> bool:
        """Whether this step looks at what others take for granted."""
        return self.check_every > 0 and self.steps % self.check_every == 0

    def twice_differentiable(self) -> AbstractContextManager[None]:
        return TwiceDifferentiable(self.attention, self.notice)

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
        if autocast is not None:
            closure = autocast.around(closure)
            second_view = None if second_view is None else autocast.around(second_view)
        look = self.scaling.looking(scaler) if not self.scaling.looked or self.due else None
        objective = objective.but(check_layers=not self.layers_checked, look=look, compiled=self.compiled)

        def one_after_another(objective: Objective, pieces: Sequence[Piece]) -> tuple[list[Outcome], list[LinearUse]]:
            outcomes: list[Outcome] = []
            uses: list[LinearUse] = []
            for piece in pieces:
                first = partial(closure, *piece.batch) if piece.batch else closure
                closures = (first,) if second_view is None else (first, second_view)
                part = objective.but(closures=closures, weight=objective.weight * piece.share)
                twice = part.exact and part.penalised
                with TwiceDifferentiable(self.attention, self.notice) if twice else nullcontext():
                    outcome, more = method(part)
                outcomes.append(outcome if piece.share == 1 else dataclasses.replace(outcome, share=piece.share))
                uses += more
            return outcomes, uses

        with (
            nullcontext() if autocast is None else autocast.switched_off(),
            nullcontext() if torch.is_grad_enabled() else torch.enable_grad(),
        ):
            if len(cut.pieces) > 1 or cut.parts:
                outcomes, uses = self.micro_batches.run(
                    objective,
                    closure,
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
        if not self.layers_checked:
            self.layers_checked = any(outcome.checked for outcome in outcomes)
        return outcomes, uses


@dataclasses.dataclass
class Taken:
    """A step that was taken: its outcomes, and where its gradients are (`sink`; None: in `.grad`), times the scale."""

    objective: Objective
    outcomes: list[Outcome]
    sink: GradientSum | Step | None
    workers: Step | None


class GradientRule(ABC):
    """What `GradientPenalty` and `SharpnessAware` share: what backward passes of a closure put into `.grad` instead.

    A rule implements `_differentiate`: it checks its own arguments and calls `_take_step`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        exclude: Iterable[str],
        generators: Iterable[torch.Generator],
        attention: str,
        check_every: int,
        defer_checks: bool | None,
        workers: Workers,
        scaling: LossScaling,
    ) -> None:
        self.model = model
        self.exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
        self._parameters = PenalisedParameters(model, self.exclude, on_change=self._see_parameters)
        self.generators = checked_generators(generators)
        refuse_wrapped(model, norm_of=workers.norm_of)
        self._runner = StepRunner(model, attention=attention, check_every=check_every, scaling=scaling)
        self._deferred, self._workers, self._source = DeferredCheck(defer_checks), workers, GradientSource()

    @abstractmethod
    def _see_parameters(self) -> None:
        """What depends on the parameters alone, when they have changed."""

    @abstractmethod
    def _differentiate(
        self, *arguments: Any, **options: Any
    ) -> tuple[GradientSum | Step | None, Tensor, float | Tensor]:
        """One step: where its gradients are (None: in `.grad`; never with `collect`), its loss, and their scale."""

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that the rule's norm runs over, by name."""
        return self._parameters.by_name

    @property
    def steps(self) -> int:
        """How many calls there were."""
        return self._runner.steps

    @steps.setter
    def steps(self, value: int) -> None:
        self._runner.steps = value

    def _into_grad(
        self,
        closure: Callable[..., Tensor],
        batch: tuple[Any, ...],
        *,
        weight: float,
        scaler: torch.amp.GradScaler | None,
        **options: Any,
    ) -> Tensor:
        """`backward`: the step's gradients, times the weight, are added to `.grad`. Returns the loss."""
        if not (math.isfinite(weight) and torch.is_grad_enabled()):
            refuse_backward(weight, self._runner.scaling.owner)
        sink, loss, _ = self._differentiate(closure, batch, weight=weight, scaler=scaler, collect=False, **options)
        if scaler is None and weight <= 1 and not self._runner.scaling.watching:  # a larger one may be the scale itself
            self._runner.scaling.watch_optimizer(self.parameters.values())
        if sink is not None:
            sink.into_grad(loss)
        return loss

    def _as_loss(
        self,
        closure: Callable[..., Tensor],
        batch: tuple[Any, ...],
        *,
        scaler: torch.amp.GradScaler | None,
        **options: Any,
    ) -> Tensor:
        """`loss`: a tensor whose `backward` hands the step's gradients out; without grad mode the plain loss."""
        if not torch.is_grad_enabled():
            if not callable(closure):
                refuse_closure(closure, "loss")
            return closure(*batch)
        sink, loss, scale = self._differentiate(closure, batch, weight=1.0, scaler=scaler, collect=True, **options)
        assert sink is not None
        made = sink.hand_over(loss, scale)
        if scaler is None:
            self._runner.scaling.watch_backward(made)
        return made

    def _take_step(
        self,
        closure: Callable[..., Tensor],
        cut: Cut,
        method: Callable[[Objective], Outcomes],
        *,
        join: Callable[[], AbstractContextManager[Step]],
        collect: bool,
        aside: bool,
        scaler: torch.amp.GradScaler | None,
        scale_as_number: bool = False,
        second_view: Closure | None = None,
        in_one_pass: bool = False,
        **facts: Any,
    ) -> Taken:
        """The step of an objective with these `facts`. `join` is entered where there are other workers.

        Its gradients are added up aside where the step says so, where they are collected, or where workers wait.
        """
        parameters = self._parameters.by_name
        device = next(iter(parameters.values())).device
        scale: float | Tensor = 1.0
        if scaler is not None and scaler.is_enabled():
            scale = scale_now(scaler, device)
            scale = float(scale) if scale_as_number else scale
        else:
            scaler = None
        try:
            with join() if in_a_group() else nullcontext() as workers:
                sink: GradientSum | Step | None = workers
                if workers is not None and not collect:
                    workers.refuse_backward_inside_ddp()
                if sink is None and (collect or aside):
                    sink = GradientSum()
                together = workers if self._workers.norm_of == "global_batch" else None
                objective = Objective(
                    model=self.model,
                    parameters=parameters,
                    closures=(),
                    scale=scale,
                    generators=self.generators,
                    modules=self._parameters.modules,
                    mean=None if together is None else together.mean,
                    deliver=None if sink is None else sink.add,
                    aside=sink if workers is None and not collect and isinstance(sink, GradientSum) else None,
                    largest=None if together is None else together.largest,
                    may_overflow=scaler is not None,
                    deferred=self._deferred.now(self._runner.steps, device, check_every=self._runner.check_every),
                    **facts,
                )
                outcomes, _ = self._runner.run(
                    objective, closure, cut, method, second_view=second_view, scaler=scaler, in_one_pass=in_one_pass
                )
        except RuntimeError as error:
            refuse_known(error)
            raise
        return Taken(objective, outcomes, sink, workers)
