"""Models and closures that a method cannot handle, found in the graph or in PyTorch's own error."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from tacit._util.errors import InputError
from tacit._util.graph import REENTRANT_CHECKPOINT, WRONG_SECOND_DERIVATIVES

NOTHING_REACHED = (
    "the loss depends on none of the penalised parameters; expected a closure that runs the model given to the penalty."
)


class UnsupportedModelError(InputError):
    """A model or closure that a method cannot handle: why, and what to do instead."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause} {remedy}")
        self.cause = cause


@dataclass(frozen=True)
class _Message:
    """A pattern in PyTorch's message, and the refusal in its place; groups of the pattern are put into the cause."""

    pattern: str
    cause: str
    remedy: str


_NO_SECOND = "{}, which has no second derivative in PyTorch; the exact penalty needs one."
_DIFFERENCES = "Use method='finite_difference'."
_REENTRANT = (
    "the model uses re-entrant checkpointing, which hides parameters from autograd.grad;",
    "pass use_reentrant=False to torch.utils.checkpoint.",
)

_MESSAGES = [
    _Message(r"derivative for aten::_scaled_dot_product\w+ is not implemented",
             _NO_SECOND.format("the model uses fused scaled_dot_product_attention"),
             "Leave attention at 'math', or use method='finite_difference'."),
    _Message(r"derivative for (\S+) is not implemented", _NO_SECOND.format("the model uses {0}"), _DIFFERENCES),
    _Message(r"aot_autograd does not currently support double backward",
             _NO_SECOND.format("the model went through torch.compile"),
             "Pass the uncompiled model, or use method='finite_difference'."),
    _Message(r"differentiate twice a function that was marked\s+with @once_differentiable",
             _NO_SECOND.format("the model uses an autograd.Function marked once_differentiable"), _DIFFERENCES),
    _Message(r"functions with out=\.\.\. arguments don't support automatic differentiation",
             _NO_SECOND.format("the model has an autograd.Function that writes into out=… in its backward pass"),
             _DIFFERENCES),
    _Message(r"cudnn.*(?:RNN|rnn).*double", _NO_SECOND.format("the model uses a cuDNN recurrent layer"),
             "Disable cuDNN for it, or use method='finite_difference'."),
    _Message(r"[Cc]heckpoint\w* is (?:not compatible|incompatible) with \.grad\(\)", *_REENTRANT),
    _Message(r"backward through the graph a second time",
             "the loss's graph was used up before the penalty could use it; expected a closure that runs the forward "
             "pass itself and does not call backward.", "Return the loss and leave backward to the penalty."),
    _Message(r"escaped from inside a function being vmapped",
             "the model keeps a tensor of one forward pass outside of its buffers and reads it in a later one, which "
             "micro-batches in one pass allow for buffers only.", "Use self.register_buffer for it."),
]  # fmt: skip


def refuse_suspects(operations: set[str], *, exact: bool) -> None:
    """Re-entrant checkpointing leaves parameters out silently; weight_norm has a wrong second derivative."""
    if REENTRANT_CHECKPOINT in operations:
        raise UnsupportedModelError(*_REENTRANT)
    for name in sorted(operations) if exact else ():
        raise UnsupportedModelError(
            f"the model uses {WRONG_SECOND_DERIVATIVES[name]}, whose second derivative is wrong; the exact penalty "
            "needs it.",
            "Remove it, or use method='finite_difference'.",
        )


class TranslatedErrors:
    """Turns PyTorch's errors about missing derivatives and used-up graphs into refusals that name the cause."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, *trace: Any) -> None:
        if isinstance(error, RuntimeError):  # NotImplementedError is one
            refuse_known(error)


def refuse_known(error: RuntimeError) -> None:
    """The refusal in place of PyTorch's error, where its message is known."""
    for message in _MESSAGES:
        matched = re.search(message.pattern, str(error))
        if matched:
            raise UnsupportedModelError(message.cause.format(*matched.groups()), message.remedy) from error


def refuse_closure(closure: Any, caller: str) -> NoReturn:
    raise InputError(
        f"{caller} got a {type(closure).__name__}; expected a function that computes the loss, "
        "such as lambda: loss_fn(model(inputs), targets)."
    )


def refuse_backward(weight: float, owner: str) -> None:
    """Of `owner.backward`: a weight that is not finite, and a call where no gradients are wanted."""
    if not math.isfinite(weight):
        raise InputError(f"weight={weight}; expected a finite number.")
    if not torch.is_grad_enabled():
        raise InputError(
            f"{owner}.backward was called without grad mode, where torch gives no gradient either; expected a call "
            "outside of torch.no_grad() and torch.inference_mode(). To look at the loss alone, call the closure."
        )
