"""`GradientPenalty`: the explicit regularizer as one changed line in any PyTorch training loop."""

from __future__ import annotations

import dataclasses
import logging
import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit._arguments import whole_number
from tacit._errors import InputError
from tacit._gradient_sources import GradientSource
from tacit._random import generator as named_generator
from tacit.layers.kinds import LinearSite
from tacit.layers.second_derivatives import AttentionNotice, check_attention, twice_differentiable
from tacit.penalty.methods import gram
from tacit.penalty.methods.approximation import LARGEST_ERROR, Approximation
from tacit.penalty.methods.micro_batches import MicroBatches, split
from tacit.penalty.objective import Closure, Outcome, Task
from tacit.penalty.parameters import penalised_parameters
from tacit.penalty.pieces import Piece
from tacit.penalty.ratio_limit import RatioLimit
from tacit.penalty.record import PenaltyRecord, record_of
from tacit.penalty.registry import Method, choose, fastest_exact
from tacit.penalty.surroundings.autocast import AmbientAutocast
from tacit.penalty.surroundings.refusals import translated_errors
from tacit.penalty.workers.ddp import Step, Workers
from tacit.penalty.workers.replica import lengths
from tacit.penalty.workers.shards import is_sharded, plain_step
from tacit.penalty.workers.wrappers import refuse_shards, refuse_wrapped

Strength = float | Callable[[int], float]
_log = logging.getLogger("tacit")


