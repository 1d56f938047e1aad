"""Settings of Lightning under which the penalty would be wrong or is untested, as sentences that name them."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from tacit._errors import InputError
from tacit.nstep import NStepSGD
from tacit.penalty import METHODS, FactoredSGD

# By name, since the packages lightning.pytorch, lightning.fabric and pytorch_lightning have classes of their own.
STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")


def refuse_strategy(strategy: Any) -> None:
    if not {kind.__name__ for kind in type(strategy).__mro__} & set(STRATEGIES):
        raise InputError(
            f"the strategy is {type(strategy).__name__}; the penalty was tested with one device and with DDP. "
            "Use strategy='ddp'."
        )


def refuse_manual_optimization(module: Any) -> None:
    if not module.automatic_optimization:
        raise InputError(
            f"{type(module).__name__} uses manual optimization, which the callback cannot reach. Make a "
            "tacit.GradientPenalty and call self.manual_backward(penalty.loss(closure)) in training_step."
        )


def refuse_optimizers(trainer: Any) -> None:
    """Optimizers that apply a penalty themselves, need the objective's value, or forget accumulated gradients."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, FactoredSGD):
            raise InputError("FactoredSGD applies the penalty itself. Use torch.optim.SGD with this callback.")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InputError(
                "LBFGS searches along the loss without the penalty while it gets the gradient with it. "
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


def refuse_iterator(module: Any, method: str) -> None:
    """A step that takes its batches itself would take another one in each pass."""
    takes_batches = "dataloader_iter" in inspect.signature(module.training_step).parameters
    if takes_batches and not METHODS[method].exact:
        raise InputError(
            f"training_step takes dataloader_iter, and method={method!r} runs it several times, each on another batch. "
            "Use method='double_backward', or training_step(self, batch, batch_idx)."
        )


def refuse_unreached_penalty(module: Any, *, calls: int) -> None:
    """Called before an optimizer step whose gradient is the plain one."""
    name = type(module).__name__
    if calls:
        raise InputError(
            f"the penalised loss was computed, but {name}.backward did not go through it before the first optimizer "
            "step. Call backward on the loss that it gets."
        )
    raise InputError(
        f"no call reached the penalty before the first optimizer step: {name}.training_step was replaced after "
        "training had started. Replace it before, for instance in setup."
    )
