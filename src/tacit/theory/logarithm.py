"""Automatic backward error analysis: the modified flow of any update map, to any order.

If one update is the map Φ_ε, its pull-back is exp(ε L_f̃), so the field is a logarithm. Written with forward
differences Δ of the iterates of the map itself,

    ε f̃(ω) = log(1 + Δ) Φⁱ_ε(ω) |ᵢ₌₀ = Σ_{j=1}^{K+1} (−1)^{j−1}/j · Δʲ Φⁱ_ε(ω) |ᵢ₌₀ + O(ε^{K+2}).

So: run the update K+1 times, carrying powers of ε, and read f₀, …, f_K off. No theory per method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from tacit._util.arguments import whole_number
from tacit._util.errors import InputError
from tacit.theory.flows import flow
from tacit.theory.jets import Progress, analytic_radius, interpolated_coefficients, taylor_coefficients
from tacit.theory.kinks import refuse_kinks
from tacit.theory.landscape import Field
from tacit.theory.memory import Readout, WithMemory, memory_corrections

EPSILON = torch.finfo(torch.float64).eps
HALVINGS = 60  # down to ε = 1e-18, below any rate that moves a float64
CHECKED_ORDER = 2  # beyond, rounding leaves too few rates to see a power
Update = Callable[[Tensor, Tensor], Tensor]  # (parameters, learning rate) -> parameters
Method = Literal["jets", "nodes"]


def transformed(w: Tensor) -> bool:
    """Whether a tensor is inside vmap or a derivative of torch.func, where its numbers cannot be looked at."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(w))


class ModifiedFlow:
    """f̃ = f₀ + ε f₁ + … + ε^K f_K as vector fields, for one update map. Made by `modified_flow`.

    `flow(w, ε)` is the field f̃ at w, `correction(k)` the field f_k alone, `integrate` the point it leads to.
    """

    def __init__(
        self,
        corrections: Callable[[Tensor], list[Tensor]],
        *,
        order: int,
        duration: float,
        check: Callable[[Tensor], None],
    ) -> None:
        self._corrections, self.order, self.duration = corrections, order, duration
        self._check, self._checked = check, False

    def check(self, w: Tensor) -> None:
        """Refuse, with the numbers, an update that this analysis does not cover; once, at the first point seen."""
        if not self._checked:
            point = w.detach().to(torch.float64)
            self._check(point)
            self._corrections(point)  # chooses the radius of `method="nodes"`
            self._checked = True

    def corrections(self, w: Tensor) -> list[Tensor]:
        """[f₀(w), …, f_K(w)]."""
        if not (self._checked or transformed(w)):
            self.check(w)
        return self._corrections(w)

    def correction(self, k: int) -> Field:
        """The field f_k: the paper's f for k = 0, and f₁ of Eq. 3 for k = 1."""
        if not 0 <= k <= self.order:
            raise InputError(f"correction({k}) of a flow of order {self.order}; expected 0 <= k <= {self.order}.")
        return lambda w: self.corrections(w)[k]

    def __call__(self, w: Tensor, learning_rate: float | Tensor) -> Tensor:
        """f̃(w) = Σₖ εᵏ f_k(w)                                                                    (Eq. 3)"""
        return sum((learning_rate**k * f for k, f in enumerate(self.corrections(w))), start=torch.zeros_like(w))

    def integrate(self, start: Tensor, *, learning_rate: float, updates: float, rtol: float = 1e-12) -> Tensor:
        """Where the flow is after the time of `updates` updates."""
        field = partial(self.__call__, learning_rate=learning_rate)
        return flow(field, start, time=updates * self.duration * learning_rate, rtol=rtol)


