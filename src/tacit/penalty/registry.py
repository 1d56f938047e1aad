"""The methods by name: what each is, whether it is exact, and its function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from tacit._util.errors import InputError
from tacit.penalty.methods import double_backward, finite_difference, gram
from tacit.penalty.objective import Objective, Outcome


@dataclass(frozen=True)
class Method:
    """`method=` chooses cost and rounding, never meaning."""

    name: str
    exact: bool
    backward: Callable[[Objective], Outcome]
    summary: str


METHODS = {
    method.name: method
    for method in (
        Method("gram", True, gram.backward, "factors of each layer, one forward pass"),
        Method("double_backward", True, double_backward.backward, "the readable reference"),
        Method("finite_difference", False, finite_difference.backward, "difference of two or three gradients"),
    )
}


SMALL_MICRO_BATCH = 16  # images of 16 by 16: one pass takes 0.4 of the loop's time at 4, 0.8 at 16
LARGE_WEIGHT = 2**18  # elements; below it a layer's products cost less than the calls around them


def choose(name: str, model: nn.Module, *, micro_batch_size: int | None = None, norm_of: str = "micro_batch") -> Method:
    """The method of that name; `auto` is the fastest exact one for the model."""
    if name == "auto":  # the global batch's mean gradient has to be formed, so `gram` gains nothing there
        together = norm_of == "global_batch"
        return METHODS["double_backward"] if together else fastest_exact(model, micro_batch_size=micro_batch_size)
    if name not in METHODS:
        raise InputError(f"method={name!r} is unknown; use one of auto, {', '.join(METHODS)}.")
    return METHODS[name]


def fastest_exact(model: nn.Module, *, micro_batch_size: int | None = None) -> Method:
    """What `method="auto"` means for this model: `gram` where it pays, `double_backward` otherwise.

    The rule is read off `tacit bench`: with wide linear layers (4096 and 1024) `gram` takes a fifth to a half of the
    time of `double_backward` and little more than half of its memory; on narrow MLPs, small transformers and
    convolutions the two are within an eighth of each other, and the plainer one is taken. It looks at the model's
    trainable matrices only (weights of linear layers, however the model multiplies with them), so it never changes
    during training.

    With micro-batches `gram` is taken for models of linear layers of any width, and for all models where they are
    small: it alone has them in one pass, which saves most of the time of many small ones. Large micro-batches of images
    gain nothing (WRN-10-1, 4 micro-batches of 32: one pass takes 1.1 to 1.4 times the loop).
    """
    others = (nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.RNNCellBase)  # matrices, but of no linear layer
    matrices = [
        parameter
        for module in model.modules()
        if not isinstance(module, others)
        for parameter in module.parameters(recurse=False)
        if parameter.requires_grad and parameter.dim() == 2
    ]
    if micro_batch_size is not None and micro_batch_size <= SMALL_MICRO_BATCH:
        return METHODS["gram"]
    least = LARGE_WEIGHT if micro_batch_size is None else 1
    wide = {id(matrix): matrix.numel() for matrix in matrices if matrix.numel() >= least}
    total = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return METHODS["gram" if 2 * sum(wide.values()) >= total else "double_backward"]
