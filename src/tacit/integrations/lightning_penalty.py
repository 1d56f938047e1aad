"""The penalty and sharpness-aware minimization as callbacks of Lightning's `Trainer`, for automatic optimization.

Lightning divides the loss by the number of accumulated batches, and scales it in half precision, before it calls
`backward`. `GradientPenalty.loss` and `SharpnessAware.loss` are linear in whatever multiplies them, so the callback
lets `training_step` return that tensor and leaves everything else to Lightning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

from torch import Tensor

from tacit.integrations.frameworks import load
from tacit.integrations.lightning_refusals import (
    refuse_iterator,
    refuse_manual_optimization,
    refuse_optimizers,
    refuse_strategy,
    refuse_two,
    refuse_unreached,
)
from tacit.integrations.options import (
    CallsOfStep,
    GradientRule,
    check_options,
    finds_direction,
    logs_share,
    needs_batch,
)
from tacit.integrations.replaced import nothing, replaced
from tacit.integrations.step_means import StepMeans
from tacit.penalty import GradientPenalty
from tacit.penalty import SharpnessAware as SharpnessAwareRule
from tacit.penalty.sharpness_aware import Radius
from tacit.penalty.strength import Value

_lightning: Any = load("lightning.pytorch")


class _InPlaceOfTheLoss(_lightning.Callback):  # type: ignore[misc]
    """Lets `training_step` return the loss of a rule made anew for each `fit`: `kind(module, value, **options)`."""

    kind: type[GradientRule]

    def __init__(self, value: Any, options: dict[str, Any], *, log: bool, progress_bar: bool) -> None:
        check_options(self.kind, value, options, accumulation="accumulate_grad_batches")
        # Not `self.log`: Lightning puts the module's function of that name into callbacks.
        self.value, self.logs, self.options = value, log, options
        self.progress_bar = progress_bar
        self.rule: GradientRule | None = None
        self._state: dict[str, Any] = {}
        self._wrapping = ExitStack()
        self._means, self._window, self._calls_of_step = StepMeans(), 0, CallsOfStep()
        self._calls = self._gradients = 0  # in this fit: losses made, and gradients handed out

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Wrap `training_step`: here, and not earlier, since layers may be made or frozen until now."""
        refuse_two([callback for callback in trainer.callbacks if isinstance(callback, _InPlaceOfTheLoss)])
        refuse_manual_optimization(pl_module, self.kind)
        refuse_strategy(trainer.strategy)
        refuse_optimizers(trainer)
        self.rule = self.kind(pl_module, self.value, **self.options)
        refuse_iterator(pl_module, self.rule)
        if self._state:
            self.rule.load_state_dict(self._state)
        self._calls = self._gradients = 0
        self._means.clear()
        self._wrap(trainer, pl_module)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if not self._gradients:
            refuse_unreached(pl_module, self.kind, calls=self._calls)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._release()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._release()

    def state_dict(self) -> dict[str, Any]:
        return self._state if self.rule is None else self.rule.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict

    def _release(self) -> None:
        self._state, self.rule = self.state_dict(), None
        self._wrapping.close()

    def _wrap(self, trainer: Any, module: Any) -> None:
        step = module.training_step

        @functools.wraps(step)
        def training_step(*arguments: Any, **named: Any) -> Any:
            return self._step(trainer, module, step, arguments, named)

        self._wrapping.enter_context(replaced(module, "training_step", training_step))

    def _step(
        self, trainer: Any, module: Any, step: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        assert self.rule is not None
        rule = self.rule
        outputs: list[Any] = []
        training = module.training

        def closure(*batch: Any) -> Tensor:
            # Drawn rows, looks in evaluation mode, approximate methods and the direction of SAM run the step too: what
            # it logs, and what it returns, are those of the whole batch, once.
            whole = not batch or batch[0] is arguments[0]
            counts = whole and module.training == training and not outputs and not finds_direction(rule)
            with nullcontext() if counts else replaced(module, "log", nothing):
                found = step(*batch, *arguments[len(batch) :], **named)
            if counts:
                outputs.append(found)
            loss = found.get("loss") if isinstance(found, Mapping) else found
            if loss is None:
                raise _SkippedBatchError
            return loss

        scaler = getattr(trainer.precision_plugin, "scaler", None)
        batch = arguments[:1] if needs_batch(rule) else ()
        part = self._calls_of_step.next(rule, trainer.global_step, trainer.accumulate_grad_batches)
        try:
            loss = rule.loss(closure, *batch, scaler=scaler, step=trainer.global_step, **part)
        except _SkippedBatchError:  # Lightning goes on to the next batch, or says why it cannot
            self._gradients += 1
            return outputs[-1] if outputs else None
        self._calls += 1
        loss.register_hook(self._count_gradient)
        if self.logs:
            self._log(trainer, module, rule)
        return {**outputs[0], "loss": loss} if isinstance(outputs[0], Mapping) else loss

    def _count_gradient(self, factor: Tensor) -> None:
        self._gradients += 1

    def _log(self, trainer: Any, module: Any, rule: GradientRule) -> None:
        """Means over penalised batches since Lightning last wrote its logs, as tensors: no wait for the device.

        With `SharpnessAware` over the batches whose direction was taken.
        """
        assert rule.last is not None
        window = trainer.global_step // max(trainer.log_every_n_steps, 1)
        if window != self._window:
            self._means.clear()
            self._window = window
        self._means.add(rule.last)
        for name, value in self._means.means().items():
            shown = self.progress_bar and name in ("penalty", "gradient_share", "direction_norm")
            module.log(f"tacit/{name}", value, prog_bar=shown, batch_size=1)  # a size: dataloader_iter wants one
        if logs_share(rule, self._means.penalised_share):
            module.log("tacit/penalised_share", self._means.penalised_share, batch_size=1)


class Penalty(_InPlaceOfTheLoss):
    """`Trainer(callbacks=[Penalty(strength=2**-6)])` trains on Ĉ + (λ/4)‖∇Ĉ‖² in place of Ĉ.

    `strength` and `options` are those of `tacit.GradientPenalty`. The penalty is that of each batch that
    `training_step` gets: with `accumulate_grad_batches=k`, or with several devices, the mean of their penalties, which
    is what `micro_batch_size` does in a plain loop. `micro_batch_size=b, sampled=q` draws q micro-batches of the first
    argument of `training_step`; `sampled=q` alone takes the penalty of q of the `accumulate_grad_batches` batches of an
    optimizer step. Schedules of the strength and `every` count the optimizer steps of the trainer; the coin of
    `probability` is one of each batch.

    Logs `tacit/penalty`, `tacit/gradient_squared_norm`, `tacit/batch_sharpness` and `tacit/gradient_share` (the
    penalty's part of the gradient over the plain part) unless `log=False`: means over the penalised batches since the
    last `log_every_n_steps`, and `tacit/penalised_share` where not all are. `progress_bar=True` also shows the penalty
    and its share there, which reads two numbers from the device at each refresh. Its state goes into checkpoints.
    `penalty` is the `GradientPenalty` while `fit` runs. With manual optimization no callback is needed: make a
    `tacit.GradientPenalty` and call `self.manual_backward(penalty.loss(closure, step=self.trainer.global_step))`.
    """

    kind = GradientPenalty

    def __init__(self, strength: Value, *, log: bool = True, progress_bar: bool = False, **options: Any) -> None:
        super().__init__(strength, options, log=log, progress_bar=progress_bar)

    @property
    def penalty(self) -> GradientPenalty | None:
        return self.rule if isinstance(self.rule, GradientPenalty) else None


class SharpnessAware(_InPlaceOfTheLoss):
    """`Trainer(callbacks=[SharpnessAware(radius=0.05)])` takes each batch's gradient at ω + ρ g/‖g‖ in place of ω.

    `radius` and `options` are those of `tacit.SharpnessAware`. Each batch that `training_step` gets has its own
    direction g: with `accumulate_grad_batches=k`, or with several devices, the step is the mean over them. `sampled=n`
    takes g from n rows of the first argument of `training_step`. Schedules of the radius count the optimizer steps of
    the trainer. What `training_step` returns and logs is that of the whole batch at the moved parameters, once.

    Logs `tacit/direction_norm`, ‖g‖, unless `log=False`: the mean over the batches since the last `log_every_n_steps`;
    `progress_bar=True` also shows it there. Its state goes into checkpoints. `sam` is the `tacit.SharpnessAware` while
    `fit` runs. With manual optimization no callback is needed: make a `tacit.SharpnessAware` and call
    `self.manual_backward(sam.loss(closure, step=self.trainer.global_step))`.
    """

    kind = SharpnessAwareRule

    def __init__(self, radius: Radius, *, log: bool = True, progress_bar: bool = False, **options: Any) -> None:
        super().__init__(radius, options, log=log, progress_bar=progress_bar)

    @property
    def sam(self) -> SharpnessAwareRule | None:
        return self.rule if isinstance(self.rule, SharpnessAwareRule) else None


class _SkippedBatchError(Exception):
    """`training_step` returned no loss."""
