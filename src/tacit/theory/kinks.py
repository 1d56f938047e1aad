"""Kinks of an update or of a loss: the calls of sign, abs, max and the like that its code makes.

A modified flow is a series in ε, and a map with a kink has none: at the kink there is no derivative, and next to it a
step that crosses the kink departs from every series. So such an update is refused whether its kink is met or not. The
calls are found by name: at almost every point a kinked map has derivatives, so no number gives it away.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from tacit._util.errors import InputError
from tacit.layers.calls import tensors_in
from tacit.theory.exact_forms import ExactForms

# Names of torch's functions and methods; a trailing or leading underscore (relu_, __abs__) is ignored.
KINKED_CALLS = {
    "sign", "sgn", "signbit", "copysign", "heaviside", "abs", "absolute", "fabs", "round", "floor", "ceil", "trunc",
    "fix", "frac", "fmod", "remainder", "mod", "max", "min", "maximum", "minimum", "amax", "amin", "aminmax", "fmax",
    "fmin", "cummax", "cummin", "clamp", "clip", "clamp_min", "clamp_max", "where", "masked_fill", "median",
    "nanmedian", "quantile", "nanquantile", "kthvalue", "topk", "sort", "msort", "mode", "relu", "relu6", "leaky_relu",
    "prelu", "rrelu", "threshold", "hardtanh", "hardswish", "hardsigmoid", "hardshrink", "softshrink", "elu", "celu",
    "selu", "l1_loss", "smooth_l1_loss", "huber_loss", "hinge_embedding_loss", "margin_ranking_loss",
    "multi_margin_loss", "triplet_margin_loss", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d",
}  # fmt: skip
NORMS = {"norm", "vector_norm", "matrix_norm"}  # a kink for some p: the sum and the maximum of sizes
DECISION = "bool"  # `if`, `min(…)` and `max(…)` of Python ask a tensor whether it is true


class KinkWatch(TorchFunctionMode):
    """Inside this context the names of kinked calls are collected: `in_update`, and apart `in_loss` (a ReLU, say).

    `of_differentiable` leaves out calls on tensors that do not require gradients: the maximum of a mask, say.
    """

    def __init__(self, *, of_differentiable: bool = False) -> None:
        super().__init__()
        self.of_differentiable = of_differentiable
        self.in_update: set[str] = set()
        self.in_loss: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "").strip("_").removeprefix("linalg_")
        kinked = name in KINKED_CALLS or name == DECISION or (name in NORMS and _is_kinked_norm(args, kwargs or {}))
        if kinked and not (self.of_differentiable and not any(x.requires_grad for x in tensors_in((args, kwargs)))):
            inside_loss = ExactForms.depth > 0
            (self.in_loss if inside_loss else self.in_update).add("a comparison" if name == DECISION else name)
        return func(*args, **(kwargs or {}))


def refuse_kinks(call: Callable[[], Any]) -> None:
    """Run the call once; refuse it when its code has a kink, and warn when only the loss has one."""
    with KinkWatch() as watch:
        call()
    if watch.in_update:
        raise InputError(
            f"the update uses {', '.join(sorted(watch.in_update))}, which has a kink, so no series in ε exists; "
            "expected a smooth map. Use a smooth cousin: g/√(g²+δ) for the sign, √(g²+δ) for the size, softplus or "
            "logsumexp for a maximum."
        )
    if watch.in_loss:
        warnings.warn(
            f"the loss uses {', '.join(sorted(watch.in_loss))}, which is not smooth: the series is that of the smooth "
            "piece around a point. Use tanh, GELU or softplus where an order is measured.",
            stacklevel=3,
        )


def _is_kinked_norm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a norm is other than Euclidean: p = 1 or ∞ are a sum and a maximum of sizes."""
    p = kwargs.get("p", kwargs.get("ord", args[1] if len(args) > 1 else None))
    if p is None or p == "fro":
        return False
    return not (isinstance(p, (int, float)) and math.isfinite(p) and p > 0 and p % 2 == 0)
