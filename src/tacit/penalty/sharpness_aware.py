"""`SharpnessAware`: the gradient a distance ρ uphill of the parameters, in any PyTorch training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit._arguments import finite_number, whole_number
from tacit._errors import InputError
from tacit._gradient_sources import GradientSource
from tacit.layers.calls import tensors_in
from tacit.penalty.draws import drawn_rows, rows_of
from tacit.penalty.objective import Closure, DeferredCheck, Objective, Outcome
from tacit.penalty.parameters import PenalisedParameters
from tacit.penalty.pieces import Cut, count_rows
from tacit.penalty.sam_step import SharpnessAwareRecord, sam_step
from tacit.penalty.sink import GradientSum
from tacit.penalty.step import Outcomes, StepRunner
from tacit.penalty.surroundings.loss_scaling import LossScaling, scale_now
from tacit.penalty.surroundings.refusals import check_backward, check_closure, translated_errors
from tacit.penalty.surroundings.state import checked_generators
from tacit.penalty.workers.ddp import Step, Workers
from tacit.penalty.workers.wrappers import in_a_group, refuse_shards, refuse_wrapped, worker_number

Radius = float | Callable[[int], float]


class SharpnessAware:
    """Backward passes of Ĉ at ω + ε̂ in place of ω: sharpness-aware minimization (SAM; Foret et al., 2021).

        ε̂ = ρ g/‖g‖,    g = ∇Ĉ(ω) of the whole batch or of `sampled` rows of it,    `.grad` gets ∇Ĉ(ω + ε̂)

    ∇Ĉ(ω + ε̂) is always that of the whole batch. To first order in ρ this descends Ĉ + ρ‖∇Ĉ‖, where `GradientPenalty`
    has Ĉ + (λ/4)‖∇Ĉ‖²: λ = 2ρ/‖g‖ (`tacit.convert.to_strength("sam", …)`). It is not that loss: what a finite radius
    sees beyond the first order is a part of the method.

    - `radius` is ρ, a number or a function of the step. A step of radius 0 is one plain pass.
    - `sampled=n`: g comes from n rows, drawn anew at each call; a step then costs 1 + n/B plain ones in place of 2, and
      two passes over the weights. The closure takes the batch as arguments: `sam.backward(closure, inputs, targets)`.
      The draw is a function of `seed`, the worker and the number of the call.
    - `exclude`: names or patterns of parameters that do not move; they still get their gradient.
    - `generators`: generators of your own that the closure draws from.
    - `check_every`, `defer_checks`: as in `GradientPenalty`. Where checks are deferred no step waits for the device,
      but with a GradScaler, where each reads ‖g‖.

    What a step returns and leaves behind:

    - Loss, outputs and metrics are those of the last pass: the whole batch at the moved parameters. Parameters are back
      in place, bitwise, before hooks on them run, and also when the closure raises.
    - Both passes on the whole batch have the same dropout masks; buffers, such as the running statistics of batch norm,
      end as the pass at ω leaves them. A pass on drawn rows leaves no trace: buffers and random numbers are those of a
      plain step, at the moved parameters.
    - A gradient g of length 0 gives the plain gradient. One that is not finite is an error; with a GradScaler given as
      `scaler` nothing moves, buffers stay, and gradients are not finite, so that the scaler skips the step.
    - Accumulating over k calls, each call has its own direction; under DistributedDataParallel each worker has.

    Everything needs first derivatives only, so models that are compiled, checkpointed or use fused attention stay so.

    >>> model = nn.Linear(2, 1)
    >>> sam = SharpnessAware(model, radius=0.05, sampled=2)
    >>> inputs, targets = torch.ones(4, 2), torch.zeros(4, 1)
    >>> loss = sam.backward(lambda x, y: nn.functional.mse_loss(model(x), y), inputs, targets)
    >>> sam.last.rows, bool(loss == sam.last.loss)
    (2, True)
    """

    def __init__(
        self,
        model: nn.Module,
        radius: Radius,
        *,
        sampled: int | None = None,
        seed: int = 0,
        exclude: Iterable[str] = (),
        check_every: int = 100,
        generators: Iterable[torch.Generator] = (),
        defer_checks: bool | None = None,
    ) -> None:
        self.model, self.radius, self.seed = model, radius, whole_number("seed", seed)
        self.exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
        self._parameters = PenalisedParameters(model, self.exclude, on_change=self._see_parameters)
        self.sampled = None if sampled is None else whole_number("sampled", sampled, at_least=1)
        self.generators = checked_generators(generators)
        refuse_wrapped(model, norm_of="micro_batch")
        self._runner = StepRunner(
            model, attention="as_is", check_every=whole_number("check_every", check_every, at_least=0), scaler_remedy=""
        )
        self._runner.scaling = LossScaling(
            "Pass the scaler as scaler=.", harm="scales what backward returns, and twice with scaler=", owner="sam"
        )
        self._deferred = DeferredCheck(defer_checks)
        self._workers = Workers("micro_batch", check=True)
        self._source = GradientSource()
        self._last: SharpnessAwareRecord | None = None
        self._finds_direction = False
        self._see_parameters()

    def _see_parameters(self) -> None:
        refuse_shards(self.model, self.parameters, method=None, owner="SharpnessAware")
        self._source.owns(self.parameters.values())

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that move, by name."""
        return self._parameters.by_name

    @property
    def radius(self) -> Radius:
        """ρ, or the function of the step that gives it; it may be set."""
        return self._radius

    @radius.setter
    def radius(self, value: Radius) -> None:
        self._radius = value if callable(value) else finite_number("radius", value)

    @property
    def steps(self) -> int:
        """How many calls there were."""
        return self._runner.steps

    @property
    def last(self) -> SharpnessAwareRecord | None:
        """What the last step saw. Its numbers are tensors until they are asked for."""
        self._deferred.raise_if_seen()
        return self._last

    @property
    def finds_direction(self) -> bool:
        """Whether the pass that runs now is only for the direction: a closure that logs leaves that one out."""
        return self._finds_direction

    @contextmanager
    def _finding(self) -> Iterator[None]:
        self._finds_direction = True
        try:
            yield
        finally:
            self._finds_direction = False

    def backward(
        self,
        closure: Callable[..., Tensor],
        *batch: Any,
        weight: float = 1.0,
        scaler: torch.amp.GradScaler | None = None,
        step: int | None = None,
    ) -> Tensor:
        """Adds weight · ∇Ĉ(ω + ε̂) to `.grad`, as `backward` would, and returns Ĉ(ω + ε̂), detached.

        `closure` computes the mean loss of the batch, from the arguments in `batch`, without calling backward. It is
        called twice (`finds_direction` tells which pass it is), and may not write into the batch. `step` is the number
        of the optimizer step, from 0, for a schedule of the radius; without it calls count. With a GradScaler pass it
        as `scaler`: gradients come out scaled.
        """
        check_backward(weight, "sam")
        sink, loss, _ = self._differentiate(closure, batch, weight=weight, scaler=scaler, number=step, collect=False)
        if scaler is None and weight <= 1:  # a larger weight may be the scale itself
            self._runner.scaling.watch_optimizer(self.parameters.values())
        if sink is not None:
            sink.into_grad(loss)
        return loss

    def loss(
        self,
        closure: Callable[..., Tensor],
        *batch: Any,
        scaler: torch.amp.GradScaler | None = None,
        step: int | None = None,
    ) -> Tensor:
        """Ĉ(ω + ε̂) as a tensor L for whoever calls `backward` on it: s·L has the gradient s · ∇Ĉ(ω + ε̂).

        Both passes run here; L holds the finished gradient, as that of `GradientPenalty.loss` does. Under
        `torch.no_grad()` it is the plain loss at ω, and no step is counted.
        """
        if not torch.is_grad_enabled():
            check_closure(closure, "loss")
            return closure(*batch)
        sink, loss, scale = self._differentiate(closure, batch, weight=1.0, scaler=scaler, number=step, collect=True)
        assert sink is not None
        made = sink.hand_over(loss, scale)
        if scaler is None:
            self._runner.scaling.watch_backward(made)
        return made

    def _differentiate(
        self,
        closure: Callable[..., Tensor],
        batch: tuple[Any, ...],
        *,
        weight: float,
        scaler: torch.amp.GradScaler | None,
        number: int | None,
        collect: bool,
    ) -> tuple[GradientSum | Step | None, Tensor, float | Tensor]:
        """One step: where its gradients are (None: in `.grad`; never with `collect`), its loss, and their scale."""
        caller = "loss" if collect else "backward"
        check_closure(closure, caller)
        parameters = self._parameters.now()
        _refuse_half_precision(parameters)
        radius = self.radius
        if callable(radius):
            at = self.steps if number is None else whole_number("step", number, at_least=0)
            radius = finite_number("radius", radius(at))
        rows, of_direction = (None, None) if radius == 0 else self._drawn(closure, batch, caller)
        if scaler is not None and not scaler.is_enabled():
            scaler = None
        device = next(iter(parameters.values())).device
        with translated_errors(), self._with_workers() as ours:
            sink: GradientSum | Step | None = ours
            if ours is not None and not collect:
                ours.refuse_backward_inside_ddp()
            # A hook may read its parameter, or update it: it gets the gradient when the parameter is back in place.
            if sink is None and (collect or (radius and any(map(_has_hooks, parameters.values())))):
                sink = GradientSum()
            objective = Objective(
                model=self.model,
                parameters=parameters,
                closures=(),
                strength=0.0,
                exact=False,
                weight=weight,
                scale=scale_now(scaler, device),
                generators=self.generators,
                known_modules=self._parameters.modules,
                deliver=None if sink is None else sink.add,
                may_overflow=scaler is not None,
                deferred=self._deferred.now(self.steps, device, due=self._runner.due),
            )
            records: list[SharpnessAwareRecord] = []

            def run(objective: Objective) -> Outcomes:
                tensors = list(tensors_in(batch))
                records.append(sam_step(objective, radius, rows=rows, batch=tensors, finding=self._finding()))
                return Outcome(records[-1].loss, torch.zeros_like(records[-1].loss)), []

            whole = Cut.whole_only(batch)
            self._runner.run(objective, closure, whole, run, second_view=of_direction, scaler=scaler)
        (self._last,) = records
        if radius:
            self._source.put("are those of SharpnessAware, at moved parameters")
        return sink, self._last.loss, objective.scale

    def _drawn(
        self, closure: Callable[..., Tensor], batch: tuple[Any, ...], caller: str
    ) -> tuple[int | None, Closure | None]:
        """How many rows give the direction, and the loss of them where they are not the whole batch."""
        if self.sampled is None:
            return None, None
        if not batch:
            raise InputError(
                f"sampled={self.sampled} but got no batch; "
                f"expected {caller}(closure, inputs, targets) with a closure of two arguments."
            )
        rows = count_rows(batch)
        if self.sampled >= rows:
            return rows, None
        numbers = drawn_rows(rows, self.sampled, seed=self.seed, worker=worker_number(), call=self.steps)
        return self.sampled, partial(closure, *rows_of(batch, numbers))

    def _with_workers(self) -> AbstractContextManager[Step | None]:
        if not in_a_group():
            return nullcontext()
        # Each worker moves along its own direction, so batches, radii and weights need not agree: none are compared.
        return self._workers.step(self.model, 0.0, 1.0, 0)

    def __repr__(self) -> str:
        radius = "a schedule" if callable(self.radius) else f"{self.radius:g}"
        options = {"sampled": self.sampled, "exclude": list(self.exclude) or None}
        shown = "".join(f", {name}={value!r}" for name, value in options.items() if value is not None)
        count = sum(parameter.numel() for parameter in self.parameters.values())
        return (
            f"SharpnessAware({type(self.model).__name__} with {count:,} parameters that move, radius={radius}{shown}, "
            f"steps={self.steps})"
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the same draws: the number of calls and the seed."""
        return {"steps": self.steps, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._runner.steps, self.seed = int(state["steps"]), int(state["seed"])


def _refuse_half_precision(parameters: Mapping[str, nn.Parameter]) -> None:
    """A bfloat16 has 8 bits: moved by a thousandth of itself or less, it stays where it is, and so do most weights."""
    for name, parameter in parameters.items():
        if parameter.dtype in (torch.float16, torch.bfloat16):
            raise InputError(
                f"parameter {name!r} is in {parameter.dtype}, where a move of this length is mostly rounded away; "
                "expected float32 or wider. Keep parameters in float32 and put torch.autocast into the closure."
            )


def _has_hooks(parameter: nn.Parameter) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
