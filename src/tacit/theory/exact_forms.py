"""Hand-written forms of a few torch functions, for as long as they are differentiated twice or more.

torch's own layer norm, instance norm and batch norm (training mode) return wrong third derivatives without a word, its
weight norm wrong second ones, and its mean squared error raises. Their textbook formulas are right at every order, and
equal in value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class ExactForms(TorchFunctionMode):
    """Inside this context the functions below are computed by their formulas, also when modules call them."""

    depth = 0  # how many of these contexts are open: above zero, a loss is being computed

    def __enter__(self) -> Self:
        ExactForms.depth += 1
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        ExactForms.depth -= 1
        super().__exit__(*raised)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        replacement = _FORMS.get(func)
        return (func if replacement is None else replacement)(*args, **(kwargs or {}))


def _normalized(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    away = x - x.mean(dims, keepdim=True)
    return away / torch.sqrt(away.square().mean(dims, keepdim=True) + eps)


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    out = _normalized(input, tuple(range(-len(normalized_shape), 0)), eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    out = _normalized(input, (0, *range(2, input.dim())), eps)  # running averages belong to the trainer: left alone
    return _per_channel(out, weight, bias)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:
        return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    return _per_channel(_normalized(input, tuple(range(2, input.dim())), eps), weight, bias)


def _per_channel(out: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    shape = (1, -1) + (1,) * (out.dim() - 2)
    out = out if weight is None else out * weight.reshape(shape)
    return out if bias is None else out + bias.reshape(shape)


def _mse_loss(input: Tensor, target: Tensor, *rest: Any, **options: Any) -> Tensor:
    unusual = [name for name, value in options.items() if name != "reduction" and value is not None]
    if rest or unusual or input.shape != target.shape:
        return F.mse_loss(input, target, *rest, **options)
    squares = (input - target) * (input - target)
    reduction = options.get("reduction", "mean")
    return squares.mean() if reduction == "mean" else squares.sum() if reduction == "sum" else squares


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """g v/‖v‖, one norm per index of `dim`, or one of everything when it is −1."""
    others = [axis for axis in range(v.dim()) if dim == -1 or axis != dim % v.dim()]
    return v * (g / torch.sqrt(v.square().sum(others, keepdim=True)))


_FORMS: dict[Any, Callable[..., Tensor]] = {
    F.layer_norm: _layer_norm,
    F.batch_norm: _batch_norm,
    F.instance_norm: _instance_norm,
    F.mse_loss: _mse_loss,
    torch._weight_norm: _weight_norm,
}
