"""The update maps of known methods, as `modified_flow` takes them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap

from tacit.problem import Problem
from tacit.theory.iterates import sgd_rule
from tacit.theory.landscape import Landscape, view
from tacit.theory.logarithm import Update
from tacit.theory.memory import MemoryEpoch, MemoryMethod, Preconditioner
from tacit.theory.orders import orders_of, steps_of

GradientRule = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # (gradient, parameters, memory)


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
    problem: Problem | Landscape,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    delta: float = 1e-2,
    weight_decay: float = 0.0,
) -> MemoryMethod:
    """Adam with δ inside the root, ω ← ω − ε m/√(v + δ), in its steady state (no bias correction).

    Inside, because a root that reaches zero is not smooth, and then no order holds. With `weight_decay` it is AdamW:
    the decay μω is added to the direction, not to the gradient.
    """
    scape, _ = view(problem)
    rule = adam_rule(beta1=beta1, beta2=beta2, delta=delta, weight_decay=weight_decay)
    return MemoryMethod(
        lambda w, memory: rule(scape.gradient(w), w, memory),
        slots=2,
        preconditioner=inverse_root(delta),
        weight_decay=weight_decay,
    )


def inverse_root(delta: float) -> Preconditioner:
    """P(g) = diag 1/√(g² + δ), that of RMSprop and Adam."""
    return lambda g, v: v / torch.sqrt(g.square() + delta)


def rmsprop(problem: Problem | Landscape, *, decay: float = 0.99, delta: float = 1e-2) -> MemoryMethod:
    """squares ← ρ squares + (1−ρ) ∇C², ω ← ω − ε ∇C/√(squares + δ), with δ inside the root as in `adam`."""
    scape, _ = view(problem)

    def direction(w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        g = scape.gradient(w)
        squares = decay * memory + (1 - decay) * g.square()
        return g / torch.sqrt(squares[0] + delta), squares

    return MemoryMethod(direction, preconditioner=inverse_root(delta))


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Muon's own: X ← aX + bXXᵀX + c(XXᵀ)²X drives singular values towards one


def muon(
    problem: Problem | Landscape,
    *,
    momentum: float = 0.95,
    steps: int = 5,
    delta: float = 1e-2,
    coefficients: tuple[float, float, float] = NEWTON_SCHULZ,
) -> MemoryMethod:
    """buffer ← β buffer + (1−β) ∇C, and ω ← ω − ε NewtonSchulz(buffer), each matrix by itself.

    Singular values are divided by √(‖buffer‖² + δ) first. A vector is a matrix of one row. Without Nesterov's momentum.
    """
    scape, _ = view(problem)
    orthogonalized = newton_schulz(scape, steps=steps, delta=delta, coefficients=coefficients)

    def direction(w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        buffer = momentum * memory + (1 - momentum) * scape.gradient(w)
        return orthogonalized(buffer[0], buffer[0]), buffer

    return MemoryMethod(direction, preconditioner=orthogonalized)


def newton_schulz(
    problem: Problem | Landscape, *, steps: int = 5, delta: float = 1e-2, coefficients: tuple[float, float, float]
) -> Preconditioner:
    """P(G) of Muon: a polynomial in GGᵀ, so that P(G) G is G with its singular values driven towards one."""
    scape, _ = view(problem)
    shapes = [tuple(value.shape) for value in scape.problem.parameters.values()]
    sizes = [value.numel() for value in scape.problem.parameters.values()]
    a, b, c = coefficients

    def apply(g: Tensor, v: Tensor) -> Tensor:
        made = []
        for shape, own, other in zip(shapes, g.split(sizes), v.split(sizes), strict=True):
            rows = shape[0] if len(shape) > 1 else 1
            size = torch.sqrt(own.square().sum() + delta)
            x, y = own.reshape(rows, -1) / size, other.reshape(rows, -1) / size
            for _ in range(steps):
                square = x @ x.T
                mixed = b * square + c * square @ square
                x, y = a * x + mixed @ x, a * y + mixed @ y
            made.append(y.reshape(-1))
        return torch.cat(made)

    return apply


def lookahead(problem: Problem | Landscape, *, steps: int = 5, pull: float = 0.5) -> Update:
    """Lookahead: after k steps of gradient descent, ω ← ω + α (where they led − ω). One update lasts k α ε."""
    scape, _ = view(problem)

    def update(w: Tensor, rate: Tensor) -> Tensor:
        fast = w
        for _ in range(steps):
            fast = fast - rate * scape.gradient(fast)
        return w + pull * (fast - w)

    return update


def averaged_gd(problem: Problem | Landscape, *, keep: float = 0.9) -> MemoryMethod:
    """Gradient descent that returns the exponential moving average of its iterates: average ← κ average + (1−κ) ω."""
    scape, _ = view(problem)

    def direction(w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return scape.gradient(w), keep * memory + (1 - keep) * w

    return MemoryMethod(direction, readout=lambda w, memory: memory[0])


def schedule_free(problem: Problem | Landscape, *, beta: float = 0.9, weight: float = 0.1) -> MemoryMethod:
    """x ← (1−c) x + c z, z ← z − ε ∇C((1−β) z + β x): schedule-free SGD (Defazio et al., 2024) with a constant c.

    It returns x. In the method itself c = 1/t: x is the mean of all z so far, whose age grows without end. A constant c
    is that method around the step t = 1/c.
    """
    scape, _ = view(problem)

    def direction(z: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        x = (1 - weight) * memory + weight * z
        return scape.gradient((1 - beta) * z + beta * x[0]), x

    return MemoryMethod(direction, readout=lambda z, memory: memory[0])


def adam_rule(*, beta1: float, beta2: float, delta: float, weight_decay: float = 0.0) -> GradientRule:
    """(gradient, parameters, memory) ↦ (direction, new memory) of Adam, or of AdamW with a weight decay."""

    def rule(g: Tensor, w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        first = beta1 * memory[0] + (1 - beta1) * g
        second = beta2 * memory[1] + (1 - beta2) * g.square()
        return first / torch.sqrt(second + delta) + weight_decay * w, torch.stack([first, second])

    return rule


def mean_epoch(problem: Problem | Landscape, rule: GradientRule, *, slots: int) -> MemoryEpoch:
    """One epoch of minibatches, averaged over all their orders, as one step of a method with memory.

    Its duration is m. The mean is over the parameters and the memory after the epoch, from one common start.
    """
    scape, _ = view(problem)
    examples = torch.stack(steps_of(scape, orders_of(scape.batches_per_epoch).rows), dim=1)  # (orders, m, B)

    def direction(w: Tensor, memory: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        def one_order(batches: Tensor) -> Tensor:
            moved, kept = torch.zeros_like(w), memory
            for batch in batches:
                point = w - rate * moved
                step, kept = rule(scape.gradient_of(point, batch), point, kept)
                moved = moved + step
            return torch.cat([moved.unsqueeze(0), kept])

        mean = scape.map(one_order, examples).mean(0)
        return mean[0], mean[1:]

    return MemoryEpoch(direction, slots=slots)


def smooth_lion(
    problem: Problem | Landscape, *, beta1: float = 0.9, beta2: float = 0.99, delta: float = 1e-2
) -> MemoryMethod:
    """Lion with c/√(c² + δ) in place of the sign of c = β₁ m + (1−β₁) ∇C; then m ← β₂ m + (1−β₂) ∇C."""
    scape, _ = view(problem)

    def direction(w: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        g = scape.gradient(w)
        mixed = beta1 * memory[0] + (1 - beta1) * g
        return mixed / torch.sqrt(mixed.square() + delta), beta2 * memory + (1 - beta2) * g

    return MemoryMethod(direction, preconditioner=inverse_root(delta))


def sam(problem: Problem | Landscape, *, radius: float = 0.05) -> Update:
    """Sharpness-aware minimization: ω − ε ∇C(ω + ρ ∇C/‖∇C‖), its radius ρ independent of ε."""
    scape, _ = view(problem)

    def update(w: Tensor, rate: Tensor) -> Tensor:
        g = scape.gradient(w)
        return w - rate * scape.gradient(w + radius * g / g.norm())

    return update


def shrinking_sam(problem: Problem | Landscape, *, ratio: float = 1.0) -> Update:
    """ω − ε ∇C(ω + r ε ∇C): its radius shrinks with ε, so that its modified loss is C + ε(¼ + r/2)‖∇C‖²."""
    scape, _ = view(problem)
    return lambda w, rate: w - rate * scape.gradient(w + ratio * rate * scape.gradient(w))


def normalized_gd(problem: Problem | Landscape) -> Update:
    """ω − ε ∇C/‖∇C‖."""
    scape, _ = view(problem)

    def update(w: Tensor, rate: Tensor) -> Tensor:
        g = scape.gradient(w)
        return w - rate * g / g.norm()

    return update


def extragradient(problem: Problem | Landscape) -> Update:
    """ω − ε ∇C(ω − ε ∇C(ω)): the gradient of a look-ahead."""
    scape, _ = view(problem)
    return lambda w, rate: w - rate * scape.gradient(w - rate * scape.gradient(w))


def runge_kutta(problem: Problem | Landscape) -> Update:
    """The classical method of order four: f₁ = f₂ = f₃ = 0."""
    scape, _ = view(problem)

    def update(w: Tensor, rate: Tensor) -> Tensor:
        a = -scape.gradient(w)
        b = -scape.gradient(w + rate / 2 * a)
        c = -scape.gradient(w + rate / 2 * b)
        d = -scape.gradient(w + rate * c)
        return w + rate / 6 * (a + 2 * b + 2 * c + d)

    return update


def mean_adam_epoch(
    problem: Problem | Landscape,
    *,
    beta1: float = 0.5,
    beta2: float = 0.6,
    delta: float = 0.1,
    weight_decay: float = 0.0,
) -> MemoryEpoch:
    """One epoch of Adam on minibatches, or of AdamW with a weight decay, averaged over all their orders."""
    rule = adam_rule(beta1=beta1, beta2=beta2, delta=delta, weight_decay=weight_decay)
    return mean_epoch(problem, rule, slots=2)
