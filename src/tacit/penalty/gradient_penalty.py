"""`GradientPenalty`: the explicit regularizer as one changed line in any PyTorch training loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tacit._util.arguments import whole_number
from tacit._util.errors import InputError
from tacit.penalty.methods import gram
from tacit.penalty.methods.approximation import Approximation
from tacit.penalty.methods.double_backward import plain_backward
from tacit.penalty.objective import Objective, Outcome
from tacit.penalty.pieces import cut_batch, weight_of_part
from tacit.penalty.record import LastStep, PenaltyRecord, mean_over_rows
from tacit.penalty.registry import METHODS, Method, choose
from tacit.penalty.relative import AppliedSum
from tacit.penalty.step import Differentiated, GradientRule, Outcomes
from tacit.penalty.strength import Strength, Value, show
from tacit.penalty.surroundings.buffers import buffers_kept
from tacit.penalty.surroundings.loss_scaling import LossScaling
from tacit.penalty.surroundings.refusals import TranslatedErrors, refuse_closure
from tacit.penalty.workers.ddp import Workers
from tacit.penalty.workers.replica import lengths
from tacit.penalty.workers.shards import is_sharded, plain_step
from tacit.penalty.workers.wrappers import refuse_shards

_log = logging.getLogger("tacit")


class GradientPenalty(GradientRule):
    """Backward passes of Ĉ + (λ/4)‖∇Ĉ‖² in place of Ĉ: the modified loss of SGD, minibatch by minibatch.

    C_mod(ω) = C(ω) + λ C_reg(ω) = (1/m) Σₖ ( Ĉₖ + (λ/4)‖∇Ĉₖ‖² )                               (section 2.3)

    `strength` is λ in the paper's units: λ = ε is what SGD with learning rate ε does by itself, and SGD with rate ε
    on C_mod follows C + (λ+ε) C_reg. It is a number, a function of the step, or `tacit.Relative(r)`, which measures the
    λ whose part of a step is r times the gradient; it never follows the learning rate by itself. Schedules and `every`
    count calls of `backward`, or the optimizer steps that it is told: where k calls accumulate one update,
    `penalty.backward(closure, weight=1 / k, step=call // k)`. The coin of `probability` is one of each call. The
    optimizer's weight decay is not part of the norm; to have it inside, add it to the closure's loss.

    - `method`: `gram`, `double_backward` (exact), `finite_difference`; `auto` is the fastest exact one for the model,
      and the attribute `method` is its name. Two views and the global batch are `double_backward`'s, not `gram`'s.
    - `micro_batch_size`: the mean penalty over micro-batches of the batch given to `backward`, weighted by their rows
      where the last one has fewer. `gram` calls the closure once, under `torch.vmap`, for all of them where that is
      possible, and otherwise (batch norm in training mode, `.item()`, checkpointing) once for each, which it logs.
      Dropout masks are then drawn in another order. A loss that is no mean over rows is noticed, every `check_every`
      steps; its own gradient is then that of the whole batch, at the price of one plain pass.
    - `sampled=q`: the plain gradient of the whole batch, and the penalty of q micro-batches only, drawn anew at each
      call from a random permutation of the rows: the same in the mean over draws, at a price of 1.1 to 1.3 plain steps
      where q · `micro_batch_size` is a sixteenth of the batch. A permutation's remainder is not drawn. Without a
      `micro_batch_size` it is q of the k calls that one step accumulates, whole: `backward(…, part=(j, k))`. Draws are
      functions of `seed`, the worker's rank and the number of the call.
    - `norm_of`: under DistributedDataParallel, `micro_batch` (each worker's own batch is one: the mean of the workers'
      penalties) or `global_batch` (the penalty of the gradient averaged over workers). On one device both are the same.
    - `check_ranks`: whether workers compare batch sizes and strengths at every step, and stop together when one fails.
    - `every=k` / `probability=p`: the penalty on some steps only, with weight k or 1/p; unbiased.
    - `exclude`: names or patterns of parameters left out of the norm; they still receive its gradient.
    - `central`, `check_every`: for approximate methods; the error is estimated every `check_every` steps (0: never).
    - `when_uncertain`: what happens when that estimate exceeds a tenth of the penalty's part. `exact`: an exact method
      takes the step and those up to the next check, or an error is raised where none can. `raise`: an error.
      `warn`: the approximation is applied with a warning.
    - `attention`: `math` lets exact methods run scaled_dot_product_attention by its MATH backend, the one with a second
      derivative, and says so once; `as_is` leaves the choice to torch, whose fused kernels the exact methods refuse.
    - `generators`: generators of your own that the closure draws from, for methods that call it twice.
    - `largest_ratio`: r holds each step's λ (with its weight k or 1/p) to 2r/s, s the largest batch sharpness of the
      last few penalised steps: the penalty's part of a step stays at about r times the plain part at most, the step at
      1 + r plain ones. `last.strength` is what was applied. The first step, before s is known, has λ/1024.
      Needs `last.batch_sharpness`. None: λ as it is.
    - `defer_checks`: a loss that is not finite is an error of its own step, or, deferred, of the next check
      (`check_every`) or look at `last`, so that no step waits for the device. None: deferred off the CPU.

    >>> model = nn.Linear(2, 1)
    >>> penalty = GradientPenalty(model, strength=2**-6)
    >>> inputs, targets = torch.ones(4, 2), torch.zeros(4, 1)
    >>> loss = penalty.backward(lambda: nn.functional.mse_loss(model(inputs), targets))
    >>> bool(penalty.last.penalty == 2**-6 / 4 * penalty.last.gradient_squared_norm)
    True
    """

    def __init__(
        self,
        model: nn.Module,
        strength: Value,
        *,
        method: str = "auto",
        micro_batch_size: int | None = None,
        sampled: int | None = None,
        every: int = 1,
        probability: float | None = None,
        seed: int = 0,
        exclude: Iterable[str] = (),
        central: bool = False,
        check_every: int = 100,
        generators: Iterable[torch.Generator] = (),
        norm_of: str = "micro_batch",
        check_ranks: bool = True,
        attention: str = "math",
        when_uncertain: str = "exact",
        largest_ratio: float | None = None,
        defer_checks: bool | None = None,
    ) -> None:
        super().__init__(
            model, exclude=exclude, generators=generators, attention=attention, check_every=check_every,
            defer_checks=defer_checks, workers=Workers(norm_of, check=check_ranks),
            scaling=LossScaling("Pass the scaler to the penalty as scaler=."),
        )  # fmt: skip
        for name, value in (("micro_batch_size", micro_batch_size), ("sampled", sampled)):
            if value is not None:
                whole_number(name, value, at_least=1)
        self.micro_batch_size, self.sampled = micro_batch_size, sampled
        self.norm_of, self.when_uncertain, self.central = norm_of, when_uncertain, central
        self._automatic = method == "auto"
        # One drawn micro-batch is a small batch by itself: there are no others to have in one pass with it.
        size = None if sampled == 1 else micro_batch_size
        self.method = choose(method, model, micro_batch_size=size, norm_of=norm_of).name
        self._refuse_combinations()
        self._strength = Strength(
            strength, every=every, probability=probability, seed=seed, largest_ratio=largest_ratio, norm_of=norm_of
        )
        self._approximation = Approximation(
            model, when_uncertain=when_uncertain, check_every=check_every, generators=self.generators
        )
        self._last = LastStep()
        self._see_parameters()
        if self._automatic:
            _log.info("GradientPenalty: method auto is %s", self.method)

    def _refuse_combinations(self) -> None:
        if self.norm_of not in ("micro_batch", "global_batch"):
            raise InputError(f"norm_of={self.norm_of!r} is unknown; use 'micro_batch' or 'global_batch'.")
        if self.norm_of == "micro_batch":
            return
        if self.method == "gram":
            raise InputError(
                "norm_of='global_batch' with method='gram'; expected a method that forms the gradient that workers "
                "average. Use method='double_backward'."
            )
        for name in ("micro_batch_size", "sampled"):
            value = getattr(self, name)
            if value is not None:
                raise InputError(f"{name}={value} with norm_of='global_batch'; expected at most one of them.")

    def _see_parameters(self) -> None:
        refuse_shards(self.model, self.parameters, method=self.method)
        self._source.owns(self.parameters.values())

    @property
    def strength(self) -> Value:
        """λ, or the function of the step or the `Relative` that gives it; it may be set."""
        return self._strength.value

    @strength.setter
    def strength(self, value: Value) -> None:
        self._strength.set(value)

    @property
    def every(self) -> int:
        return self._strength.every

    @property
    def probability(self) -> float | None:
        return self._strength.probability

    @property
    def last(self) -> PenaltyRecord | None:
        """What the last step saw. Its numbers are tensors until they are asked for."""
        self._deferred.raise_if_seen()
        return self._last.record()

    def backward(
        self,
        closure: Callable[..., Tensor],
        *batch: Any,
        second_view: Callable[[], Tensor] | None = None,
        weight: float = 1.0,
        scaler: torch.amp.GradScaler | None = None,
        step: int | None = None,
        part: tuple[int, int] | None = None,
    ) -> Tensor:
        """Adds weight · ∇(Ĉ + (λ/4)‖∇Ĉ‖²) to `.grad`, as `backward` would, and returns Ĉ, detached.

        `closure` computes the mean loss of the minibatch, without calling backward. Given a `batch` it is called with
        it, or with slices of it along the first axis when there is a `micro_batch_size` (`penalty.pieces`: tensors, or
        dicts, lists, tuples, dataclasses of them). The objective that `.grad` belongs to is the returned loss plus
        `last.penalty`, should a line search ask.

        `second_view` computes the loss of the same minibatch under an independent augmentation. The objective is then
        ½(Ĉᵃ + Ĉᵇ) + (λ/4)⟨∇Ĉᵃ, ∇Ĉᵇ⟩, an unbiased estimate of the penalty on the augmentation-averaged gradient, which
        is what SGD itself regularizes; the squared norm of one augmented gradient has its variance on top.

        Accumulating over k calls: return the unscaled mean loss each time and pass `weight=1/k`; dividing the loss
        itself would divide the penalty by k². `step` is the number of the optimizer step, from 0, for schedules and
        `every`; without it they count calls. `part=(j, k)` says that this is call j, from 0, of those k: with `sampled`
        and no `micro_batch_size` the penalty is that of q of them. With a GradScaler pass it as `scaler`: gradients
        come out scaled as after `scaler.scale(loss).backward()`, while the penalty is that of the unscaled loss.
        """
        return self._into_grad(
            closure, batch, weight=weight, scaler=scaler, second_view=second_view, number=step, part=part
        )

    def add(
        self,
        closure: Callable[..., Tensor],
        *batch: Any,
        weight: float = 1.0,
        scaler: torch.amp.GradScaler | None = None,
        step: int | None = None,
    ) -> Tensor:
        """Adds the penalty's part alone, weight · (λ/2) ∇²Ĉ ∇Ĉ, to `.grad`, after a backward pass of your own.

        For loops that are not to be changed, and compiled models: `loss.backward()` of the whole batch stays, and
        `penalty.add(closure, inputs[:b], targets[:b])` follows it, with a micro-batch whose rows were drawn at random.
        Where k calls of `loss.backward()` accumulate, one `add` with weight 1 is the penalty of one micro-batch; q of
        them have weight 1/q each. Hooks on parameters see this part by itself. Buffers, such as the running statistics
        of batch norm, stay as the whole batch left them. Returns the micro-batch's loss, detached. With a GradScaler
        pass it, before `scaler.step`; under DistributedDataParallel call the wrapped model, and the part is averaged.
        """
        if self.sampled is not None:
            raise InputError(
                f"penalty.add with sampled={self.sampled}; expected a penalty without `sampled`, since the rows that "
                "are given are the sample."
            )
        sink, loss, _ = self._differentiate(
            closure, batch, weight=weight, scaler=scaler, number=step, collect=True, alone=True
        )
        assert sink is not None
        sink.into_grad(loss)
        return loss

    def loss(
        self,
        closure: Callable[..., Tensor],
        *batch: Any,
        second_view: Callable[[], Tensor] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        step: int | None = None,
        part: tuple[int, int] | None = None,
    ) -> Tensor:
        """Ĉ as a tensor L for whoever calls `backward` on it: s·L has the gradient s · ∇(Ĉ + (λ/4)‖∇Ĉ‖²).

        All passes run here; L holds the finished gradient until `backward` hands it to the parameters (and to every
        other leaf that the loss depends on). So a trainer may divide L by the number of accumulated batches, scale it
        with a GradScaler or weight it, and the penalty stays that of the undivided loss. Arguments are those of
        `backward`; there is no `weight`, multiply L instead. With float16 pass the `scaler` all the same: it keeps the
        passes in here from underflowing, and L itself stays unscaled.

        Under `torch.no_grad()` it is the plain loss of the whole batch, and no step is counted. `backward` through L
        works once (again with `retain_graph=True`), and not with `create_graph=True`.

        >>> model, x = nn.Linear(2, 1), torch.ones(4, 2)
        >>> penalty = GradientPenalty(model, strength=2**-6)
        >>> (penalty.loss(lambda: model(x).square().mean()) / 2).backward()
        """
        loss = self._as_loss(closure, batch, scaler=scaler, second_view=second_view, number=step, part=part)
        if second_view is None or torch.is_grad_enabled():
            return loss
        return torch.stack([loss, second_view()]).mean()

    def _differentiate(
        self,
        closure: Callable[..., Tensor],
        batch: tuple[Any, ...],
        *,
        weight: float,
        scaler: torch.amp.GradScaler | None,
        collect: bool,
        second_view: Callable[[], Tensor] | None = None,
        number: int | None = None,
        part: tuple[int, int] | None = None,
        alone: bool = False,
    ) -> Differentiated:
        """With `alone` it is the penalty's part of the gradient only."""
        caller = "add" if alone else "loss" if collect else "backward"
        if not callable(closure):
            refuse_closure(closure, caller)
        call = self._runner.steps
        parameters = self._parameters.now()
        strength = self._strength.now(
            step=call if number is None else whole_number("step", number, at_least=0), call=call,
            views=1 if second_view is None else 2, alone=alone,
        )  # fmt: skip
        of_all_workers = strength  # they agree on it, and each draws for itself which of its calls carry it
        if part is not None or (self.sampled is not None and self.micro_batch_size is None):
            count = self.sampled if self.micro_batch_size is None else None
            share = weight_of_part(part, count, seed=self._strength.seed, call=call, step=number)
            strength = strength * share if share else 0.0  # a tensor times 0 would be a penalty
        penalised = isinstance(strength, Tensor) or strength != 0
        approximate = penalised and not METHODS[self.method].exact
        if second_view is not None and batch:
            raise InputError("second_view was given with batch tensors; expected closures without arguments here.")
        cut = cut_batch(
            batch, self.micro_batch_size, self.sampled, penalised=penalised, caller=caller, seed=self._strength.seed,
            call=call,
        )  # fmt: skip
        # Several micro-batches are added up before they reach `.grad`, so that hooks on parameters fire once.
        several = len(cut.pieces) > 1 or cut.parts > 0
        applied = None
        if penalised and weight and self._strength.relative is not None:
            applied = AppliedSum(parameters.values(), weight, several=several)
        with buffers_kept(self._parameters.modules) if alone else nullcontext():
            taken = self._take_step(
                closure, cut, self._run, collect=collect, aside=several, scaler=scaler,
                join=lambda: self._workers.step(
                    self.model, float(of_all_workers), weight, next(lengths(batch), None)
                ),
                scale_as_number=self.method == "finite_difference",
                in_one_pass=self.method == "gram",
                second_view=second_view,
                strength=strength,
                exact=not approximate,
                weight=weight,
                loss_weight=0.0 if alone else 1.0,
                central=self.central,
                check_error=approximate and self._approximation.begin(call),
                tolerance=self._approximation.tolerance if approximate else None,
                applied=applied,
            )  # fmt: skip
        if penalised:
            of_strength = f" of strength {strength:g}" if isinstance(strength, float) else ""
            self._source.put(f"are those of a loss with a penalty{of_strength}")
        outcomes = taken.outcomes
        self._last.see(
            outcomes, step=call, strength=strength, weight=weight, method=self.method, parts=cut.parts
        )  # fmt: skip
        if penalised and weight and self._strength.looks_back:
            self._strength.see(outcomes, strength, applied, taken.workers)
        loss = outcomes[0].loss if len(outcomes) == 1 else mean_over_rows(outcomes, [each.loss for each in outcomes])
        return taken.sink, loss, taken.objective.scale

    def _run(self, objective: Objective) -> Outcomes:
        """One micro-batch, by this penalty's method."""
        method = METHODS[self.method]
        if not objective.penalised:
            return (plain_step(objective) if is_sharded(self.model) else plain_backward(objective)), []
        if self._automatic and self.method == "gram" and len(objective.closures) > 1:
            return replace(METHODS["double_backward"].backward(objective), method="double_backward"), []
        if method.exact:
            return method.backward(objective), []
        return self._approximation.run(method, objective, run_exact=self._run_exact), []

    def _run_exact(self, method: Method, objective: Objective) -> Outcome:
        with self._runner.twice_differentiable():
            return method.backward(objective)

    def plan(self, closure: Callable[[], Tensor]) -> dict[str, str]:
        """How `gram` computes each parameter's part of the norm: `gram`, `factors` or `gradient`. Calls the closure."""
        objective = Objective(self.model, self.parameters, (closure,), strength=1.0, generators=self.generators)
        exact = self._runner.twice_differentiable()
        with TranslatedErrors(), self._workers.alone(self.model), torch.enable_grad(), exact:
            return gram.plan(objective)

    def __repr__(self) -> str:
        strength = "a schedule" if callable(self.strength) else show(self.strength)
        options = {
            "micro_batch_size": self.micro_batch_size,
            "sampled": self.sampled,
            "every": None if self._strength.every == 1 else self._strength.every,
            "probability": self._strength.probability,
            "exclude": list(self.exclude) or None,
            "norm_of": None if self.norm_of == "micro_batch" else self.norm_of,
        }
        shown = "".join(f", {name}={value!r}" for name, value in options.items() if value is not None)
        count = sum(parameter.numel() for parameter in self.parameters.values())
        return (
            f"GradientPenalty({type(self.model).__name__} with {count:,} penalised parameters, strength={strength}, "
            f"method={self.method!r}{shown}, steps={self.steps})"
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the step count, the seed of the coins, λ, the sharpness that limits it, the norms
        that a relative strength averages, and whether the loss is a mean over rows.

        λ is None where it is no number, the sharpness where there is no `largest_ratio`, the norms where no `Relative`.
        `passed_strength` is the λ that this object was made with, `strength` the present one.
        """
        row_mean = self._runner.micro_batches.row_mean.state_dict()
        return {"steps": self.steps, **self._strength.state_dict(), "row_mean": row_mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Step count, seed, sharpness and norms are the state's. A strength that this object was made with wins.

        Where it is the number that the stored run was made with, the state's strength is taken, which that run may
        have set since; where it is another number, or a function of the step, it stays, and a line is logged.
        """
        self.steps = int(state["steps"])
        self._strength.load_state_dict(state)
        if "row_mean" in state:
            self._runner.micro_batches.row_mean.load_state_dict(state["row_mean"])
