"""The methods by name: what each is, whether it is exact, and its function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tacit._errors import InputError
from tacit.penalty import ascent, double_backward, finite_difference, forward_over_reverse, gram
from tacit.penalty._task import Outcome, Task


@dataclass(frozen=True)
class Method:
    """`method=` chooses cost and rounding, never meaning."""

    name: str
    exact: bool
    backward: Callable[[Task], Outcome]
    summary: str


METHODS = {
    method.name: method
    for method in (
        Method("gram", True, gram.backward, "factors of each layer, one forward pass"),
        Method("double_backward", True, double_backward.backward, "the readable reference"),
        Method("forward_over_reverse", True, forward_over_reverse.backward, "torch.func jvp of grad"),
        Method("finite_difference", False, finite_difference.backward, "difference of two or three gradients"),
        Method("ascent", False, ascent.backward, "gradient at ω + (λ/2)∇Ĉ"),
    )
}


def choose(name: str) -> Method:
    """The method of that name. `auto` is `gram`: on every benchmarked model it is the fastest exact one, because it
    takes the cheaper of the Gram and the direct form layer by layer."""
    if name == "auto":
        return METHODS["gram"]
    if name not in METHODS:
        raise InputError(f"method={name!r} is unknown; use one of auto, {', '.join(METHODS)}.")
    return METHODS[name]
