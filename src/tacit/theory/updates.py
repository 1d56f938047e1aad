"""The update maps of known methods, as `modified_flow` takes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.func import vmap

from tacit.problem import Problem
from tacit.theory.iterates import sgd_rule
from tacit.theory.landscape import Landscape, view
from tacit.theory.logarithm import Update
from tacit.theory.memory import MemoryEpoch, MemoryMethod, WithMemory
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
    return MemoryMethod(lambda w, memory: rule(scape.gradient(w), w, memory), slots=2)


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

    return MemoryMethod(direction)


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


# What `tacit verify --update NAME` takes. Memories are short (β = 0.5): the series of a long one converges later.
EXAMPLES: dict[str, Callable[[Landscape], Update | WithMemory]] = {
    "gd": gd_update,
    "heavy_ball": partial(heavy_ball, momentum=0.5),
    "nesterov": partial(nesterov, momentum=0.5),
    "adam": partial(adam, beta1=0.5, beta2=0.6, delta=0.1),
    "adamw": partial(adam, beta1=0.5, beta2=0.6, delta=0.1, weight_decay=0.3),
    "adam_over_orders": mean_adam_epoch,
    "adamw_over_orders": partial(mean_adam_epoch, weight_decay=0.3),
    "sam": sam,
    "shrinking_sam": shrinking_sam,
    "normalized_gd": normalized_gd,
    "smooth_lion": partial(smooth_lion, beta1=0.5, beta2=0.6, delta=0.1),
    "extragradient": extragradient,
    "runge_kutta": runge_kutta,
}
