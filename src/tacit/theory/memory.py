"""Modified flows of methods with memory: momentum buffers, averages of squares, anything that forgets.

One step is ω ← ω − ε D(ω, M), M the memory just refreshed. After its transients the method runs along
W(s) = w + Σ_{p≥1} εᵖ Pₚ(s) with memory V(s) = Σ_{p≥0} εᵖ Qₚ(s), where Pₚ and Qₚ are polynomials in the step number s
and Pₚ(0) = 0. Order by order, with J the part of a memory that it keeps from one step to the next,

    Qₚ(s+1) − J Qₚ(s) = rₚ(s),      Pₚ₊₁(s+1) − Pₚ₊₁(s) = −[εᵖ] D,      fₚ = Pₚ₊₁'(0),

and rₚ needs only what is known: P up to p, Q below p. So f₀, f₁, … follow one after the other, from one Taylor
expansion each.

A method may return another point than its iterate: Y = R(W, V), an average of the iterates say. Its path is the same
with other constants: Pₚ(0) is chosen so that Y(0) = w, and fₚ is the slope of [εᵖ⁺¹] Y at 0.
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

from tacit._util.errors import InputError
from tacit.theory.jets import taylor_coefficients
from tacit.theory.kinks import refuse_kinks

DERIVATIVE_ERROR = 1e-3  # central differences are good to about 1e-8 on smooth methods
Direction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Preconditioner = Callable[[Tensor, Tensor], Tensor]  # (gradient, vector) -> P(gradient) vector
Readout = Callable[[Tensor, Tensor], Tensor]  # (parameters, memory) -> the point that the method returns
RateDirection = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
AT_RATE_ZERO = torch.zeros((), dtype=torch.float64)


class WithMemory(ABC):
    """What `modified_flow` needs of a method with memory: (parameters, memory, ε) ↦ (D, the new memory)."""

    slots: int
    readout: Readout | None

    @abstractmethod
    def evaluate(self, w: Tensor, memory: Tensor, learning_rate: Tensor) -> tuple[Tensor, Tensor]:
        """(D, the new memory); the memory has shape (slots, d)."""

    def step(self, w: Tensor, memory: Tensor, learning_rate: Tensor) -> tuple[Tensor, Tensor]:
        direction, memory = self.evaluate(w, memory, learning_rate)
        return w - learning_rate * direction, memory

    def check(self, w: Tensor, readout: Readout | None = None) -> None:
        """Refuse, with the numbers, a method that this analysis does not cover, or whose answer could be another one.

        A memory that lasts (it keeps a part of itself) and that no direction reads is an average for somebody else's
        use. Unless a readout says which point is meant, it is refused. A memory that keeps nothing may go unread.
        """
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
        readout = self.readout if readout is None else readout
        if readout is None:
            _refuse_unread(self, w, steady, kept)
        else:
            _check_readout(self, w, steady, readout)


@final
@dataclass(frozen=True)
class MemoryMethod(WithMemory):
    """`direction(w, memory)` returns (D, the new memory); one step is w − ε D.

    The memory has shape (slots, d). The learning rate stays out of it, as in torch.optim. Each entry must forget by
    itself and linearly, as averages do: `check` verifies this at a point. `readout(w, memory)` is the point that the
    method returns where that is not w, an average of the iterates say; the memory is the one that was just stored.

    `preconditioner(g, v)` is P(g) v for a method whose direction is P(g) g + weight_decay · w where the gradient g does
    not change: `preconditioned_loss` asks with it for the losses behind a flow that has none.
    """

    direction: Direction
    slots: int = 1
    readout: Readout | None = None
    preconditioner: Preconditioner | None = None
    weight_decay: float = 0.0

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
    readout: Readout | None = None

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


def _refuse_unread(method: WithMemory, w: Tensor, steady: Tensor, kept: Tensor) -> None:
    # Beside the steady memory: where the gradient is zero, no direction changes with Adam's average of squares.
    beside = steady + 0.1 * (1 + steady.abs()) * torch.linspace(1.0, 2.0, w.numel(), dtype=torch.float64)
    for slot in range(method.slots):
        towards = torch.zeros_like(steady)
        towards[slot] = 1.0
        change = jvp(lambda m: _at_rate_zero(method, w, m)[0], (beside,), (towards,))[1]
        if bool((kept[slot] != 0).any()) and bool((change == 0).all()):
            raise InputError(
                f"memory {slot} lasts and no direction reads it, as with an average of the iterates; expected to be "
                f"told which point is meant: readout=lambda w, memory: memory[{slot}], or readout=lambda w, memory: w "
                "for the iterate."
            )


def _check_readout(method: WithMemory, w: Tensor, steady: Tensor, readout: Readout) -> None:
    refuse_kinks(lambda: readout(w, steady))
    read = readout(w, steady)
    if read.shape != w.shape or not (read - w).norm() <= 1e-10 * (1 + w.norm()):
        raise InputError(
            "at learning rate 0 the readout is another point than the parameters; expected the same one there: an "
            "average with weights that add up to 1."
        )


def memory_corrections(
    method: WithMemory, w: Tensor, *, order: int, readout: Readout | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """([f₀, …, f_K] at w, [Q₀(0), …, Q_K(0)]): the fields, and the memory that belongs to w on the slow manifold.

    With a readout w is the point that is read, and the fields are its own.
    """
    curve = slow_curve(method, w, order=order, readout=readout)
    return curve.fields, curve.memories


@dataclass(frozen=True)
class SlowCurve:
    """Fields at a point, and the state that belongs to it: parameters Σ εᵖ pointsₚ and memory Σ εᵖ memoriesₚ."""

    fields: list[Tensor]
    points: list[Tensor]
    memories: list[Tensor]


def slow_curve(method: WithMemory, w: Tensor, *, order: int, readout: Readout | None = None) -> SlowCurve:
    readout = method.readout if readout is None else readout
    steady, kept = _steady_memory(method, w)
    path = [w.unsqueeze(0)]  # path[p][a] is the coefficient of s^a in Pₚ; P₀ is w itself
    memories, fields = [steady.unsqueeze(0)], []
    directions = _at_rate_zero(method, w, steady)[0].unsqueeze(0)
    path.append(_sum_polynomial(-directions))
    for p in range(1, order + (1 if readout is None else 2)):
        directions, rests = _expand(method, path, memories, p)
        memories.append(_filter_polynomial(rests, kept))
        if readout is not None:
            read = _read(readout, path, memories, p)
            shift = -read[0]
            fields.append(read[1])
            path[p] = torch.cat([path[p][:1] + shift, path[p][1:]])
            # Shifted parameters shift the memory that belongs to them, and the direction.
            moved = jvp(lambda x: _steady_memory(method, x)[0], (w,), (shift,))[1]
            memories[p] = torch.cat([memories[p][:1] + moved, memories[p][1:]])
            turned = jvp(lambda x: _at_rate_zero(method, x, steady)[0], (w,), (shift,))[1]
            directions = torch.cat([directions[:1] + turned, directions[1:]])
        # Qₚ was missing from the expansion; at order p it enters linearly, through ∂D/∂(old memory) at the start.
        directions = directions + _through_memory(method, w, steady, memories[p])
        path.append(_sum_polynomial(-directions))
    fields = fields or [polynomial[1] for polynomial in path[1:]]
    points = [polynomial[0] for polynomial in path[: len(memories)]]
    return SlowCurve(fields, points, [polynomial[0] for polynomial in memories])


def _read(readout: Readout, path: list[Tensor], memories: list[Tensor], p: int) -> Tensor:
    """[εᵖ] of the point that is read along the curves, as a polynomial in s."""

    def at_step(s: Tensor) -> Tensor:
        points, states = [_evaluate(c, s) for c in path[: p + 1]], [_evaluate(c, s) for c in memories]
        return taylor_coefficients(lambda rate: readout(_series(points, rate), _series(states, rate)), p)[p]

    nodes = torch.arange(p + 1, dtype=torch.float64)
    return torch.tensordot(_to_monomials(nodes), vmap(at_step)(nodes), 1)


def slow_memory(method: WithMemory, w: Tensor, learning_rate: Tensor, *, order: int) -> Tensor:
    """The memory after transients, when the parameters (or what is read of them) are at w, up to O(ε^{order+1})."""
    return slow_state(method, w, learning_rate, order=order)[1]


def slow_state(
    method: WithMemory, w: Tensor, learning_rate: Tensor, *, order: int, readout: Readout | None = None
) -> tuple[Tensor, Tensor]:
    """(parameters, memory) after transients, when the point that is read is w, up to O(ε^{order+1})."""
    curve = slow_curve(method, w, order=order, readout=readout)
    return _series(curve.points, learning_rate), _series(curve.memories, learning_rate)


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

    coefficients = torch.tensordot(_to_monomials(nodes), vmap(at_step)(nodes), 1)
    return coefficients[:, 0], coefficients[:, 1:]


def _to_monomials(nodes: Tensor) -> Tensor:
    return torch.linalg.inv(nodes.unsqueeze(1) ** torch.arange(len(nodes)))


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
