"""The penalty's part of a finished gradient: G − g = (λ/2) H g, so ⟨g, H g⟩ and ‖(λ/2) H g‖ cost two inner products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class PenaltyPart:
    """Adds up both numbers over parameters, one at a time, as their gradients become known."""

    def __init__(self, strength: float) -> None:
        self.strength = strength
        self.along: list[Tensor] = []
        self.squares: list[Tensor] = []
        self.missing = False

    def add(self, gradient: Tensor, part: Tensor, *, times: float = 1.0) -> None:
        """One parameter's g, and its (λ/2) H g as `times` · `part`."""
        if gradient.is_sparse or part.is_sparse:
            self.missing = True
            return
        g, d = (_vector(tensor) for tensor in (gradient, part))
        self.along.append(times * torch.dot(g, d))
        self.squares.append(times**2 * torch.dot(d, d))

    @property
    def curvature(self) -> Tensor | None:
        """⟨g, H g⟩."""
        return None if self._unknown else torch.stack(self.along).sum() * (2 / self.strength)

    @property
    def squared_norm(self) -> Tensor | None:
        """‖(λ/2) H g‖²."""
        return None if self._unknown else torch.stack(self.squares).sum()

    @property
    def _unknown(self) -> bool:
        return self.missing or not self.along


class GradientWatch:
    """Sees gradients on their way into `.grad`, before anybody's hooks, and compares G / `factor` with g."""

    def __init__(self, part: PenaltyPart, gradients: Mapping[Tensor, Tensor], factor: float) -> None:
        self.part, self.gradients, self.factor = part, gradients, factor

    def see(self, leaf: Tensor, found: Tensor) -> None:
        gradient = self.gradients.get(leaf)
        if gradient is not None:
            whole = found.detach() if self.factor == 1 else found.detach() / self.factor
            self.part.add(gradient, whole.to(gradient.dtype) - gradient)

    @contextmanager
    def watching(self) -> Iterator[None]:
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


def penalty_part(strength: float, gradients: Sequence[Tensor], products: Sequence[Tensor]) -> PenaltyPart:
    """Both numbers from g and H g, parameter by parameter."""
    part = PenaltyPart(strength)
    for gradient, product in zip(gradients, products, strict=True):
        part.add(gradient, product, times=strength / 2)
    return part


def _vector(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat
