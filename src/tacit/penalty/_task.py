"""What every method is given and what it gives back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tacit._errors import InputError

Closure = Callable[[], Tensor]


@dataclass(frozen=True)
class Task:
    """One call of `GradientPenalty.backward`: add weight · ∇(Ĉ + (λ/4)‖∇Ĉ‖²) to `.grad` of every leaf.

    With two closures (two views of one minibatch) the objective is ½(Ĉᵃ + Ĉᵇ) + (λ/4)⟨∇Ĉᵃ, ∇Ĉᵇ⟩.
    The norm runs over `parameters`; the gradient goes to every leaf that the loss depends on.
    """

    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    closures: tuple[Closure, ...]
    strength: float
    weight: float = 1.0
    scale: float = 1.0  # GradScaler's: what backward is multiplied with, so that half precision does not underflow
    generators: tuple[torch.Generator, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def loss(self, closure: Closure) -> Tensor:
        """The closure's loss, checked."""
        with torch.enable_grad():
            value = closure()
        if not isinstance(value, Tensor) or value.numel() != 1:
            found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"the closure returned {found}; expected a scalar loss tensor.")
        if not value.requires_grad:
            raise InputError(
                "the closure returned a loss without a graph; expected one that depends on trainable parameters. "
                "Remove torch.no_grad() or .detach() from the closure."
            )
        if not torch.isfinite(value):
            raise InputError(
                f"the loss is {value.item()}; expected a finite number. An empty batch gives nan, "
                "a learning rate that is too large gives inf."
            )
        return value.reshape(())


@dataclass(frozen=True)
class Outcome:
    """The original loss Ĉ, ‖∇Ĉ‖² over the task's parameters and, for approximate methods, an error estimate.

    `error` is relative to the norm of the penalty's part of the gradient; None for exact methods and when not asked.
    """

    loss: Tensor
    gradient_squared_norm: Tensor
    error: float | None = None


_MISSING = [
    (r"derivative for aten::_scaled_dot_product\w+ is not implemented", "fused scaled_dot_product_attention",
     "run the step under torch.nn.attention.sdpa_kernel(SDPBackend.MATH), or use"),
    (r"derivative for (\S+) is not implemented", "{0}", "use"),
    (r"aot_autograd does not currently support double backward", "torch.compile", "pass the uncompiled model, or use"),
    (r"differentiate twice a function that was marked\s+with @once_differentiable", "an autograd.Function marked "
     "once_differentiable", "use"),
    (r"Checkpointing is not compatible with \.grad\(\)", "re-entrant checkpointing",
     "pass use_reentrant=False to torch.utils.checkpoint, or use"),
    (r"(cudnn|_cudnn)\w* ?(RNN|rnn)\w*.*double", "a cuDNN recurrent layer",
     "disable cuDNN for this layer, or use"),
]  # fmt: skip


@contextmanager
def second_derivatives() -> Iterator[None]:
    """Turns PyTorch's error for a missing second derivative into a sentence that names the operation."""
    try:
        yield
    except RuntimeError as error:  # NotImplementedError is one
        for pattern, name, remedy in _MISSING:
            found = re.search(pattern, str(error))
            if found:
                raise InputError(
                    f"the model uses {name.format(*found.groups())}, which has no second derivative in PyTorch; the "
                    f"exact penalty needs one. {remedy[0].upper()}{remedy[1:]} method='finite_difference'."
                ) from error
        raise
