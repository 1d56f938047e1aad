"""The penalty as a callback of Lightning's `Trainer`, for automatic optimization.

Lightning divides the loss by the number of accumulated batches, and scales it in half precision, before it calls
`backward`. `GradientPenalty.loss` is linear in whatever multiplies it, so the callback lets `training_step` return that
tensor and leaves everything else to Lightning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor

from tacit.integrations.frameworks import load
from tacit.integrations.lightning_refusals import (
    refuse_iterator,
    refuse_manual_optimization,
    refuse_optimizers,
    refuse_strategy,
    refuse_unreached_penalty,
)
from tacit.integrations.options import CallsOfStep, check_penalty_options
from tacit.integrations.step_means import StepMeans
from tacit.penalty import GradientPenalty
from tacit.penalty.strength import Value

_lightning: Any = load("lightning.pytorch")


class Penalty(_lightning.Callback):  # type: ignore[misc]
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

    def __init__(self, strength: Value, *, log: bool = True, progress_bar: bool = False, **options: Any) -> None:
        check_penalty_options(strength, options, accumulation="accumulate_grad_batches")
        # Not `self.log`: Lightning puts the module's function of that name into callbacks.
        self.strength, self.logs, self.options = strength, log, options
        self.progress_bar = progress_bar
        self.penalty: GradientPenalty | None = None
        self._state: dict[str, Any] = {}
        self._unwrap: Callable[[], None] | None = None
        self._means, self._window, self._calls_of_step = StepMeans(), 0, CallsOfStep()
        self._calls = self._gradients = 0  # in this fit: losses made, and gradients handed out

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Wrap `training_step`: here, and not earlier, since layers may be made or frozen until now."""
        refuse_manual_optimization(pl_module)
        refuse_strategy(trainer.strategy)
        refuse_optimizers(trainer)
        self.penalty = GradientPenalty(pl_module, self.strength, **self.options)
        refuse_iterator(pl_module, self.penalty.method)
        if self._state:
            self.penalty.load_state_dict(self._state)
        self._calls = self._gradients = 0
        self._means.clear()
        self._wrap(trainer, pl_module)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if not self._gradients:
            refuse_unreached_penalty(pl_module, calls=self._calls)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._release()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._release()

    def state_dict(self) -> dict[str, Any]:
        return self._state if self.penalty is None else self.penalty.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict

    def _release(self) -> None:
        self._state, self.penalty = self.state_dict(), None
        if self._unwrap is not None:
            self._unwrap()
            self._unwrap = None

    def _wrap(self, trainer: Any, module: Any) -> None:
        own = module.__dict__.get("training_step")
        step = module.training_step

        @functools.wraps(step)
        def training_step(*arguments: Any, **named: Any) -> Any:
            return self._penalised_step(trainer, module, step, arguments, named)

        def unwrap() -> None:
            if own is None:
                module.__dict__.pop("training_step", None)
            else:
                module.training_step = own

        module.training_step, self._unwrap = training_step, unwrap

    def _penalised_step(
        self, trainer: Any, module: Any, step: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        assert self.penalty is not None
        outputs: list[Any] = []
        training = module.training

        def closure(*batch: Any) -> Tensor:
            # Micro-batches, looks in evaluation mode and approximate methods run the step too: what it logs, and what
            # it returns, are those of the whole batch, once.
            whole = not batch or batch[0] is arguments[0]
            counts = whole and module.training == training and not outputs
            with nullcontext() if counts else _without_logging(module):
                found = step(*batch, *arguments[len(batch) :], **named)
            if counts:
                outputs.append(found)
            loss = found.get("loss") if isinstance(found, Mapping) else found
            if loss is None:
                raise _SkippedBatchError
            return loss

        scaler = getattr(trainer.precision_plugin, "scaler", None)
        cut = self.penalty.micro_batch_size is not None
        part = self._calls_of_step.next(self.penalty, trainer.global_step, trainer.accumulate_grad_batches)
        try:
            loss = self.penalty.loss(
                closure, *arguments[:1] if cut else (), scaler=scaler, step=trainer.global_step, part=part
            )
        except _SkippedBatchError:  # Lightning goes on to the next batch, or says why it cannot
            self._gradients += 1
            return outputs[-1] if outputs else None
        self._calls += 1
        loss.register_hook(self._count_gradient)
        if self.logs:
            self._log(trainer, module)
        return {**outputs[0], "loss": loss} if isinstance(outputs[0], Mapping) else loss

    def _count_gradient(self, factor: Tensor) -> None:
        self._gradients += 1

    def _log(self, trainer: Any, module: Any) -> None:
        """Means over penalised batches since Lightning last wrote its logs, as tensors: no wait for the device."""
        assert self.penalty is not None
        assert self.penalty.last is not None
        window = trainer.global_step // max(trainer.log_every_n_steps, 1)
        if window != self._window:
            self._means.clear()
            self._window = window
        self._means.add(self.penalty.last)
        for name, value in self._means.means().items():
            shown = self.progress_bar and name in ("penalty", "gradient_share")
            module.log(f"tacit/{name}", value, prog_bar=shown, batch_size=1)  # a size: dataloader_iter wants one
        if self.penalty.every > 1 or self.penalty.probability is not None or self._means.penalised_share < 1:
            module.log("tacit/penalised_share", self._means.penalised_share, batch_size=1)


class _SkippedBatchError(Exception):
    """`training_step` returned no loss."""


@contextmanager
def _without_logging(module: Any) -> Iterator[None]:
    module.log = lambda *arguments, **named: None
    try:
        yield
    finally:
        del module.log
