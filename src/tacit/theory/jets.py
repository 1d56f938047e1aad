"""Taylor coefficients of a tensor-valued function of one number: by nested forward differentiation, or from values.

Nested differentiation is exact up to rounding and costs 2^order evaluations, each slower than the last. Values at a
dozen nodes cost a dozen evaluations, whatever the order, but the p-th coefficient carries rounding divided by radiusᵖ:
enough for a flow, which multiplies it by εᵖ again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp, vmap

from tacit._util.errors import InputError

Curve = Callable[[Tensor], Tensor]
Progress = Callable[[int, int], None]  # (values done, values in all)
SPARE_NODES = 14  # beyond the order: the interpolation error falls by a factor of ten or so with each
CURVED = 0.5  # the other parts of the curve beside the linear one, at twice the radius: well inside its convergence
RADII = [2.0**-k for k in range(-10, 60)]


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


def interpolated_coefficients(
    curve: Curve, order: int, *, radius: float, progress: Progress | None = None
) -> list[Tensor]:
    """c₀, …, c_order from the polynomial through the curve's values at Chebyshev nodes in [−radius, radius].

    With `progress` the values are computed one by one, and it is told after each.

    >>> [round(c.item(), 3) for c in interpolated_coefficients(torch.exp, 3, radius=0.2)]
    [1.0, 1.0, 0.5, 0.167]
    """
    count = order + SPARE_NODES
    values = _values(curve, radius * _nodes(count), progress)
    monomials = _to_monomials(count)[: order + 1]
    scale = torch.tensor([radius**-p for p in range(order + 1)], dtype=torch.float64)
    return list(torch.tensordot(scale[:, None] * monomials, values, 1))


def analytic_radius(curve: Curve, order: int, *, rounding: float) -> float:
    """The largest power of two inside which a polynomial through the nodes says all that rounding lets be said, halved.

    `rounding` is the size of the rounding errors in the curve's values. Halved, because the same radius is used at
    neighbouring points.
    """
    count = order + SPARE_NODES
    for radius in RADII:
        values = _values(curve, radius * _nodes(count), None).reshape(count, -1)
        if not torch.isfinite(values).all():
            continue
        sizes = (_to_chebyshev(count) @ values).norm(dim=1).tolist()
        if max(sizes[-3:]) <= rounding and max(sizes[2:]) <= max(CURVED * sizes[1], rounding):
            return radius / 2
    raise InputError(
        "the update is not a smooth function of the learning rate near 0; expected a map that torch can follow there."
    )


def _values(curve: Curve, places: Tensor, progress: Progress | None) -> Tensor:
    if progress is None:
        return vmap(curve)(places)
    rows = []
    for place in places:
        rows.append(curve(place))
        progress(len(rows), len(places))
    return torch.stack(rows)


def _nodes(count: int) -> Tensor:
    return torch.cos(math.pi * (torch.arange(count, dtype=torch.float64) + 0.5) / count)


@cache
def _to_chebyshev(count: int) -> Tensor:
    """Row p gives the coefficient of the p-th Chebyshev polynomial from values at the nodes."""
    p, j = torch.arange(count, dtype=torch.float64)[:, None], torch.arange(count, dtype=torch.float64)
    weights = torch.full((count, 1), 2.0 / count, dtype=torch.float64)
    weights[0] /= 2
    return weights * torch.cos(math.pi * p * (j + 0.5) / count)


@cache
def _to_monomials(count: int) -> Tensor:
    """Row p gives the coefficient of x^p from values at the nodes."""
    powers = np.zeros((count, count))
    for p in range(count):
        own = np.polynomial.chebyshev.cheb2poly(np.eye(count)[p])
        powers[: len(own), p] = own
    return torch.from_numpy(powers) @ _to_chebyshev(count)
