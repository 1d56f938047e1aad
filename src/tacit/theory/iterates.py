"""Discrete iterates: one update of each method, and walks along many sequences of minibatches at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import grad, vmap

from tacit.problem import Problem
from tacit.theory.landscape import Landscape, view
from tacit.theory.modified_losses import quarter_of

Rule = Callable[[Tensor, Tensor, Tensor], Tensor]  # (state, examples of the minibatch, learning rate) -> next state


def sgd_rule(scape: Landscape, *, inner_steps: int = 1) -> Rule:
    """ω ← ω − α ∇Ĉ(ω), n times on the same minibatch, α = ε/n: SGD for n = 1, else n-step SGD (Eq. 33)."""

    def rule(w: Tensor, examples: Tensor, rate: Tensor) -> Tensor:
        for _ in range(inner_steps):
            w = w - rate / inner_steps * scape.gradient_of(w, examples)
        return w

    return rule


def penalized_rule(scape: Landscape, *, strength: float, relative: bool = False) -> Rule:
    """SGD on Ĉ + (λ/4)‖∇Ĉ‖², the explicit penalty; with `relative`, λ is `strength` times the learning rate."""

    def penalized(w: Tensor, examples: Tensor, rate: Tensor) -> Tensor:
        weight = strength * rate if relative else strength
        return scape.loss_of(w, examples) + weight * quarter_of(scape.gradient_of(w, examples).square().sum())

    return lambda w, examples, rate: w - rate * grad(penalized)(w, examples, rate)


def heavy_ball_rule(scape: Landscape, *, momentum: float) -> Rule:
    """buffer ← β buffer + ∇Ĉ(ω), ω ← ω − ε buffer, as torch.optim.SGD does. The state is the pair (ω, buffer)."""

    def rule(state: Tensor, examples: Tensor, rate: Tensor) -> Tensor:
        w, buffer = state
        buffer = momentum * buffer + scape.gradient_of(w, examples)
        return torch.stack([w - rate * buffer, buffer])

    return rule


def walk(scape: Landscape, rule: Rule, starts: Tensor, rates: Tensor, steps: Sequence[Tensor]) -> Tensor:
    """States after the steps, shape (rates, sequences, *state).

    `steps[i]` holds, for each sequence, the examples of its i-th minibatch: shape (sequences, minibatch size).
    `starts` has one state per rate.
    """
    states = starts.unsqueeze(1).expand(-1, len(steps[0]), *starts.shape[1:])
    for examples in steps:
        if scape.vectorizes:
            states = vmap(vmap(rule, (0, 0, None)), (0, None, 0))(states, examples, rates)
        else:
            rows = [
                torch.stack([rule(state, batch, rate) for state, batch in zip(row, examples, strict=True)])
                for row, rate in zip(states, rates, strict=True)
            ]
            states = torch.stack(rows)
    return states


def gradient_descent(
    problem: Problem | Landscape, *, learning_rate: float, steps: int, start: Tensor | None = None
) -> Tensor:
    """ω₀, …, ω_steps of full-batch gradient descent, as rows."""
    scape, w = view(problem, start)
    points = [w]
    for _ in range(steps):
        points.append(points[-1] - learning_rate * scape.gradient(points[-1]))
    return torch.stack(points)


def sgd(
    problem: Problem | Landscape,
    *,
    learning_rate: float,
    order: Sequence[int],
    inner_steps: int = 1,
    start: Tensor | None = None,
) -> Tensor:
    """ω₀, …, of SGD on minibatches in the given order (Eq. 12), as rows; an order may be longer than an epoch.

    A mirrored pair of epochs is `order=(*there, *reversed(there))`.
    """
    scape, w = view(problem, start)
    rule, rate = sgd_rule(scape, inner_steps=inner_steps), torch.tensor(learning_rate, dtype=torch.float64)
    points = [w]
    for k in order:
        points.append(rule(points[-1], scape.batches[k], rate))
    return torch.stack(points)
