"""Modified flows of methods with memory: momentum buffers, averages of squares, anything that forgets.

One step is ω ← ω − ε D(ω, M), M the memory just refreshed. After its transients the method runs along
W(s) = w + Σ_{p≥1} εᵖ Pₚ(s) with memory V(s) = Σ_{p≥0} εᵖ Qₚ(s), where Pₚ and Qₚ are polynomials in the step number s
and Pₚ(0) = 0. Order by order, with J the part of a memory that it keeps from one step to the next,

    Qₚ(s+1) − J Qₚ(s) = rₚ(s),      Pₚ₊₁(s+1) − Pₚ₊₁(s) = −[εᵖ] D,      fₚ = Pₚ₊₁'(0),

and rₚ needs only what is known: P up to p, Q below p. So f₀, f₁, … come one after the other, from one Taylor
expansion each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.func import jvp, vmap

from tacit._errors import InputError
from tacit.theory.jets import taylor_coefficients
from tacit.theory.kinks import refuse_kinks

DERIVATIVE_ERROR = 1e-3  # central differences are good to about 1e-8 on smooth methods
Direction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
RateDirection = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
AT_RATE_ZERO = torch.zeros((), dtype=torch.float64)


class WithMemory(ABC):
    """What `modified_flow` needs of a method with memory: (parameters, memory, ε) ↦ (D, the new memory)."""

    slots: int

    @abstractmethod
    def evaluate(self, w: Tensor, memory: Tensor, learning_rate: Tensor) -> tuple[Tensor, Tensor]:
        """(D, the new memory); the memory has shape (slots, d)."""

    def step(self, w: Tensor, memory: Tensor, learning_rate: Tensor) -> tuple[Tensor, Tensor]:
        direction, memory = self.evaluate(w, memory, learning_rate)
        return w - learning_rate * direction, memory

    def check(self, w: Tensor) -> None:
        """Refuse, with the numbers, a method that this analysis does not cover."""
        refuse_kinks(lambda: self.evaluate(w, torch.ones(self.slots, w.numel(), dtype=torch.float64), AT_RATE_ZERO))
        probe = torch.linspace(-1.0, 2.0, self.slots * w.numel(), dtype=torch.float64).reshape(self.slots, -1)
        steady, kept = _steady_memory(self, w)
        if not bool((kept.abs() < 1).all()):
            raise InputError(
                f"the memory keeps {kept.abs().max().item():.3g} of itself per step; expected less than 1."
            )
        scale = 1 + steady.abs().max().item()
        residual = (_at_rate_zero(self, w, steady)[1] - steady).abs().max().item() / scale
        tilted = jvp(lambda v: _at_rate_zero(self, w, v)[1], (steady,), (probe,))[1]
        mixing = (tilted - kept * probe).abs().max().item() / scale
        if max(residual, mixing) > 1e-9:
            raise InputError(
                f"entries of the memory mix or forget nonlinearly (residuals {residual:.2g}, {mixing:.2g}); expected "
                "each entry to be an average of its own past."
            )
        _check_derivatives(self, w, steady, probe)


@final
@dataclass(frozen=True)
class MemoryMethod(WithMemory):
    """`direction(w, memory)` returns (D, the new memory); one step is w − ε D.

    The memory has shape (slots, d). The learning rate stays out of it, as in torch.optim. Each entry must forget by
    itself and linearly, as averages do: `check` verifies this at a point.
    """

    direction: Direction
    slots: int = 1

    def evaluate(self, w: Tensor, memory: Tensor, learning_rate: Tensor) -> tuple[Tensor, Tensor]:
        return self.direction(w, memory)


@final
@dataclass(frozen=True)
class MemoryEpoch(WithMemory):
    """Several steps as one: `direction(w, memory, ε)` returns (Σ of their directions, the memory after the last).

    Inside an epoch the parameters move, so the sum depends on the learning rate. Made by `updates.mean_epoch`.
    """

    direction: RateDirection
    slots: int = 1

    def evaluate(self, w: Tensor, memory: Tensor, learning_rate: Tensor) -> tuple[Tensor, Tensor]:
        return self.direction(w, memory, learning_rate)


def _at_rate_zero(method: WithMemory, w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    return method.evaluate(w, memory, AT_RATE_ZERO)


def _check_derivatives(method: WithMemory, w: Tensor, memory: Tensor, probe: Tensor) -> None:
    """Automatic against numerical derivatives in (w, memory): a .detach() inside `direction` makes them differ."""
    along = torch.cos(torch.arange(w.numel(), dtype=torch.float64))

    def both(point: Tensor, held: Tensor) -> Tensor:
        return torch.cat([x.reshape(-1) for x in _at_rate_zero(method, point, held)])

    automatic = jvp(both, (w, memory), (along, probe))[1]
    step = 1e-5
    ahead, behind = (both(w + side * step * along, memory + side * step * probe) for side in (1, -1))
    numerical = (ahead - behind) / (2 * step)
    # Rounding of the values comes back divided by the step: a constant direction has no derivative to compare with.
    size = max(numerical.norm().item(), 1e-6 * ahead.norm().item(), 1e-300)
    error = (automatic - numerical).norm().item() / size
    if not error <= DERIVATIVE_ERROR:
        raise InputError(
            f"derivatives of the direction are {error:.0%} off those of its values; expected at most "
            f"{DERIVATIVE_ERROR:.1%}. Leave out .detach(), .item() and .data; use landscape.gradient."
        )


def memory_corrections(method: WithMemory, w: Tensor, *, order: int) -> tuple[list[Tensor], list[Tensor]]:
    """([f₀, …, f_K] at w, [Q₀(0), …, Q_K(0)]): the fields, and the memory that belongs to w on the slow manifold."""
    steady, kept = _steady_memory(method, w)
    path = [w.unsqueeze(0)]  # path[p][a] is the coefficient of s^a in Pₚ; P₀ is w itself
    memories: list[Tensor] = []
    for p in range(order + 1):
        if p == 0:
            memories, directions = [steady.unsqueeze(0)], _at_rate_zero(method, w, steady)[0].unsqueeze(0)
        else:
            directions, rests = _expand(method, path, memories, p)
            memories.append(_filter_polynomial(rests, kept))
            # Qₚ was missing from the expansion; at order p it enters linearly, through ∂D/∂(old memory) at the start.
            directions = directions + _through_memory(method, w, steady, memories[p])
        path.append(_sum_polynomial(-directions))
    return [polynomial[1] for polynomial in path[1:]], [polynomial[0] for polynomial in memories]


def slow_memory(method: WithMemory, w: Tensor, learning_rate: Tensor, *, order: int) -> Tensor:
    """The memory after transients, when the parameters are at w: Σₚ εᵖ Qₚ(0), up to O(ε^{order+1})."""
    _, memories = memory_corrections(method, w, order=order)
    return sum((learning_rate**p * memory for p, memory in enumerate(memories)), start=torch.zeros_like(memories[0]))


def _steady_memory(method: WithMemory, w: Tensor) -> tuple[Tensor, Tensor]:
    """Q₀, the fixed point of the memory at frozen w, and the kept fraction of each entry (the diagonal J)."""
    empty = torch.zeros(method.slots, w.numel(), dtype=torch.float64)
    found = jvp(lambda v: _at_rate_zero(method, w, v)[1], (empty,), (torch.ones_like(empty),))
    fresh, kept = found[0], found[1]
    return fresh / (1 - kept), kept


def _through_memory(method: WithMemory, w: Tensor, steady: Tensor, polynomial: Tensor) -> Tensor:
    return vmap(lambda v: jvp(lambda m: _at_rate_zero(method, w, m)[0], (steady,), (v,))[1])(polynomial)


def _expand(method: WithMemory, path: list[Tensor], memories: list[Tensor], p: int) -> tuple[Tensor, Tensor]:
    """[εᵖ] of (D, new memory) along the known part of the curves, as polynomials in s, from values at s = 0, …, p."""
    nodes = torch.arange(p + 1, dtype=torch.float64)

    def at_step(s: Tensor) -> Tensor:
        points, states = [_evaluate(c, s) for c in path], [_evaluate(c, s) for c in memories]

        def curve(rate: Tensor) -> Tensor:
            direction, memory = method.evaluate(_series(points, rate), _series(states, rate), rate)
            return torch.cat([direction.unsqueeze(0), memory])

        return taylor_coefficients(curve, p)[p]

    to_monomials = torch.linalg.inv(nodes.unsqueeze(1) ** torch.arange(p + 1))
    coefficients = torch.tensordot(to_monomials, vmap(at_step)(nodes), 1)
    return coefficients[:, 0], coefficients[:, 1:]


def _evaluate(coefficients: Tensor, s: Tensor) -> Tensor:
    powers = s ** torch.arange(len(coefficients))
    return torch.tensordot(powers, coefficients, 1)


def _series(terms: list[Tensor], rate: Tensor) -> Tensor:
    total = terms[-1]
    for term in reversed(terms[:-1]):
        total = term + rate * total
    return total


def _sum_polynomial(increments: Tensor) -> Tensor:
    """P with P(s+1) − P(s) = Σ increments[a] s^a and P(0) = 0."""
    degree = len(increments)
    found = [torch.zeros_like(increments[0])] * (degree + 1)
    for a in reversed(range(degree)):
        above = sum((math.comb(b, a) * found[b] for b in range(a + 2, degree + 1)), start=torch.zeros_like(found[0]))
        found[a + 1] = (increments[a] - above) / (a + 1)
    return torch.stack(found)


def _filter_polynomial(rests: Tensor, kept: Tensor) -> Tensor:
    """Q with Q(s+1) − kept·Q(s) = Σ rests[a] s^a: what is left of an average once its start is forgotten."""
    degree = len(rests) - 1
    found = [torch.zeros_like(rests[0])] * (degree + 1)
    for a in reversed(range(degree + 1)):
        above = sum((math.comb(b, a) * found[b] for b in range(a + 1, degree + 1)), start=torch.zeros_like(found[0]))
        found[a] = (rests[a] - above) / (1 - kept)
    return torch.stack(found)