def modified_flow(
    update: Update | WithMemory,
    order: int = 1,
    *,
    duration: float = 1.0,
    method: Method = "jets",
    progress: Progress | None = None,
    readout: Readout | None = None,
) -> ModifiedFlow:
    """The modified flow of any smooth update, to any order.

    `update(w, learning_rate)` returns the next parameters and is the identity at learning rate zero; both arguments
    are float64 tensors, and the map must be differentiable by torch.func (use `landscape.gradient`, not .backward()).
    A method with memory is a `MemoryMethod`. One update lasts `duration` learning rates of time: m for an epoch.

    At the first point an update is refused that has a kink (sign, abs, max), that moves at learning rate zero, or whose
    derivatives are not those of its values (a .detach() inside, say): the iterates must leave the series as ε^(K+2).
    This is tried up to K = 2.

    `method="jets"` differentiates: exact, at 2^(K+1) times K+1 updates. `method="nodes"` reads the same numbers off
    values at K + 15 learning rates, negative ones too, in a small part of the time: f₀ has 12 digits then, f₂ about
    eight, f₄ three or more, which a flow multiplies by ε⁴. `progress(done, all)` is told after each value. Methods with
    memory are always differentiated. Series are asymptotic: more orders help only while ε is small.

    `readout` is the flow of another point than the iterate: `readout(w, memory)` of a method with memory (an average of
    the iterates that it keeps), `readout(w, learning_rate)` of a map (a mean over its next iterates, say). It must be w
    itself at learning rate zero. A method whose memory lasts and is read by no direction is refused without one.

    >>> gd = modified_flow(lambda w, rate: w - rate * w, order=2)          # gradient descent on ½w²
    >>> [round(f.item(), 4) for f in gd.corrections(torch.ones(1, dtype=torch.float64))]
    [-1.0, -0.5, -0.3333]
    """
    whole_number("order", order, at_least=0)
    if not (math.isfinite(duration) and duration > 0):
        raise InputError(f"duration={duration}; expected a finite positive number.")
    if method not in get_args(Method):
        raise InputError(f"method={method!r}; expected one of {', '.join(get_args(Method))}.")
    if isinstance(update, WithMemory):
        remembering = update
        terms = lambda w: memory_corrections(remembering, w, order=order, readout=readout)[0]  # noqa: E731
        check = partial(update.check, readout=readout)
    else:
        seen = Iterates(update, readout)
        check = partial(_check_map, seen, order)
        terms = partial(_map_corrections, seen, order)
        if method == "nodes":
            terms = _InterpolatedCorrections(seen, order, progress)
    return ModifiedFlow(lambda w: [term / duration for term in terms(w)], order=order, duration=duration, check=check)


class Iterates:
    """What is read of the iterates of a map, from the start x that is read as w: w = R(x), R(Φ(x)), R(Φ(Φ(x))), …"""

    def __init__(self, update: Update, readout: Readout | None = None) -> None:
        self.update, self.readout = update, readout

    def __call__(self, w: Tensor, rate: Tensor, count: int) -> list[Tensor]:
        if self.readout is None:
            points = [w]
            for _ in range(count):
                points.append(self.update(points[-1], rate))
            return points
        point = w
        for _ in range(count):  # every pass makes one more power of ε right
            point = point + (w - self.readout(point, rate))
        points = [self.readout(point, rate)]
        for _ in range(count):
            point = self.update(point, rate)
            points.append(self.readout(point, rate))
        return points


def _map_corrections(iterates: Iterates, order: int, w: Tensor) -> list[Tensor]:
    """duration·f₀, …, duration·f_K."""
    return taylor_coefficients(partial(_truncated_logarithm, iterates, order, w), order + 1)[1:]


class _InterpolatedCorrections:
    """The same from values at several learning rates, within a radius that is chosen at the first point."""

    def __init__(self, iterates: Iterates, order: int, progress: Progress | None) -> None:
        self.iterates, self.order, self.progress = iterates, order, progress
        self.radius: float | None = None

    def __call__(self, w: Tensor) -> list[Tensor]:
        curve = partial(_truncated_logarithm, self.iterates, self.order, w)
        if self.radius is None:
            if transformed(w):  # no numbers to look at: derivatives need no radius
                return taylor_coefficients(curve, self.order + 1)[1:]
            self.radius = analytic_radius(curve, self.order + 1, rounding=_rounding(self.order, w))
        found = interpolated_coefficients(curve, self.order + 1, radius=self.radius, progress=self.progress)
        return found[1:]