class GradientPenalty:
    """Backward passes of Ĉ + (λ/4)‖∇Ĉ‖² in place of Ĉ: the modified loss of SGD, minibatch by minibatch.

    C_mod(ω) = C(ω) + λ C_reg(ω) = (1/m) Σₖ ( Ĉₖ + (λ/4)‖∇Ĉₖ‖² )                               (section 2.3)

    `strength` is λ in the paper's units: λ = ε is what SGD with learning rate ε does by itself, and SGD with rate ε
    on C_mod follows C + (λ+ε) C_reg. It is a number or a function of the step, and never follows the learning rate by
    itself. Schedules and `every` count calls of `backward`, or the optimizer steps that it is told: where k calls
    accumulate one update, `penalty.backward(closure, weight=1 / k, step=call // k)`. The coin of `probability` is one
    of each call. The optimizer's weight decay is not part of the norm; to have it inside, add it to the closure's loss.

    - `method`: `gram`, `double_backward` (exact), `finite_difference`; `auto` is the fastest exact one for the model,
      and the attribute `method` is its name.
    - `micro_batch_size`: the mean penalty over micro-batches of the batch given to `backward`, weighted by their rows
      where the last one has fewer. `gram` calls the closure
      once, under `torch.vmap`, for all of them where that is possible, and otherwise (batch norm in training mode,
      `.item()`, checkpointing) once for each, which it logs. Dropout masks are then drawn in another order.
    - `of`: under DistributedDataParallel, `micro_batch` (each worker's own batch is one: the mean of the workers'
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
      Needs `last.batch_sharpness`, and reads one number per step, which a GPU has to wait for. None: λ as it is.

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
        strength: Strength,
        *,
        method: str = "auto",
        micro_batch_size: int | None = None,
        every: int = 1,
        probability: float | None = None,
        seed: int = 0,
        exclude: Iterable[str] = (),
        central: bool = False,
        check_every: int = 100,
        generators: Iterable[torch.Generator] = (),
        of: str = "micro_batch",
        check_ranks: bool = True,
        attention: str = "math",
        when_uncertain: str = "exact",
        largest_ratio: float | None = None,
    ) -> None:
        self.model = model
        self.exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
        self.parameters = penalised_parameters(model, self.exclude)
        if micro_batch_size is not None:
            whole_number("micro_batch_size", micro_batch_size, at_least=1)
        self.method = (
            fastest_exact(model, micro_batch_size=micro_batch_size) if method == "auto" else choose(method)
        ).name
        refuse_shards(model, self.parameters, method=self.method)
        _check_strength(strength)
        whole_number("every", every, at_least=1)
        whole_number("check_every", check_every, at_least=0)
        if probability is not None and not 0 < probability <= 1:
            raise InputError(f"probability={probability}; expected 0 < probability <= 1.")
        if probability is not None and every != 1:
            raise InputError(f"every={every} and probability={probability}; expected at most one of the two.")
        if of not in ("micro_batch", "global_batch"):
            raise InputError(f"of={of!r} is unknown; use 'micro_batch' or 'global_batch'.")
        if of == "global_batch" and micro_batch_size is not None:
            raise InputError(
                f"micro_batch_size={micro_batch_size} with of='global_batch'; expected at most one of them."
            )
        refuse_wrapped(model, of=of)
        self.strength, self.micro_batch_size, self.of = strength, micro_batch_size, of
        self.every, self.probability, self.when_uncertain = every, probability, when_uncertain
        self.attention, self._attention_notice = check_attention(attention), AttentionNotice()
        self.central, self.check_every, self.generators = central, check_every, tuple(generators)
        for item in self.generators:
            if not isinstance(item, torch.Generator):
                raise InputError(f"generators holds a {type(item).__name__}; expected torch.Generator objects.")
        self._passed_strength = _number_or_none(strength)
        self.steps = 0
        self.last: PenaltyRecord | None = None
        self._coin = named_generator(seed, "probe")
        self._error: float | None = None
        self._approximation = Approximation(
            model, when_uncertain=when_uncertain, check_every=check_every, generators=self.generators
        )
        self._sites_checked = False
        self._micro_batches_in_one_pass = MicroBatches()
        self._workers = Workers(of, check=check_ranks)
        self._ratio_limit = None if largest_ratio is None else RatioLimit(largest_ratio)
        self._source = GradientSource()
        if method == "auto":
            _log.info("GradientPenalty: method auto is %s", self.method)

    def backward(
        self,
        closure: Callable[..., Tensor],
        *batch: Any,
        second_view: Callable[[], Tensor] | None = None,
        weight: float = 1.0,
        scaler: torch.amp.GradScaler | None = None,
        step: int | None = None,
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
        `every`; without it they count calls. With a GradScaler pass it as `scaler`: gradients come out scaled as after
        `scaler.scale(loss).backward()`, while the penalty is that of the unscaled loss.
        """
        if not math.isfinite(weight):
            raise InputError(f"weight={weight}; expected a finite number.")
        found, loss, _ = self._differentiate(
            closure, batch, second_view, weight=weight, scaler=scaler, number=step, collect=False
        )
        if found.found_gradients:
            found.hand_over(loss, scale=1.0).backward()
        return loss

    def loss(
        self,
        closure: Callable[..., Tensor],
        *batch: Any,
        second_view: Callable[[], Tensor] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        step: int | None = None,
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
        if not torch.is_grad_enabled():
            _check_closure(closure, "loss")
            losses = [closure(*batch), *([] if second_view is None else [second_view()])]
            return losses[0] if second_view is None else torch.stack(losses).mean()
        found, loss, scale = self._differentiate(
            closure, batch, second_view, weight=1.0, scaler=scaler, number=step, collect=True
        )
        return found.hand_over(loss, scale=scale)

    def _differentiate(
        self,
        closure: Callable[..., Tensor],
        batch: tuple[Any, ...],
        second_view: Callable[[], Tensor] | None,
        *,
        weight: float,
        scaler: torch.amp.GradScaler | None,
        number: int | None,
        collect: bool,
    ) -> tuple[Step, Tensor, float]:
        """One step: gradients are added to `.grad` at once, or kept in the returned step (always, with `collect`)."""
        _check_closure(closure, "loss" if collect else "backward")
        # Layers may have been frozen or replaced since the last step.
        self.parameters = penalised_parameters(self.model, self.exclude)
        refuse_shards(self.model, self.parameters, method=self.method)
        method = choose(self.method)
        strength = self._strength_now(self.steps if number is None else whole_number("step", number, at_least=0))
        check = strength > 0 and not method.exact and self._approximation.begin(self.steps)
        scale = _scale(scaler, next(iter(self.parameters.values())).device)
        pieces = split(batch, self.micro_batch_size, "backward")
        if not strength:  # nothing is asked of single micro-batches
            pieces = [Piece(batch)]
        if second_view is not None and batch:
            raise InputError("second_view was given with batch tensors; expected closures without arguments here.")
        size = next(lengths(batch), None)
        autocast = AmbientAutocast.now(self.model)
        with (
            translated_errors(),
            autocast.switched_off(),
            self._workers.step(self.model, strength, weight, size) as step,
            torch.enable_grad(),
        ):
            if not collect:
                step.refuse_backward_inside_ddp()
            # Several micro-batches are added up before they reach `.grad`, so that hooks on parameters fire once.
            deliver = step.deliver if collect or step.distributed or len(pieces) > 1 else None
            task = Task(
                model=self.model,
                parameters=self.parameters,
                closures=(),
                strength=strength,
                exact=method.exact or strength == 0,
                weight=weight,
                scale=scale,
                generators=self.generators,
                mean=step.mean if self.of == "global_batch" else None,
                deliver=deliver,
                central=self.central,
                check_error=check,
                tolerance=self._approximation.tolerance,
                largest=step.largest if self.of == "global_batch" else None,
                check_sites=not self._sites_checked,
            )

            def one_after_another(task: Task, pieces: Sequence[Piece]) -> tuple[list[Outcome], list[LinearSite]]:
                found = []
                for piece in pieces:
                    closures: list[Closure] = [partial(closure, *piece.batch)]
                    if second_view is not None:
                        closures.append(second_view)
                    around = tuple(autocast.around(each) for each in closures)
                    part = dataclasses.replace(task, closures=around, weight=task.weight * piece.share)
                    outcome = self._run(part)
                    found.append(outcome if piece.share == 1 else dataclasses.replace(outcome, share=piece.share))
                return found, []

            if len(pieces) > 1 and strength and self.method == "gram":
                with twice_differentiable(self.attention, self._attention_notice):
                    outcomes, _ = self._micro_batches_in_one_pass.run(
                        task,
                        lambda *part: autocast.around(partial(closure, *part))(),
                        pieces,
                        loop=one_after_another,
                        compare=bool(self.check_every) and self.steps % self.check_every == 0,
                    )
            else:
                outcomes, _ = one_after_another(task, pieces)
        self.steps += 1
        if strength:
            self._source.holds(self.parameters.values(), f"are those of a loss with a penalty of strength {strength:g}")
        self._sites_checked |= any(outcome.checked for outcome in outcomes)
        loss = self._record(outcomes, strength, weight)
        if self._ratio_limit is not None and self.last is not None and strength and weight:
            self._ratio_limit.see(self.last.batch_sharpness, step.largest_after)
        return step, loss, scale

    def _run(self, task: Task) -> Outcome:
        method = choose(self.method)
        if task.strength == 0:
            return plain_step(task) if is_sharded(self.model) else _plain(task)
        if method.exact:
            return self._run_exact(method, task)
        return self._approximation.run(method, task, run_exact=self._run_exact)

    def _run_exact(self, method: Method, task: Task) -> Outcome:
        with twice_differentiable(self.attention, self._attention_notice):
            return method.backward(task)

    def plan(self, closure: Callable[[], Tensor]) -> dict[str, str]:
        """How `gram` computes each parameter's part of the norm: `gram`, `factors` or `gradient`. Calls the closure."""
        task = Task(self.model, self.parameters, (closure,), strength=1.0, generators=self.generators)
        exact = twice_differentiable(self.attention, self._attention_notice)
        with translated_errors(), self._workers.alone(self.model), torch.enable_grad(), exact:
            return gram.plan(task)

    def __repr__(self) -> str:
        strength = "a schedule" if callable(self.strength) else f"{self.strength:g}"
        options = {
            "micro_batch_size": self.micro_batch_size,
            "every": None if self.every == 1 else self.every,
            "probability": self.probability,
            "exclude": list(self.exclude) or None,
            "of": None if self.of == "micro_batch" else self.of,
        }
        shown = "".join(f", {name}={value!r}" for name, value in options.items() if value is not None)
        count = sum(parameter.numel() for parameter in self.parameters.values())
        return (
            f"GradientPenalty({type(self.model).__name__} with {count:,} penalised parameters, strength={strength}, "
            f"method={self.method!r}{shown}, steps={self.steps})"
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the step count, the coin of `probability`, λ and the sharpness that limits it.

        λ is None where it is a function of the step, the sharpness where there is no `largest_ratio`.
        `passed_strength` is the λ that this object was made with, `strength` the present one.
        """
        return {
            "steps": self.steps,
            "coin": self._coin.get_state(),
            "strength": _number_or_none(self.strength),
            "passed_strength": self._passed_strength,
            "sharpness": None if self._ratio_limit is None else self._ratio_limit.sharpness,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The step count, the coin and the sharpness are the state's. A strength that this object was made with wins.

        Where it is the number that the stored run was made with, the state's strength is taken, which that run may
        have set since; where it is another number, or a function of the step, it stays, and a line is logged.
        """
        self.steps = int(state["steps"])
        self._coin.set_state(state["coin"])
        if self._ratio_limit is not None:
            self._ratio_limit.sharpness = state.get("sharpness")
        if "strength" not in state:  # stored by version 0.1
            return
        stored, passed = state["strength"], self._passed_strength
        if stored is not None and passed is not None and passed == state.get("passed_strength", stored):
            _check_strength(stored)
            self.strength = float(stored)
        elif stored != passed:
            shown = ["a function of the step" if value is None else f"{value:g}" for value in (passed, stored)]
            _log.warning(
                "GradientPenalty goes on with the strength passed now, %s; the checkpoint's was %s. "
                "Step count and random state are the checkpoint's.",
                *shown,
            )

    def _strength_now(self, step: int) -> float:
        """λ of this step, with the weight k or 1/p on steps that carry the penalty and 0 on the others; then held."""
        strength = self._weighted_strength(step)
        return strength if strength == 0 or self._ratio_limit is None else self._ratio_limit.held(strength)

    def _weighted_strength(self, step: int) -> float:
        strength = self.strength(step) if callable(self.strength) else self.strength
        _check_strength(strength)
        strength = float(strength)
        if self.probability is not None:
            heads = torch.rand((), generator=self._coin).item() < self.probability
            return strength / self.probability if heads else 0.0
        return strength * self.every if step % self.every == 0 else 0.0

    def _record(self, outcomes: list[Outcome], strength: float, weight: float) -> Tensor:
        if strength == 0:
            self.last = record_of(outcomes, strength=strength, method=self.method)
            return self.last.loss
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        if errors:
            self._error = max(errors)
            if self._error > LARGEST_ERROR:
                warnings.warn(
                    f"method={self.method!r}: the penalty's gradient has an estimated relative error of "
                    f"{self._error:.0%} at step {self.steps - 1}; an exact method has none.",
                    stacklevel=4,
                )
        if weight == 0:  # a gradient of weight 0 does not tell its parts
            outcomes = [dataclasses.replace(outcome, part=None) for outcome in outcomes]
        # Of several micro-batches an exact method may have taken some: the record is that of the others.
        instead = None if any(outcome.method is None for outcome in outcomes) else outcomes[0].method
        error = self._error if instead is None else None
        self.last = record_of(outcomes, strength=strength, method=instead or self.method, error=error)
        return self.last.loss


def _plain(task: Task) -> Outcome:
    """Strength 0: bitwise what `loss.backward()` does."""
    losses = [task.loss(closure) for closure in task.closures]
    loss = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
    factor = task.weight * task.scale
    task.finish(loss if factor == 1.0 else factor * loss)
    return Outcome(loss.detach(), torch.zeros_like(loss.detach()))


def _check_closure(closure: Any, caller: str) -> None:
    if not callable(closure):
        raise InputError(
            f"{caller} got a {type(closure).__name__}; expected a function that computes the loss, "
            "such as lambda: loss_fn(model(inputs), targets)."
        )


def _scale(scaler: torch.amp.GradScaler | None, device: torch.device) -> float:
    """What the scaler multiplies losses with; `scale`, unlike `get_scale`, also makes it ready for its `step`."""
    if scaler is None or not scaler.is_enabled():
        return 1.0
    return float(scaler.scale(torch.ones((), dtype=torch.float32, device=device)))


def _number_or_none(strength: Strength) -> float | None:
    return None if callable(strength) else float(strength)


def _check_strength(strength: Any) -> None:
    if callable(strength):
        return
    if isinstance(strength, bool) or not isinstance(strength, numbers.Real):
        raise InputError(f"strength={strength!r}; expected a number or a function of the step.")
    if not math.isfinite(strength) or strength < 0:
        raise InputError(f"strength={strength}; expected a finite number that is not negative.")
