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
from tacit.integrations.lightning_refusals import refuse_manual_optimization, refuse_optimizers, refuse_strategy
from tacit.integrations.options import check_penalty_options
from tacit.penalty import GradientPenalty
from tacit.penalty.gradient_penalty import Strength

_lightning: Any = load("lightning.pytorch")


class Penalty(_lightning.Callback):  # type: ignore[misc]
    """`Trainer(callbacks=[Penalty(strength=2**-6)])` trains on Ĉ + (λ/4)‖∇Ĉ‖² in place of Ĉ.

    `strength` and `options` are those of `tacit.GradientPenalty`. The penalty is that of each batch that
    `training_step` gets: with `accumulate_grad_batches=k`, or with several devices, the mean of their penalties, which
    is what `micro_batch_size` does in a plain loop. A schedule of the strength counts batches.

    Logs `tacit/penalty`, `tacit/gradient_squared_norm` and `tacit/batch_sharpness` unless `log=False`. Its state goes
    into checkpoints. `penalty` is the `GradientPenalty` while `fit` runs. With manual optimization no callback is
    needed: make a `tacit.GradientPenalty` and call `self.manual_backward(penalty.loss(closure))`.
    """

    def __init__(self, strength: Strength, *, log: bool = True, **options: Any) -> None:
        check_penalty_options(strength, options, accumulation="accumulate_grad_batches")
        # Not `self.log`: Lightning puts the module's function of that name into callbacks.
        self.strength, self.logs, self.options = strength, log, options
        self.penalty: GradientPenalty | None = None
        self._state: dict[str, Any] = {}
        self._unwrap: Callable[[], None] | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Wrap `training_step`: here, and not earlier, since layers may be made or frozen until now."""
        refuse_manual_optimization(pl_module)
        refuse_strategy(trainer.strategy)
        refuse_optimizers(trainer)
        self.penalty = GradientPenalty(pl_module, self.strength, **self.options)
        if self._state:
            self.penalty.load_state_dict(self._state)
        self._wrap(trainer, pl_module)

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
            return self._penalised_step(trainer, module, functools.partial(step, *arguments, **named))

        def unwrap() -> None:
            if own is None:
                module.__dict__.pop("training_step", None)
            else:
                module.training_step = own

        module.training_step, self._unwrap = training_step, unwrap

    def _penalised_step(self, trainer: Any, module: Any, step: Callable[[], Any]) -> Any:
        assert self.penalty is not None
        outputs: list[Any] = []

        def closure() -> Tensor:
            # Approximate methods run the step several times: what it logs must count once.
            with _without_logging(module) if outputs else nullcontext():
                outputs.append(step())
            loss = outputs[-1].get("loss") if isinstance(outputs[-1], Mapping) else outputs[-1]
            if loss is None:
                raise _SkippedBatchError
            return loss

        try:
            loss = self.penalty.loss(closure, scaler=getattr(trainer.precision_plugin, "scaler", None))
        except _SkippedBatchError:  # Lightning goes on to the next batch, or says why it cannot
            return outputs[-1]
        if self.logs:
            _log(self.penalty, module)
        return {**outputs[0], "loss": loss} if isinstance(outputs[0], Mapping) else loss


class _SkippedBatchError(Exception):
    """`training_step` returned no loss."""


def _log(penalty: GradientPenalty, module: Any) -> None:
    assert penalty.last is not None
    for name in ("penalty", "gradient_squared_norm", "batch_sharpness"):  # tensors: no wait for the device
        value = getattr(penalty.last, name)
        if value is not None:
            module.log(f"tacit/{name}", value)


@contextmanager
def _without_logging(module: Any) -> Iterator[None]:
    module.log = lambda *arguments, **named: None
    try:
        yield
    finally:
        del module.log
