"""Settings of Lightning under which a callback would be wrong or is untested, as sentences that name them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from tacit._util.errors import InputError
from tacit.nstep import NStepSGD
from tacit.penalty import METHODS, FactoredSGD, GradientPenalty, SharpnessAware

_NAMES: dict[type, str] = {GradientPenalty: "the penalty", SharpnessAware: "SharpnessAware"}
# By name, since the packages lightning.pytorch, lightning.fabric and pytorch_lightning have classes of their own.
STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")


def refuse_strategy(strategy: Any) -> None:
    if not {kind.__name__ for kind in type(strategy).__mro__} & set(STRATEGIES):
        raise InputError(
            f"the strategy is {type(strategy).__name__}; this was tested with one device and with DDP. "
            "Use strategy='ddp'."
        )


def refuse_two(callbacks: Sequence[Any]) -> None:
    if len(callbacks) > 1:
        names = " and ".join(type(callback).__name__ for callback in callbacks)
        raise InputError(f"the callbacks {names} would each replace the loss of the other; expected one of them.")


def refuse_manual_optimization(module: Any, kind: type) -> None:
    if not module.automatic_optimization:
        name = "sam" if kind is SharpnessAware else "penalty"
        raise InputError(
            f"{type(module).__name__} uses manual optimization, which the callback cannot reach. Make a "
            f"tacit.{kind.__name__} and call self.manual_backward({name}.loss(closure)) in training_step."
        )


def refuse_optimizers(trainer: Any) -> None:
    """Optimizers that apply a penalty themselves, need the objective's value, or forget accumulated gradients."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, FactoredSGD):
            raise InputError("FactoredSGD applies the penalty itself. Use torch.optim.SGD with this callback.")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InputError(
                "LBFGS searches along the loss, and the gradient that it gets here is not that of the loss. "
                "Use an optimizer without a line search."
            )
        if isinstance(optimizer, NStepSGD) and scaler is not None:
            raise InputError(
                "NStepSGD evaluates a closure, and precision='16-mixed' calls step without one. "
                "Use precision='bf16-mixed' or '32-true'."
            )
        if isinstance(optimizer, NStepSGD) and trainer.accumulate_grad_batches > 1:
            raise InputError(
                f"NStepSGD takes its steps on one batch and discards gradients of the others; found "
                f"accumulate_grad_batches={trainer.accumulate_grad_batches}, expected 1."
            )


def refuse_iterator(module: Any, rule: GradientPenalty | SharpnessAware) -> None:
    """A step that takes its batches itself would take another one in each pass."""
    if "dataloader_iter" not in inspect.signature(module.training_step).parameters:
        return
    if isinstance(rule, SharpnessAware):
        several, remedy = "SharpnessAware", ""
    elif not METHODS[rule.method].exact:
        several, remedy = f"method={rule.method!r}", "method='double_backward', or "
    else:
        return
    raise InputError(
        f"training_step takes dataloader_iter, and {several} runs it several times, each on another batch. "
        f"Use {remedy}training_step(self, batch, batch_idx)."
    )


def refuse_unreached(module: Any, kind: type, *, calls: int) -> None:
    """Called before an optimizer step whose gradient is the plain one."""
    name, ours = type(module).__name__, _NAMES[kind]
    if calls:
        raise InputError(
            f"the loss of {ours} was computed, but {name}.backward did not go through it before the first optimizer "
            "step. Call backward on the loss that it gets."
        )
    raise InputError(
        f"no call reached {ours} before the first optimizer step: {name}.training_step was replaced after "
        "training had started. Replace it before, for instance in setup."
    )
