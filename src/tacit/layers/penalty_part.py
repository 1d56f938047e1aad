"""The penalty's part of a finished gradient: G − g = (λ/2) H g, so ⟨g, H g⟩ and ‖(λ/2) H g‖ cost two inner products.

Where the objective has the loss with another weight than 1, `loss_weight`, G has g that many times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction

from tacit._util.tree import real, total

_PLAIN = (torch.float32, torch.float64)
_HALF = (torch.float16, torch.bfloat16)  # whose squares are added up in float32
SMALL = 2**16  # numbers: a gradient that is copied faster than it is worth calls of its own


class PenaltyPart:
    """Adds up both numbers over parameters, one at a time, as their gradients become known.

    Of K micro-batches in one pass it has the mean of ⟨gₖ, Hₖ gₖ⟩; the squares would cost products.
    """

    def __init__(self, strength: float | Tensor, *, micro_batches: int | None = None) -> None:
        self.strength, self.micro_batches = strength, micro_batches
        self.along: list[Tensor] = []
        self.squares: list[Tensor] = []
        self.along_missing, self.squares_missing = False, micro_batches is not None

    def add(self, gradient: Tensor, part: Tensor, *, times: float | Tensor = 1.0, squares_only: bool = False) -> None:
        """One parameter's g, and its (λ/2) H g as `times` · `part`."""
        if gradient.is_sparse or part.is_sparse:
            self.along_missing = self.squares_missing = True
            return
        if gradient.dim() == 1 and part.dim() == 1 and gradient.dtype in _PLAIN and part.dtype in _PLAIN:
            g, d = gradient, part
        else:
            g, d = _vector(gradient), _vector(part)
        one = isinstance(times, float) and times == 1
        if not squares_only:
            along = torch.dot(g, d)
            self.along.append(along if one else times * along)
        square = torch.dot(d, d)
        self.squares.append(square if one else times**2 * square)

    @property
    def curvature(self) -> Tensor | None:
        """⟨g, H g⟩."""
        factor = 2 / self.strength / (self.micro_batches or 1)
        return None if self.along_missing or not self.along else _sum(self.along) * factor

    @property
    def squared_norm(self) -> Tensor | None:
        """‖(λ/2) H g‖²."""
        return None if self.squares_missing or not self.squares else _sum(self.squares)


class RowWatch:
    """Sees the rows of one layer call in the outer pass; adds ⟨g, λ/2 H g⟩, over all K micro-batches of one pass.

    The layer's part of g is G(X, D), bilinear, and the outer pass finds G(X, S) + G(T, D) = factor · (g + λ/2 H g) with
    rows S and T (`layer_use`). R = ‖g‖² has P = ∂R/∂D = 2 ∂⟨G, G(X, ·)⟩ and Q = ∂R/∂X alike, so that

        ⟨g, G(X, S) + G(T, D)⟩ = ½ (⟨P, S⟩ + ⟨Q, T⟩)

    The outer pass computes P and Q anyway, in every form of the norm and for every number of uses, so this costs sums
    over rows. What arrives here is `share` times P and Q: the objective's derivative, not R's. D is `scale` times the
    loss's own, and `plain` times D is the plain part of S.

    With `few_rows` of a linear layer it adds ‖λ/2 H g‖², too, from Gram matrices: λ/2 H g = [S − D; D]ᵀ [X; T].
    """

    def __init__(
        self,
        part: PenaltyPart,
        *,
        factor: float | Tensor,
        share: float | Tensor,
        scale: float | Tensor,
        plain: float,
    ) -> None:
        self.part, self.factor, self.share, self.scale, self.plain = part, factor, share, scale, plain
        self.few_rows = False
        self.of_norm: dict[str, Tensor] = {}  # P under "D", Q under "X"
        self.past = False

    def keep(self, name: str, gradient: Tensor) -> None:
        """`share` times P or Q, or a part of it."""
        self.part.along_missing |= self.past
        known = self.of_norm.get(name)
        self.of_norm[name] = gradient if known is None else known + gradient

    def see(
        self, inputs: Tensor, output_gradient: Tensor, final: Tensor, tangents: Tensor | None, *, in_norm: set[str]
    ) -> None:
        """The last visit: X, D, S and T are known, and so are P and Q, unless autograd came by in another order."""
        of_norm, self.of_norm, self.past = self.of_norm, {}, True
        with DisableTorchFunction(), torch.no_grad():
            # Without the plain part, before anything is summed: it is far larger than the penalty's.
            rest = torch.sub(_wide(final.detach()), _wide(output_gradient), alpha=self.plain)
            for name, rows in (("D", rest), ("X", tangents)):
                if name not in in_norm or rows is None:
                    continue
                if name not in of_norm:
                    self.part.along_missing = True
                    continue
                along = torch.dot(*in_memory_order(_wide(of_norm[name]), _wide(rows)))
                self.part.along.append(along / (2 * self.share * self.scale * self.factor))
            if self.few_rows:
                left, right = _rows(rest), _rows(inputs)
                if tangents is not None:
                    left, right = torch.cat([left, _rows(output_gradient)]), torch.cat([right, _rows(tangents)])
                self.part.squares.append(torch.sum((left @ left.T) * (right @ right.T)) / self.factor**2)


