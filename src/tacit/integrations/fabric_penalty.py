"""The penalty and sharpness-aware minimization for a model that went through Lightning Fabric's `setup`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tacit._util.errors import InputError
from tacit.integrations.frameworks import load
from tacit.integrations.lightning_refusals import refuse_strategy
from tacit.integrations.replaced import replaced
from tacit.penalty import GradientPenalty, SharpnessAware

_wrappers: Any = load("lightning.fabric.wrappers")


class _AfterSetup:
    """What both classes override.

    With mixed precision Fabric refuses every backward pass through the model's outputs that it does not start itself.
    The passes of `loss` are let through, and use the gradient scaler of Fabric's precision.
    """

    def __init__(self, model: Any, *value: Any, **options: Any) -> None:
        if not _wrappers.is_wrapped(model):
            raise InputError(
                f"model is a {type(model).__name__} that Fabric has not set up; expected what fabric.setup returns."
            )
        refuse_strategy(model._strategy)
        self.fabric_model = model
        super().__init__(model.module, *value, **options)  # type: ignore[call-arg]

    def loss(self, closure: Callable[..., Tensor], *batch: Any, **options: Any) -> Tensor:
        """As in the base class; the scaler is Fabric's."""
        options.setdefault("scaler", getattr(self.fabric_model._strategy.precision, "scaler", None))
        # Outputs of the model get no hook here. Should Fabric rename it, Fabric refuses the pass: never silently.
        with replaced(self.fabric_model, "_register_backward_hook", lambda tensor: tensor):
            loss: Tensor = super().loss(closure, *batch, **options)  # type: ignore[misc]
        # Fabric refuses a backward of its own for this tensor as for the model's outputs: it would be unscaled.
        self.fabric_model._register_backward_hook(loss)
        return loss

    def backward(self, closure: Callable[..., Tensor], *batch: Any, **options: Any) -> Tensor:
        name = "sam" if isinstance(self, SharpnessAware) else "penalty"
        raise InputError(
            f"{type(self).__name__}.backward would go past Fabric's precision and strategy. "
            f"Use fabric.backward({name}.loss(closure))."
        )


class FabricPenalty(_AfterSetup, GradientPenalty):
    """`GradientPenalty` for what `fabric.setup` returned; call `fabric.backward(penalty.loss(closure, step=step))`.

    `step` is the number of the optimizer step, which Fabric does not count; without it schedules and `every` count
    calls.
    """


class FabricSharpnessAware(_AfterSetup, SharpnessAware):
    """`SharpnessAware` for what `fabric.setup` returned; call `fabric.backward(sam.loss(closure, step=step))`.

    With `sampled=n` the closure takes the batch: `sam.loss(closure, inputs, targets)`.
    """
