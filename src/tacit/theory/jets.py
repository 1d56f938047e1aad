"""Taylor coefficients of a tensor-valued function of one number, by nested forward differentiation."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp

Curve = Callable[[Tensor], Tensor]


def taylor_coefficients(curve: Curve, order: int) -> list[Tensor]:
    """c₀, …, c_order with curve(x) = Σ cₚ xᵖ near x = 0; exact up to rounding, at 2^order evaluations.

    >>> [round(c.item(), 3) for c in taylor_coefficients(torch.exp, 3)]
    [1.0, 1.0, 0.5, 0.167]
    """
    derivatives: Callable[[Tensor], tuple[Tensor, ...]] = lambda x: (curve(x),)  # noqa: E731
    for _ in range(order):
        derivatives = _with_one_more(derivatives)
    at_zero = derivatives(torch.zeros((), dtype=torch.float64))
    return [value / math.factorial(p) for p, value in enumerate(at_zero)]


def _with_one_more(derivatives: Callable[[Tensor], tuple[Tensor, ...]]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    def longer(x: Tensor) -> tuple[Tensor, ...]:
        found = jvp(derivatives, (x,), (torch.ones_like(x),))
        return (*found[0], found[1][-1])

    return longer
