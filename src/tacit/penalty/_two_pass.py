"""Curvature times gradient from two gradients: what `finite_difference` and `ascent` have in common.

    H g ≈ (∇Ĉ(ω + s g) − ∇Ĉ(ω)) / s

The two methods differ only in s. The error is estimated by halving s: with a leading error of first order (or of second
order, for central differences) the difference of the two estimates is at least half the error of the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tacit._errors import InputError
from tacit._graph import leaf_uses
from tacit._tree import total
from tacit.penalty._refusals import NOTHING_REACHED
from tacit.penalty._state import RandomState, moved, second_pass, without_hooks
from tacit.penalty._task import Closure, Outcome, Task


class Views:
    """First-pass gradients of one or two closures, and gradients at moved parameters on request."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.parameters = list(task.parameters.values())
        self.starts: list[RandomState] = []
        self.losses: list[Tensor] = []
        for closure in task.closures:
            self.starts.append(RandomState.now(task.model, task.generators))
            self.losses.append(task.loss(closure))
        leaves = {id(leaf): leaf for loss in self.losses for leaf in leaf_uses(loss)}
        self.leaves: list[Tensor] = list(leaves.values())
        self.gradients = [self._gradient(loss) for loss in self.losses]
        positions = {id(leaf): number for number, leaf in enumerate(self.leaves)}
        # The norm's direction: parameters that the loss does not reach stay where they are.
        self.reached = [parameter for parameter in self.parameters if id(parameter) in positions]
        if not self.reached:
            raise InputError(NOTHING_REACHED)
        self.directions = [[g[positions[id(parameter)]] for parameter in self.reached] for g in self.gradients]
        self._inner_product: Tensor | None = None
        if task.mean is not None:
            self._take_means(task.mean, positions)

    def _take_means(self, mean: Callable[[Sequence[Tensor]], list[Tensor]], positions: dict[int, int]) -> None:
        """Directions become means over workers; what this worker's loss does not reach has no effect on it."""
        whole = [
            [g[positions[id(p)]] if id(p) in positions else torch.zeros_like(p) for p in self.parameters]
            for g in self.gradients
        ]
        means = [mean(gradients) for gradients in whole]
        self._inner_product = total((a * b).sum() for a, b in zip(means[0], means[-1], strict=True))
        self.directions = [
            [part for part, parameter in zip(parts, self.parameters, strict=True) if id(parameter) in positions]
            for parts in means
        ]

    def _gradient(self, loss: Tensor) -> list[Tensor]:
        with without_hooks(self.leaves):
            found = torch.autograd.grad(self.task.scale * loss, self.leaves, allow_unused=True)
        if any(gradient is not None and gradient.is_sparse for gradient in found):
            raise InputError(
                "a parameter has a sparse gradient; this method needs dense ones. Use sparse=False or method='gram'."
            )
        gradients = [
            torch.zeros_like(leaf) if gradient is None else gradient
            for gradient, leaf in zip(found, self.leaves, strict=True)
        ]
        return gradients if self.task.scale == 1 else [gradient / self.task.scale for gradient in gradients]

    def loss(self) -> Tensor:
        return torch.stack([loss.detach() for loss in self.losses]).mean()

    def inner_product(self) -> Tensor:
        """⟨∇Ĉᵃ, ∇Ĉᵇ⟩, which is ‖∇Ĉ‖² for one view; of the mean gradients where the task has a mean."""
        if self._inner_product is not None:
            return self._inner_product
        if len(self.directions) == 1:
            return _norm(self.directions[0]).square()
        return total((a * b).sum() for a, b in zip(*self.directions, strict=True))

    def direction_norms(self) -> list[float]:
        return [float(_norm(direction)) for direction in self.directions]

    def curvature_products(self, distances: Sequence[float], *, central: bool) -> list[Tensor]:
        """H g for one view; ½(Hᵃgᵇ + Hᵇgᵃ) for two; each along the other view's gradient, moved by distance · g."""
        products: list[list[Tensor]] = []
        for number, closure in enumerate(self.task.closures):
            other = (number + 1) % len(self.task.closures)
            ahead = self._gradient_at(closure, number, other, distances[other])
            behind = self._gradient_at(closure, number, other, -distances[other]) if central else self.gradients[number]
            width = 2 * distances[other] if central else distances[other]
            torch._foreach_sub_(ahead, behind)  # in place: on a wide model a temporary costs as much as a layer
            torch._foreach_div_(ahead, width * len(self.task.closures))
            products.append(ahead)
        for more in products[1:]:
            torch._foreach_add_(products[0], more)
        return products[0]

    def _gradient_at(self, closure: Closure, number: int, other: int, distance: float) -> list[Tensor]:
        task = self.task
        again = second_pass(task.model, self.starts[number], task.generators)
        with again, moved(self.reached, self.directions[other], distance):
            return self._gradient(task.loss(closure))

    def finish(self, products: Sequence[Tensor]) -> None:
        """Add weight · scale · (∇Ĉ + (λ/2) H g) to `.grad` through autograd, so that hooks fire; uses up `products`."""
        results = list(products)
        torch._foreach_mul_(results, self.task.strength / 2)
        for gradients in self.gradients:
            torch._foreach_add_(results, gradients, alpha=1 / len(self.gradients))
        factor = self.task.weight * self.task.scale
        if factor != 1:
            torch._foreach_mul_(results, factor)
        (self.task.deliver or torch.autograd.backward)(self.leaves, results)


def estimate(task: Task, distances_of: Callable[[Views], list[float]], *, central: bool) -> Outcome:
    """One step with distances from `distances_of(views)`, with the error estimated when the task asks for it."""
    views = Views(task)
    norm = views.inner_product()
    lengths = views.direction_norms()
    if not all(math.isfinite(length) for length in lengths):  # half precision overflowed, or the run has diverged:
        views.finish([torch.full_like(leaf, math.nan) for leaf in views.leaves])  # nowhere to look, and no gradient
        return Outcome(views.loss(), norm)
    if min(lengths, default=0.0) == 0.0:  # a stationary point: nothing to penalise, no direction
        views.finish([torch.zeros_like(leaf) for leaf in views.leaves])
        return Outcome(views.loss(), norm, 0.0)
    distances = distances_of(views)
    products = views.curvature_products(distances, central=central)
    error = None
    if task.check_error:
        halved = views.curvature_products([distance / 2 for distance in distances], central=central)
        apart = float(_norm([a - b for a, b in zip(products, halved, strict=True)]))
        size = float(_norm(halved))
        error = 3 * apart / size if size > 0 else 0.0  # 2 to leading order; 3 leaves room for the next
    views.finish(products)
    return Outcome(views.loss(), norm, error)


def parameter_norm(parameters: Sequence[nn.Parameter]) -> float:
    return float(_norm([parameter.detach() for parameter in parameters]))


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(list(tensors))).norm()