def gram_matrices_are_cheap(count: int, fan_in: int, fan_out: int) -> bool:
    """Whether those of twice `count` rows cost next to nothing beside the layer's own products."""
    return 4 * count**2 * (fan_in + fan_out) <= max(2**23, count * fan_in * fan_out // 4)


class GradientWatch:
    """Sees gradients on their way into `.grad`, before anybody's hooks, and compares G / `factor` with g.

    Of the leaves `by_rows` a `RowWatch` has ⟨g, H g⟩.
    """

    def __init__(
        self,
        part: PenaltyPart,
        gradients: Mapping[Tensor, Tensor],
        factor: float | Tensor,
        loss_weight: float = 1.0,
        *,
        by_rows: Collection[Tensor | None] = (),
        collect: Callable[[Tensor, Tensor, Tensor], None] | None = None,
    ) -> None:
        self.part, self.gradients, self.factor, self.loss_weight = part, gradients, factor, loss_weight
        self.by_rows, self.collect = by_rows, collect  # `collect` is given each leaf, its g and its (λ/2) H g
        self._all_plain, self._count = torch.empty(0), -1  # g as one vector, where all of it is small

    def squared_norm(self) -> Tensor:
        """‖g‖² over all leaves."""
        gradients = list(self.gradients.values())
        first = gradients[0]
        with DisableTorchFunction(), torch.no_grad():
            small = [g.numel() <= SMALL and g.dtype == first.dtype and not g.is_sparse for g in gradients]
            if all(small):
                vectors = [g.reshape(-1) if g.dtype in _PLAIN else _vector(g) for g in gradients]
                self._all_plain, self._count = torch.cat(vectors), len(gradients)
                return torch.dot(self._all_plain, self._all_plain)
        return inner_product(gradients, gradients)

    def see(self, leaf: Tensor, finished: Tensor | None) -> None:
        gradient = self.gradients.get(leaf)
        if gradient is None or finished is None:
            return
        with DisableTorchFunction(), torch.no_grad():  # on small models each call that a mode handles would be felt
            whole = finished if isinstance(self.factor, float) and self.factor == 1 else finished / self.factor
            part = torch.sub(whole.to(gradient.dtype), gradient, alpha=self.loss_weight)
            self.part.add(gradient, part, squares_only=leaf in self.by_rows)
            if self.collect is not None:
                self.collect(leaf, gradient, part)

    def see_all(self, leaves: Sequence[Tensor], finished: Sequence[Tensor]) -> None:
        """The same for many: small gradients as one vector, because on small models each call would be felt."""
        small: dict[bool, tuple[list[Tensor], list[Tensor]]] = {}
        known = len(leaves) == self._count and all(map(is_, leaves, self.gradients))  # in the order of `_all_plain`
        with DisableTorchFunction(), torch.no_grad():
            for leaf, whole in zip(leaves, finished, strict=True):
                gradient = self.gradients.get(leaf)
                large = whole.numel() > SMALL or self.collect is not None
                if gradient is None or large or gradient.is_sparse or whole.is_sparse:
                    self.see(leaf, whole)
                else:
                    vectors, wholes = small.setdefault(leaf in self.by_rows, ([], []))
                    vectors.append(gradient.reshape(-1) if gradient.dtype in _PLAIN else _vector(gradient))
                    wholes.append(whole.reshape(-1) if whole.dtype in _PLAIN else _vector(whole))
            for squares_only, (vectors, wholes) in small.items():
                plain = self._all_plain if known and len(vectors) == self._count else torch.cat(vectors)
                part = torch.cat(wholes)
                if not isinstance(self.factor, float) or self.factor != 1:
                    part /= self.factor
                self.part.add(plain, part.sub_(plain, alpha=self.loss_weight), squares_only=squares_only)

    def __enter__(self) -> None:
        """Before the backward pass; without hooks where `.grad` is empty, and will be G · factor itself."""
        self._handles: list[Any] = []
        self._by_hooks = False
        for leaf in self.gradients:
            if not leaf.is_leaf or leaf.grad is not None or leaf._backward_hooks or leaf._post_accumulate_grad_hooks:
                self._by_hooks = True
                break
        if not self._by_hooks:
            return
        for leaf in self.gradients:
            users = list(leaf._backward_hooks or ())
            self._handles.append(leaf.register_hook(lambda seen, leaf=leaf: self.see(leaf, seen)))
            hooks = leaf._backward_hooks
            assert hooks is not None
            for key in users:  # behind ours
                hooks[key] = hooks.pop(key)

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()
        if not self._by_hooks and kind is None:
            leaves = [leaf for leaf in self.gradients if leaf.grad is not None]
            self.see_all(leaves, [leaf.grad for leaf in leaves])  # type: ignore[misc]


def inner_product(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    if left is right and not any(a.is_sparse for a in left):
        if all(a.dtype not in _HALF for a in left):
            return torch.stack(torch._foreach_norm(list(left))).square().sum()
        norms = [torch.linalg.vector_norm(a, dtype=torch.float32 if a.dtype in _HALF else None) for a in left]
        return torch.stack([norm.to(norms[0].dtype) for norm in norms]).square().sum()
    return total((real(a) * real(b)).sum() for a, b in zip(left, right, strict=True))


def penalty_part(strength: float | Tensor, gradients: Sequence[Tensor], products: Sequence[Tensor]) -> PenaltyPart:
    """Both numbers from g and H g, parameter by parameter."""
    part = PenaltyPart(strength)
    for gradient, product in zip(gradients, products, strict=True):
        part.add(gradient, product, times=strength / 2)
    return part


def in_memory_order(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Both as vectors in one order of their elements; without a copy when both are channels-last."""
    last = torch.channels_last
    if left.dim() == 4 and left.is_contiguous(memory_format=last) and right.is_contiguous(memory_format=last):
        left, right = left.permute(0, 2, 3, 1), right.permute(0, 2, 3, 1)
    return left.reshape(-1), right.reshape(-1)


def _sum(terms: Sequence[Tensor]) -> Tensor:
    return terms[0] if len(terms) == 1 else torch.stack(list(terms)).sum()


def _rows(tensor: Tensor) -> Tensor:
    return _wide(tensor.detach().reshape(-1, tensor.shape[-1]))


def _vector(tensor: Tensor) -> Tensor:
    if tensor.dtype in _PLAIN:
        return tensor.detach().reshape(-1)
    return _wide(real(tensor.detach()).reshape(-1))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _HALF else tensor
