"""Curvature times gradient from two gradients: H g ≈ (∇Ĉ(ω + s g) − ∇Ĉ(ω)) / s. Units keep their side of kinks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn

from tacit._util.errors import InputError
from tacit._util.graph import leaf_uses
from tacit._util.tree import real, total
from tacit.layers.modes import modes_on
from tacit.layers.penalty_part import PenaltyPart, penalty_part
from tacit.penalty.methods.kinks import Kinks
from tacit.penalty.objective import Closure, Objective, Outcome, gradients_of
from tacit.penalty.surroundings.refusals import NOTHING_REACHED
from tacit.penalty.surroundings.state import RandomState, moved, second_pass


class Views:
    """First-pass gradients of one or two closures, and gradients at moved parameters on request."""

    def __init__(self, objective: Objective, *, replay_kinks: bool = False) -> None:
        self.objective = objective
        self.kinks = [Kinks() for _ in objective.closures] if replay_kinks else []
        self.parameters = list(objective.parameters.values())
        self.starts: list[RandomState] = []
        self.losses: list[Tensor] = []
        for number, closure in enumerate(objective.closures):
            self.starts.append(RandomState.now(objective.model, objective.generators))
            with self.kinks[number].record() if replay_kinks else nullcontext():
                self.losses.append(objective.loss(closure))
        leaves = {id(leaf): leaf for loss in self.losses for leaf in leaf_uses(loss)}
        self.leaves: list[Tensor] = list(leaves.values())
        # The last view first, as one backward pass of the mean of both losses visits them.
        self.gradients = [self._gradient(loss) for loss in reversed(self.losses)][::-1]
        positions = {id(leaf): number for number, leaf in enumerate(self.leaves)}
        # The norm's direction: parameters that the loss does not reach stay where they are.
        self.reached = [parameter for parameter in self.parameters if id(parameter) in positions]
        if not self.reached:
            raise InputError(NOTHING_REACHED)
        self.directions = [[g[positions[id(parameter)]] for parameter in self.reached] for g in self.gradients]
        self._inner_product: Tensor | None = None
        if objective.mean is not None:
            self._take_means(objective.mean, positions)

    def _take_means(self, mean: Callable[[Sequence[Tensor]], list[Tensor]], positions: dict[int, int]) -> None:
        """Directions become means over workers; what this worker's loss does not reach has no effect on it."""
        whole = [
            [g[positions[id(p)]] if id(p) in positions else torch.zeros_like(p) for p in self.parameters]
            for g in self.gradients
        ]
        means = [mean(gradients) for gradients in whole]
        self._inner_product = total((real(a) * real(b)).sum() for a, b in zip(means[0], means[-1], strict=True))
        self.directions = [
            [part for part, parameter in zip(parts, self.parameters, strict=True) if id(parameter) in positions]
            for parts in means
        ]

    def _gradient(self, loss: Tensor, *, first: Sequence[Tensor] | None = None) -> list[Tensor]:
        """The gradient for every leaf of the first pass; `first` are those found there, when this is a later one."""
        scaled = loss if self.objective.scale == 1 else self.objective.scale * loss
        of_leaves = gradients_of(scaled, self.leaves)
        if any(gradient is not None and gradient.is_sparse for gradient in of_leaves):
            raise InputError(
                "a parameter has a sparse gradient; this method needs dense ones. Use sparse=False or method='gram'."
            )
        gradients = []
        for number, (leaf, gradient) in enumerate(zip(self.leaves, of_leaves, strict=True)):
            if gradient is not None:
                gradients.append(gradient if self.objective.scale == 1 else gradient / self.objective.scale)
            elif first is not None and not isinstance(leaf, nn.Parameter):
                # A leaf that the closure makes anew in every pass, such as embeddings made to require a gradient.
                gradients.append(first[number].clone())
            else:
                gradients.append(torch.zeros_like(leaf))
        return gradients

    # -- what differs where a worker holds a shard of every parameter (`shards`) ------------------------------------
    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """The length of one vector in parts."""
        return torch.stack(torch._foreach_norm(list(tensors))).norm()

    def parameter_norm(self) -> float:
        return float(self.norm([parameter.detach() for parameter in self.reached]))

    def moved(self, direction: Sequence[Tensor], distance: float) -> AbstractContextManager[None]:
        return moved(self.reached, direction, distance)

    def deliver(self, results: list[Tensor]) -> None:
        with modes_on():
            (self.objective.deliver or torch.autograd.backward)(self.leaves, results)

    # -----------------------------------------------------------------------------------------------------------------
    def loss(self) -> Tensor:
        return torch.stack([loss.detach() for loss in self.losses]).mean()

    def inner_product(self) -> Tensor:
        """⟨∇Ĉᵃ, ∇Ĉᵇ⟩, which is ‖∇Ĉ‖² for one view; of the mean gradients where the objective has a mean."""
        if self._inner_product is not None:
            return self._inner_product
        if len(self.directions) == 1:
            return self.lengths[0].square()
        return total((real(a) * real(b)).sum() for a, b in zip(*self.directions, strict=True))

    @cached_property
    def lengths(self) -> list[Tensor]:
        return [self.norm(direction) for direction in self.directions]

    @cached_property
    def direction_norms(self) -> list[float]:
        """The lengths as numbers, read from the device once."""
        return torch.stack(self.lengths).tolist()

    def curvature_products(self, distances: Sequence[float], *, central: bool) -> list[Tensor]:
        """H g for one view; ½(Hᵃgᵇ + Hᵇgᵃ) for two; each along the other view's gradient, moved by distance · g."""
        products: list[list[Tensor]] = []
        for number, closure in enumerate(self.objective.closures):
            other = (number + 1) % len(self.objective.closures)
            ahead = self._gradient_at(closure, number, other, distances[other])
            behind = self._gradient_at(closure, number, other, -distances[other]) if central else self.gradients[number]
            width = 2 * distances[other] if central else distances[other]
            torch._foreach_sub_(ahead, behind)  # in place: on a wide model a temporary costs as much as a layer
            torch._foreach_div_(ahead, width * len(self.objective.closures))
            products.append(ahead)
        for more in products[1:]:
            torch._foreach_add_(products[0], more)
        return products[0]

    def relative_error(self, products: Sequence[Tensor], distances: Sequence[float], *, central: bool) -> float:
        """An estimate of the products' relative error, from differences on both sides of ω at s and at s/2.

        With D(s) the forward difference and D(−s) the one backwards: halving s halves a truncation error and doubles
        that of rounding, so it shows both. 2(D(s/2) − D(−s/2)) − (D(s) − D(−s)) vanishes for smooth functions and shows
        kinks that lie on one side. A function with kinks everywhere looks smooth from any distance: see `kinks`.
        """
        halves = [distance / 2 for distance in distances]
        ahead, behind = (self.curvature_products(half, central=False) for half in (halves, [-h for h in halves]))
        half = [(a + b) / 2 for a, b in zip(ahead, behind, strict=True)] if central else ahead
        apart = self.norm([a - b for a, b in zip(products, half, strict=True)])
        # Where the difference is mostly 1/s times a jump, only its extrapolation has the size of the product itself.
        extrapolated = self.norm([2 * a - b for a, b in zip(products, half, strict=True)])
        size = float(min(self.norm(products), self.norm(half), extrapolated))
        asymmetry = [2 * (a - b) for a, b in zip(ahead, behind, strict=True)]
        del ahead, behind, half
        for sign in (-1, 1):
            signed = [sign * distance for distance in distances]
            torch._foreach_add_(asymmetry, self.curvature_products(signed, central=False), alpha=sign * -1)
        # Twice the difference is the error to leading order; 3 leaves room for the next.
        largest = max(3 * float(apart), float(self.norm(asymmetry)) / 2)
        if size > 0:
            return largest / size
        # Both points round to the same numbers where a pass is less precise than the parameters.
        return math.inf if largest > 0 or self.precision > self._parameter_precision else 0.0

    @property
    def _parameter_precision(self) -> float:
        return max(torch.finfo(parameter.dtype).eps for parameter in self.reached)

    @property
    def precision(self) -> float:
        """The rounding unit of the least precise numbers: those of parameters, or of results seen in the first pass."""
        return max([self._parameter_precision, *(kinks.precision for kinks in self.kinks)])

    def _gradient_at(self, closure: Closure, number: int, other: int, distance: float) -> list[Tensor]:
        objective = self.objective
        again = second_pass(objective.model, self.starts[number], objective.generators)
        replayed = self.kinks[number].replay() if self.kinks else nullcontext()
        with again, self.moved(self.directions[other], distance):
            with replayed:
                loss = objective.loss(closure)
            return self._gradient(loss, first=self.gradients[number])

    def part(self, products: Sequence[Tensor]) -> PenaltyPart | None:
        """The penalty's part of the gradient, over the parameters in the norm; before `finish` uses up `products`."""
        if len(self.losses) > 1 or self.objective.mean is not None:
            return None
        positions = {id(leaf): number for number, leaf in enumerate(self.leaves)}
        chosen = [products[positions[id(parameter)]] for parameter in self.reached]
        collect = self.objective.collect
        if collect is not None:
            for parameter, gradient, product in zip(self.reached, self.directions[0], chosen, strict=True):
                collect(parameter, gradient, self.objective.strength / 2 * product)
        return penalty_part(self.objective.strength, self.directions[0], chosen)

    def finish(self, products: Sequence[Tensor]) -> None:
        """Add weight · scale · (∇Ĉ + (λ/2) H g) to `.grad` through autograd, so that hooks fire; uses up `products`."""
        results = list(products)
        torch._foreach_mul_(results, self.objective.strength / 2)
        for gradients in self.gradients:
            torch._foreach_add_(results, gradients, alpha=self.objective.loss_weight / len(self.gradients))
        factor = self.objective.weight * self.objective.scale
        if factor != 1:
            torch._foreach_mul_(results, factor)
        self.deliver(results)


def estimate(views: Views, distances_of: Callable[[Views], list[float]], *, central: bool) -> Outcome:
    """One step with distances from `distances_of(views)`, with the error estimated when the objective asks for it."""
    objective = views.objective
    norm = views.inner_product()
    lengths = views.direction_norms
    if not all(math.isfinite(length) for length in lengths):
        # Half precision overflowed, or the run has diverged: there is no direction, and no gradient.
        views.finish([torch.full_like(gradient, math.nan) for gradient in views.gradients[0]])
        return Outcome(views.loss(), norm)
    if min(lengths, default=0.0) == 0.0:  # a stationary point: nothing to penalise, no direction
        views.finish([torch.zeros_like(gradient) for gradient in views.gradients[0]])
        return Outcome(views.loss(), norm, 0.0)
    distances = distances_of(views)
    products = views.curvature_products(distances, central=central)
    error = views.relative_error(products, distances, central=central) if objective.check_error else None
    if error is not None and objective.largest is not None:
        error = objective.largest(error)
    delivered = error is None or objective.tolerance is None or error <= objective.tolerance
    part = None
    if delivered:
        part = views.part(products)
        views.finish(products)
    return Outcome(views.loss(), norm, error, delivered=delivered, part=part)