def interpolated_corrections(iterates: Iterates, order: int, w: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """duration·f₀, …, duration·f_K twice, from values within two radii: where they differ, they are rounding."""
    curve = partial(_truncated_logarithm, iterates, order, w)
    radius = analytic_radius(curve, order + 1, rounding=_rounding(order, w))
    one, other = (interpolated_coefficients(curve, order + 1, radius=r)[1:] for r in (radius, 0.7 * radius))
    return one, other


def _rounding(order: int, w: Tensor) -> float:
    """The rounding error of the truncated logarithm: iterates as large as w, weighed and added."""
    weights = sum(abs(float(weight)) for weight in logarithm_weights(order + 1))
    return max(4 * EPSILON * weights * w.norm().item(), 1e-300)


def _check_map(iterates: Iterates, order: int, w: Tensor) -> None:
    refuse_kinks(lambda: iterates(w, torch.full((), 0.01, dtype=torch.float64), 1))
    size, still = 1 + w.norm().item(), torch.zeros((), dtype=torch.float64)
    if iterates.readout is not None and not (iterates.readout(w, still) - w).norm().item() <= 1e-10 * size:
        raise InputError("at learning rate 0 the readout is another point than the parameters; expected the same one.")
    moved = (iterates.update(w, still) - w).norm().item()
    if not moved <= 1e-10 * size:
        raise InputError(
            f"the update moves the parameters by {moved:.2g} at learning rate 0; expected the identity there. "
            "Let every change be proportional to the learning rate, weight decay too."
        )
    tried = min(order, CHECKED_ORDER)
    seen = _leaving_order(iterates, tried, w)
    if seen is not None and not seen > tried + 1.5:
        raise InputError(
            f"the iterates leave the series of order {tried} as ε^{seen:.2g}; expected ε^{tried + 2}: torch does not "
            "see all derivatives of the update. Leave out .detach(), .item() and .data; use landscape.gradient."
        )


def _leaving_order(iterates: Iterates, order: int, w: Tensor) -> float | None:
    """The power of ε at which the logarithm of real updates departs from its series, where rounding still allows.

    Read from the two smallest rates, by halving, whose distance is above rounding. None when there are no two.
    """
    terms, weights = _map_corrections(iterates, order, w), logarithm_weights(order + 1)
    seen, before = None, math.nan
    for halvings in range(2, HALVINGS):
        rate = torch.tensor(0.5**halvings, dtype=torch.float64)
        parts = [-(rate ** (k + 1)) * term for k, term in enumerate(terms)]
        points = iterates(w, rate, order + 1)
        parts += [float(weight) * point for weight, point in zip(weights, points, strict=True)]
        distance = sum(parts, start=torch.zeros_like(w)).norm().item()
        rounding = 1e-12 * (1 + sum(part.norm().item() for part in parts))
        if distance <= rounding:
            return seen
        if math.isfinite(distance):  # the first rates may be far too large
            seen = math.log2(before / distance) if math.isfinite(before) else None
        before = distance
    return seen if math.isfinite(before) else math.nan


def _truncated_logarithm(iterates: Iterates, order: int, w: Tensor, rate: Tensor) -> Tensor:
    """Σᵢ aᵢ Φⁱ_ε(w), which is duration·ε·f̃ up to O(ε^{K+2})."""
    points, total = iterates(w, rate, order + 1), torch.zeros_like(w)
    for weight, point in zip(logarithm_weights(order + 1), points, strict=True):
        total = total + float(weight) * point
    return total


def logarithm_weights(differences: int) -> list[Fraction]:
    """aᵢ with Σⱼ (−1)^{j−1}/j Δʲ = Σᵢ aᵢ Φⁱ, j up to `differences`.

    >>> [str(a) for a in logarithm_weights(2)]
    ['-3/2', '2', '-1/2']
    """
    return [
        sum(
            (
                Fraction((-1) ** (j - 1), j) * (-1) ** (j - i) * math.comb(j, i)
                for j in range(max(i, 1), differences + 1)
            ),
            start=Fraction(0),
        )
        for i in range(differences + 1)
    ]


def difference_field(update: Update, order: int = 1, *, duration: float = 1.0) -> Callable[[Tensor, Tensor], Tensor]:
    """The same logarithm at a real learning rate, without any derivative: field(w, ε) = (1/ε) Σᵢ aᵢ Φⁱ_ε(w).

    It differs from the series by O(ε^{K+1}), so its flow has the same order, and it costs K+1 updates: the choice
    for large networks, and a check on the series where derivatives may be wrong. Kinks are refused here too.
    """
    checked = False

    def field(w: Tensor, rate: Tensor) -> Tensor:
        nonlocal checked
        if not checked:
            refuse_kinks(lambda: update(w, torch.as_tensor(rate)))
            checked = True
        return _truncated_logarithm(Iterates(update), order, w, torch.as_tensor(rate)) / (rate * duration)

    return field
