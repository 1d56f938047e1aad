"""Where a step's finished gradients go: into `.grad` at once, or added up here first.

A sum ends in `.grad`, or in a tensor whose `backward` hands it out, times whatever factor arrives there:

    L = Ĉ + 0,   ∂(s·L)/∂ω = s · G

A trainer may divide the loss by the number of accumulated batches, scale it for half precision or weight it: G stays
the gradient of Ĉ + (λ/4)‖∇Ĉ‖² with the unscaled loss inside the square. Parameters are inputs of the tensor, so hooks
on them and the reducer of DistributedDataParallel see one ordinary backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tacit._util.errors import InputError
from tacit.layers.modes import modes_on

HALF = (torch.float16, torch.bfloat16)


class GradientSum:
    """The sum of the gradients that one step finds for each leaf, in the order in which leaves were first seen.

    Of parameters in half precision it is kept in float32: a penalty's part is a few per cent of the gradient.
    """

    def __init__(self) -> None:
        self.by_leaf: dict[Tensor, Tensor] = {}

    def add(self, leaves: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        for leaf, gradient in zip(leaves, gradients, strict=True):
            known = self.by_leaf.get(leaf)
            if known is not None:
                gradient = known + (gradient.float() if gradient.dtype in HALF else gradient)
            self.by_leaf[leaf] = gradient

    @property
    def in_half_precision(self) -> bool:
        """Whether the sum is kept in more digits than a leaf has."""
        return any(leaf.dtype in HALF for leaf in self.by_leaf)

    def into_grad(self, loss: Tensor) -> None:
        """Adds the sum to `.grad`, as one backward pass would: hooks on a leaf see it once."""
        if self.by_leaf:
            gradients = self.divided(1.0)
            with modes_on():
                torch.autograd.backward(list(gradients), list(gradients.values()))

    def hand_over(self, loss: Tensor, scale: float | Tensor) -> Tensor:
        """The loss, detached, plus a zero whose gradients are the sum, divided by `scale`."""
        if not self.by_leaf:
            return loss
        with torch.enable_grad():
            return loss + zero_with_gradients(self.divided(scale), loss)

    def divided(self, scale: float | Tensor) -> dict[Tensor, Tensor]:
        """The gradients, which are then no longer kept here."""
        gradients, self.by_leaf = self.by_leaf, {}
        if not (isinstance(scale, float) and scale == 1):
            gradients = {leaf: gradient / scale for leaf, gradient in gradients.items()}
        return {leaf: gradient.to(leaf.dtype) for leaf, gradient in gradients.items()}


def zero_with_gradients(gradients: Mapping[Tensor, Tensor], like: Tensor) -> Tensor:
    """A zero of the dtype and device of `like` whose gradient for each leaf is the one given."""
    with torch.enable_grad():
        return _HandOver.apply(like, list(gradients.values()), *gradients)


class _HandOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, like: Tensor, gradients: list[Tensor], *leaves: Tensor) -> Tensor:
        # Saved as autograd saves tensors: freed by the first backward, kept by retain_graph=True.
        ctx.save_for_backward(*gradients)
        return like.new_zeros(())

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise InputError(
                "backward with create_graph=True on the loss of a penalty; expected create_graph=False, because its "
                "gradient is finished and cannot be differentiated again. Put the term that needs it into the closure."
            )
        return (None, None, *(factor.to(gradient.device) * gradient for gradient in ctx.saved_tensors))
