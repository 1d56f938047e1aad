"""The penalty's part of a finished gradient: G − g = (λ/2) H g, so ⟨g, H g⟩ and ‖(λ/2) H g‖ cost two inner products.

Where the objective has the loss with another weight than 1, `loss_weight`, G has g that many times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._C import DisableTorchFunction

SMALL = 2**16  # numbers: a gradient that is copied faster than it is worth calls of its own


class PenaltyPart:
    """Adds up both numbers over parameters, one at a time, as their gradients become known.

    Of K micro-batches in one pass it has the mean of ⟨gₖ, Hₖ gₖ⟩; the squares would cost products.
    """

    def __init__(self, strength: float, *, micro_batches: int | None = None) -> None:
        self.strength, self.micro_batches = strength, micro_batches
        self.along: list[Tensor] = []
        self.squares: list[Tensor] = []
        self.missing = False

    def add(self, gradient: Tensor, part: Tensor, *, times: float = 1.0) -> None:
        """One parameter's g, and its (λ/2) H g as `times` · `part`."""
        if gradient.is_sparse or part.is_sparse:
            self.missing = True
            return
        g, d = _vector(gradient), _vector(part)
        along, square = torch.dot(g, d), torch.dot(d, d)
        self.along.append(along if times == 1 else times * along)
        self.squares.append(square if times == 1 else times**2 * square)

    @property
    def curvature(self) -> Tensor | None:
        """⟨g, H g⟩."""
        factor = 2 / self.strength / (self.micro_batches or 1)
        return None if self._unknown else torch.stack(self.along).sum() * factor

    @property
    def squared_norm(self) -> Tensor | None:
        """‖(λ/2) H g‖²."""
        return None if self._unknown or self.micro_batches else torch.stack(self.squares).sum()

    @property
    def _unknown(self) -> bool:
        return self.missing or not self.along


