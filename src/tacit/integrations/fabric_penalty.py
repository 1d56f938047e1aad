"""The penalty for a model that went through Lightning Fabric's `setup`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from tacit._errors import InputError
from tacit.integrations.frameworks import load
from tacit.integrations.lightning_refusals import refuse_strategy
from tacit.penalty import GradientPenalty
from tacit.penalty.strength import Value

_wrappers: Any = load("lightning.fabric.wrappers")


class FabricPenalty(GradientPenalty):
    """`GradientPenalty` for what `fabric.setup` returned; call `fabric.backward(penalty.loss(closure, step=step))`.

    `step` is the number of the optimizer step, which Fabric does not count; without it schedules and `every` count
    calls.

    With mixed precision Fabric refuses every backward pass through the model's outputs that it does not start itself.
    The passes of the penalty are let through, and use the gradient scaler of Fabric's precision.
    """

    def __init__(self, model: Any, strength: Value, **options: Any) -> None:
        if not _wrappers.is_wrapped(model):
            raise InputError(
                f"model is a {type(model).__name__} that Fabric has not set up; expected what fabric.setup returns."
            )
        refuse_strategy(model._strategy)
        self.fabric_model = model
        super().__init__(model.module, strength, **options)

    def loss(self, closure: Callable[..., Tensor], *batch: Tensor, **options: Any) -> Tensor:  # type: ignore[override]
        """As `GradientPenalty.loss`; the scaler is Fabric's."""
        options.setdefault("scaler", getattr(self.fabric_model._strategy.precision, "scaler", None))
        with _without_refusal(self.fabric_model):
            loss = super().loss(closure, *batch, **options)
        # Fabric refuses a backward of its own for this tensor as for the model's outputs: it would be unscaled.
        self.fabric_model._register_backward_hook(loss)
        return loss

    def backward(self, closure: Callable[..., Tensor], *batch: Tensor, **options: Any) -> Tensor:  # type: ignore[override]
        raise InputError(
            "FabricPenalty.backward would go past Fabric's precision and strategy. "
            "Use fabric.backward(penalty.loss(closure))."
        )


@contextmanager
def _without_refusal(model: Any) -> Iterator[None]:
    """Inside, outputs of the model get no hook. Should Fabric rename it, Fabric refuses the pass: never silently."""
    object.__setattr__(model, "_register_backward_hook", lambda tensor: tensor)
    try:
        yield
    finally:
        del model.__dict__["_register_backward_hook"]
