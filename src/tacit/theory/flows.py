"""Integrate a flow ω̇ = f(ω) to a requested tolerance: scipy's DOP853 in float64."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor
from torch.func import grad, vmap

from tacit._util.errors import InputError
from tacit.theory.landscape import Field

RateField = Callable[[Tensor, Tensor], Tensor]  # (w, learning rate) -> velocity
RTOL = 1e-12
ATOL = 1e-14  # orders are read off errors down to 1e-12: the integrator must stay below them


def flow(
    field: Field,
    start: Tensor,
    *,
    time: float,
    times: list[float] | None = None,
    rtol: float = RTOL,
    atol: float = ATOL,
) -> Tensor:
    """ω(time) on ω̇ = field(ω), ω(0) = start; with `times`, the stacked ω(t) at each of them.

    The start may have any shape: a stack of points is integrated as one system.

    >>> decayed = flow(lambda w: -w, torch.ones(1, dtype=torch.float64), time=1.0)
    >>> round(decayed.item(), 10) == round(float(np.exp(-1)), 10)
    True
    """
    if time < 0 or not np.isfinite(time):
        raise InputError(f"time={time}; expected a finite time of at least 0.")
    origin = start.detach().to(torch.float64)
    if times is not None and not all(0 <= t <= time for t in times):
        raise InputError(f"times={list(times)}; expected times between 0 and time={time}.")
    if times is not None and any(later < earlier for earlier, later in pairwise(times)):
        raise InputError(f"times={list(times)}; expected increasing times.")
    if time == 0:
        return origin if times is None else origin.expand(len(times), *origin.shape)

    def right_hand_side(_: float, y: np.ndarray) -> np.ndarray:
        return field(torch.from_numpy(y.copy()).reshape(origin.shape)).detach().numpy().reshape(-1)

    # One epoch is a short time, and an eighth-order step often covers it; a rejected try is cheap. Not so when many
    # times are wanted: then the interval is long.
    first = time if times is None else None
    solved = solve_ivp(
        right_hand_side,
        (0.0, time),
        origin.numpy().reshape(-1),
        method="DOP853",
        t_eval=times,
        rtol=rtol,
        atol=atol,
        first_step=first,
    )
    if not solved.success:
        raise InputError(f"the flow could not be integrated to time {time}: {solved.message} Try a shorter time.")
    points = torch.from_numpy(np.ascontiguousarray(solved.y.T)).reshape(-1, *origin.shape)
    return points[-1] if times is None else points


def gradient_flow_field(loss: Field) -> Field:
    """−∇loss: the field of gradient flow on any scalar function, a modified loss say."""
    descent = grad(loss)
    return lambda w: -descent(w)


def flow_at_rates(field: RateField, start: Tensor, rates: Tensor, *, updates: float, vectorize: bool = True) -> Tensor:
    """One flow per learning rate, all in one integration: ω(updates·ε) for each ε, stacked.

    `field(w, ε)` is the modified field. In the time s = t/ε all flows last equally long, dω/ds = ε f̃(ω; ε), so they
    are one system. `start` is one point, or one per rate.
    """
    starts = start.expand(len(rates), -1) if start.dim() == 1 else start

    check = getattr(field, "check", None)  # a ModifiedFlow cannot look at numbers inside vmap
    if check is not None:
        check(starts[0])

    def scaled(w: Tensor, rate: Tensor) -> Tensor:
        return rate * field(w, rate)

    def together(points: Tensor) -> Tensor:
        if vectorize:
            return vmap(scaled)(points, rates)
        return torch.stack([scaled(w, rate) for w, rate in zip(points, rates, strict=True)])

    return flow(together, starts, time=updates)
