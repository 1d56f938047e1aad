"""The update maps of known methods, as `modified_flow` takes them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from tacit.problem import Problem
from tacit.theory.iterates import sgd_rule
from tacit.theory.landscape import Landscape, view
from tacit.theory.logarithm import Update
from tacit.theory.memory import MemoryMethod
from tacit.theory.orders import orders_of, steps_of


def gd_update(problem: Problem | Landscape, *, inner_steps: int = 1) -> Update:
    """ω − ε ∇C(ω); with inner steps, n steps of ε/n."""
    scape, _ = view(problem)

    def update(w: Tensor, rate: Tensor) -> Tensor:
        for _ in range(inner_steps):
            w = w - rate / inner_steps * scape.gradient(w)
        return w

    return update


def sgd_epoch_update(problem: Problem | Landscape, *, order: tuple[int, ...], inner_steps: int = 1) -> Update:
    """One epoch of SGD in one order, as one map; its duration is m."""
    scape, _ = view(problem)
    rule = sgd_rule(scape, inner_steps=inner_steps)

    def update(w: Tensor, rate: Tensor) -> Tensor:
        for k in order:
            w = rule(w, scape.batches[k], rate)
        return w

    return update


def mean_sgd_epoch_update(problem: Problem | Landscape, *, inner_steps: int = 1) -> Update:
    """One epoch of SGD averaged over all orders, as one map; its duration is m."""
    scape, _ = view(problem)
    steps = steps_of(scape, orders_of(scape.batches_per_epoch).rows)
    rule = sgd_rule(scape, inner_steps=inner_steps)

    def update(w: Tensor, rate: Tensor) -> Tensor:
        points = w.expand(len(steps[0]), *w.shape)
        for examples in steps:
            points = vmap(rule, (0, 0, None))(points, examples, rate)
        return points.mean(0)

    return update


def heavy_ball(problem: Problem | Landscape, *, momentum: float) -> MemoryMethod:
    """buffer ← β buffer + ∇C(ω), ω ← ω − ε buffer."""
    scape, _ = view(problem)

    def direction(w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        buffer = momentum * memory[0] + scape.gradient(w)
        return buffer, buffer.unsqueeze(0)

    return MemoryMethod(direction)


def nesterov(problem: Problem | Landscape, *, momentum: float) -> MemoryMethod:
    """buffer ← β buffer + g, ω ← ω − ε (g + β buffer), g = ∇C(ω): torch.optim.SGD with nesterov=True."""
    scape, _ = view(problem)

    def direction(w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        g = scape.gradient(w)
        buffer = momentum * memory[0] + g
        return g + momentum * buffer, buffer.unsqueeze(0)

    return MemoryMethod(direction)


def adam(
    problem: Problem | Landscape, *, beta1: float = 0.9, beta2: float = 0.999, delta: float = 1e-2
) -> MemoryMethod:
    """Adam with δ inside the root, ω ← ω − ε m/√(v + δ), in its steady state (no bias correction).

    Inside, because a root that reaches zero is not smooth, and then no order holds.
    """
    scape, _ = view(problem)

    def direction(w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        g = scape.gradient(w)
        first = beta1 * memory[0] + (1 - beta1) * g
        second = beta2 * memory[1] + (1 - beta2) * g.square()
        return first / torch.sqrt(second + delta), torch.stack([first, second])

    return MemoryMethod(direction, slots=2)