@dataclass(frozen=True)
class FactorWatch:
    """Sees a linear layer's final factors. With rows X and D of the inner pass (D times `scale`), S and T of the outer:

        g = DᵀX,   G = SᵀX + DᵀT = factor · (g + (λ/2) H g),   (λ/2) H g = [S/factor − D; D]ᵀ [X; scale T/factor]

    Inner products of such products are sums over the rows' Gram matrices; no weight-sized matrix is formed.
    """

    part: PenaltyPart
    factor: float
    scale: float
    loss_weight: float = 1.0

    def see(self, inputs: Tensor, output_gradient: Tensor, final: Tensor, tangents: Tensor | None) -> None:
        X, D, S = _wide(inputs), _wide(output_gradient) / self.scale, _wide(final) / self.factor
        left, right = S - self.loss_weight * D, X
        if tangents is not None:
            left, right = torch.cat([left, D]), torch.cat([right, _wide(tangents) * (self.scale / self.factor)])
        self.part.along.append(torch.sum((D @ left.T) * (X @ right.T)))
        self.part.squares.append(torch.sum((left @ left.T) * (right @ right.T)))

    @staticmethod
    def is_cheap(count: int, fan_in: int, fan_out: int) -> bool:
        """Whether the Gram matrices of `count` rows cost next to nothing beside the layer's own products."""
        cost = 8 * count**2 * (fan_in + fan_out)
        return cost <= max(2**24, count * fan_in * fan_out // 2)


class RowWatch:
    """Sees the rows of one layer call while K micro-batches go through the outer pass at once; adds up ⟨gₖ, λ/2 Hₖ gₖ⟩.

    The layer's part of gₖ is G(X, D), bilinear, and the outer pass finds G(X, S) + G(T, D) = factor · (gₖ + λ/2 Hₖ gₖ)
    with rows S and T (`layer_use`). R = Σₖ‖gₖ‖² has P = ∂R/∂D = 2 ∂⟨G, G(X, ·)⟩ and Q = ∂R/∂X alike, so that

        ⟨gₖ, G(X, S) + G(T, D)⟩, summed over k, = ½ (⟨P, S⟩ + ⟨Q, T⟩)

    The outer pass computes P and Q anyway, in every form of the norm and for every number of uses, so this costs sums
    over rows. What arrives here is `share` times P and Q: the objective's derivative, not R's. D is `scale` times the
    loss's own.
    """

    def __init__(
        self, part: PenaltyPart, *, factor: float, share: float, scale: float, loss_weight: float = 1.0
    ) -> None:
        self.part, self.factor, self.share, self.scale, self.loss_weight = part, factor, share, scale, loss_weight
        self.expected: set[str] = set()
        self.found: dict[str, Tensor] = {}
        self.past = False

    def watched(self, rows: Tensor, name: str) -> Tensor:
        """The rows, "X" or "D", for the norm to depend on: what it hands back to them is kept."""
        if not rows.requires_grad:
            return rows
        self.expected.add(name)
        alias = rows.view_as(rows)
        alias.register_hook(lambda found: self.keep(name, found))
        return alias

    def keep(self, name: str, found: Tensor | None) -> None:
        if found is None:  # the direct form hands some of it back at a later visit
            return
        self.part.missing |= self.past
        known = self.found.get(name)
        self.found[name] = found if known is None else known + found

    def see(self, output_gradient: Tensor, final: Tensor, tangents: Tensor | None) -> None:
        """The last visit: D, S and T are known, and so are P and Q, unless autograd came by in another order."""
        found, self.found, self.past = self.found, {}, True
        with DisableTorchFunction(), torch.no_grad():
            for name, rows in (("D", final), ("X", tangents)):
                if name not in self.expected or rows is None:
                    continue
                if name not in found:
                    self.part.missing = True
                    continue
                wide = _vector(rows)
                if name == "D":  # without the plain part, before it is summed: it is far larger than the penalty's
                    wide = torch.add(wide, _vector(output_gradient), alpha=-self.factor * self.loss_weight / self.scale)
                along = torch.dot(_vector(found[name]), wide)
                self.part.along.append(along / (2 * self.share * self.scale * self.factor))


class GradientWatch:
    """Sees gradients on their way into `.grad`, before anybody's hooks, and compares G / `factor` with g."""

    def __init__(
        self, part: PenaltyPart, gradients: Mapping[Tensor, Tensor], factor: float, loss_weight: float = 1.0
    ) -> None:
        self.part, self.gradients, self.factor, self.loss_weight = part, gradients, factor, loss_weight

    def see(self, leaf: Tensor, found: Tensor) -> None:
        gradient = self.gradients.get(leaf)
        if gradient is None:
            return
        with DisableTorchFunction(), torch.no_grad():  # on small models each call that a mode handles would be felt
            whole = found if self.factor == 1 else found / self.factor
            self.part.add(gradient, torch.sub(whole.to(gradient.dtype), gradient, alpha=self.loss_weight))

    def see_all(self, leaves: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        """The same for many: small gradients as one vector, because on small models each call would be felt."""
        small = []
        with DisableTorchFunction(), torch.no_grad():
            for leaf, whole in zip(leaves, found, strict=True):
                gradient = self.gradients.get(leaf)
                if gradient is None or whole.numel() > SMALL or gradient.is_sparse or whole.is_sparse:
                    self.see(leaf, whole)
                else:
                    small.append((_vector(gradient), _vector(whole)))
            if small:
                plain, together = (torch.cat(column) for column in zip(*small, strict=True))
                self.part.add(plain, together.div_(self.factor).sub_(plain, alpha=self.loss_weight))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around the backward pass; without hooks where `.grad` is empty before and is G · factor itself after."""
        if all(leaf.is_leaf and leaf.grad is None and not _has_hooks(leaf) for leaf in self.gradients):
            yield
            leaves = [leaf for leaf in self.gradients if leaf.grad is not None]
            self.see_all(leaves, [leaf.grad for leaf in leaves])  # type: ignore[misc]
            return
        handles = []
        try:
            for leaf in self.gradients:
                users = list(leaf._backward_hooks or ())
                handles.append(leaf.register_hook(lambda found, leaf=leaf: self.see(leaf, found)))
                hooks = leaf._backward_hooks
                assert hooks is not None
                for key in users:  # behind ours
                    hooks[key] = hooks.pop(key)
            yield
        finally:
            for handle in handles:
                handle.remove()


def _has_hooks(leaf: Tensor) -> bool:
    return bool(leaf._backward_hooks or leaf._post_accumulate_grad_hooks)


def penalty_part(strength: float, gradients: Sequence[Tensor], products: Sequence[Tensor]) -> PenaltyPart:
    """Both numbers from g and H g, parameter by parameter."""
    part = PenaltyPart(strength)
    for gradient, product in zip(gradients, products, strict=True):
        part.add(gradient, product, times=strength / 2)
    return part


def _vector(tensor: Tensor) -> Tensor:
    return _wide(tensor.detach().reshape(-1))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
