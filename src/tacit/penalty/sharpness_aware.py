"""`SharpnessAware`: the gradient a distance ρ uphill of the parameters, in any PyTorch training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit._util.arguments import finite_number, whole_number
from tacit._util.errors import InputError
from tacit.layers.calls import tensors_in
from tacit.penalty.objective import Closure, Objective, Outcome
from tacit.penalty.pieces import Cut, count_rows, drawn_rows, rows_of
from tacit.penalty.sam_step import SharpnessAwareRecord, sam_step
from tacit.penalty.sink import HALF
from tacit.penalty.step import Differentiated, GradientRule, Outcomes
from tacit.penalty.surroundings.loss_scaling import LossScaling
from tacit.penalty.surroundings.refusals import refuse_closure
from tacit.penalty.workers.ddp import Workers
from tacit.penalty.workers.wrappers import refuse_shards, worker_number

Radius = float | Callable[[int], float]


class SharpnessAware(GradientRule):
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
        super().__init__(
            model, exclude=exclude, generators=generators, attention="as_is", check_every=check_every,
            defer_checks=defer_checks, workers=Workers("micro_batch", check=True),
            scaling=LossScaling(
                "Pass the scaler as scaler=.", harm="scales what backward returns, and twice with scaler=", owner="sam"
            ),
        )  # fmt: skip
        self.radius, self.seed = radius, whole_number("seed", seed)
        self.sampled = None if sampled is None else whole_number("sampled", sampled, at_least=1)
        self._last: SharpnessAwareRecord | None = None
        self._finds_direction = False
        self._see_parameters()

    def _see_parameters(self) -> None:
        refuse_shards(self.model, self.parameters, method=None, owner="SharpnessAware")
        self._source.owns(self.parameters.values())

    @property
    def radius(self) -> Radius:
        """ρ, or the function of the step that gives it; it may be set."""
        return self._radius

    @radius.setter
    def radius(self, value: Radius) -> None:
        self._radius = value if callable(value) else finite_number("radius", value)

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
        return self._into_grad(closure, batch, weight=weight, scaler=scaler, number=step)

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
        return self._as_loss(closure, batch, scaler=scaler, number=step)

    def _differentiate(
        self,
        closure: Callable[..., Tensor],
        batch: tuple[Any, ...],
        *,
        weight: float,
        scaler: torch.amp.GradScaler | None,
        collect: bool,
        number: int | None = None,
    ) -> Differentiated:
        caller = "loss" if collect else "backward"
        if not callable(closure):
            refuse_closure(closure, caller)
        parameters = self._parameters.now()
        _refuse_half_precision(parameters)
        radius = self._radius
        if callable(radius):
            at = self.steps if number is None else whole_number("step", number, at_least=0)
            radius = finite_number("radius", radius(at))
        rows, of_direction = (None, None) if radius == 0 else self._drawn(closure, batch, caller)
        record: SharpnessAwareRecord | None = None

        def run(objective: Objective) -> Outcomes:
            nonlocal record
            tensors = list(tensors_in(batch))
            record = sam_step(objective, radius, rows=rows, batch=tensors, finding=self._finding())
            return Outcome(record.loss, torch.zeros_like(record.loss)), []

        # A hook may read its parameter, or update it: it gets the gradient when the parameter is back in place.
        hooked = [p for p in parameters.values() if p._backward_hooks or p._post_accumulate_grad_hooks]
        taken = self._take_step(
            closure, Cut.whole_only(batch), run, collect=collect, aside=radius != 0 and bool(hooked), scaler=scaler,
            # Each worker moves along its own direction: batches, radii and weights need not agree, none are compared.
            join=lambda: self._workers.step(self.model, 0.0, 1.0, 0),
            second_view=of_direction, strength=0.0, exact=False, weight=weight,
        )  # fmt: skip
        self._last = record
        if radius:
            self._source.put("are those of SharpnessAware, at moved parameters")
        return taken.sink, taken.outcomes[0].loss, taken.objective.scale

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
        self.steps, self.seed = int(state["steps"]), int(state["seed"])


def _refuse_half_precision(parameters: Mapping[str, nn.Parameter]) -> None:
    """A bfloat16 has 8 bits: moved by a thousandth of itself or less, it stays where it is, and so do most weights."""
    for name, parameter in parameters.items():
        if parameter.dtype in HALF:
            raise InputError(
                f"parameter {name!r} is in {parameter.dtype}, where a move of this length is mostly rounded away; "
                "expected float32 or wider. Keep parameters in float32 and put torch.autocast into the closure."
            )
