"""One use of one parameter in a forward pass: what each example contributes to its gradient, without forming it.

The gradient of example j for a linear layer with input rows X and output-gradient rows D is G = DᵀX. Its squared norm
has two forms, and each layer takes the one with fewer multiplications (T rows per example, n inputs, p outputs):

    Gram:    ‖G‖² = Σₛₜ (XXᵀ)ₛₜ (DDᵀ)ₛₜ     T²(n+p);  for T = 1 it is ‖x‖²‖d‖²
    direct:  G itself, then its squares       T n p

A convolution is a linear layer on patches. An embedding is one on one-hot rows, whose Gram matrix says which tokens are
equal. Biases, scalars, norms and other parameters that are broadcast are small, and have their gradients formed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

PATCH_NUMBERS = 2**22  # patches or example gradients are made this many numbers at a time: 16 MB in float32


class Use(ABC):
    """`inputs` has a leading axis of `count` examples, or of count x rows; so has every output gradient D it is given.

    D is the gradient of the sum of the examples' losses for the output of the operation.
    """

    def __init__(self, name: str, parameter: Tensor, edge: Any, count: int) -> None:
        self.name, self.shape, self.edge, self.count = name, parameter.shape, edge, count

    @abstractmethod
    def summary(self, D: Tensor) -> tuple[Tensor, Tensor]:
        """(‖Gⱼ‖² for each example, Σⱼ Gⱼ)."""

    @abstractmethod
    def gradients(self, D: Tensor, some: slice) -> Tensor:
        """Gⱼ of some of the examples, stacked."""

    @abstractmethod
    def products(self, D: Tensor, direction: Tensor) -> Tensor:
        """⟨Gⱼ, V⟩ for each example, V a tensor like the parameter."""

    def portions(self, numbers: int) -> Iterator[slice]:
        """The examples, a few at a time, when each needs so many numbers."""
        return portions(self.count, numbers)


class BroadcastUse(Use):
    """z = … + p or z = … ∘ p with p broadcast: biases, scalars, positions, and the two parameters of a norm.

    `aligned` is p's shape with as many axes as z, and `factor` what p is multiplied with.
    """

    def __init__(
        self, name: str, parameter: Tensor, edge: Any, count: int, *, aligned: tuple[int, ...], factor: Tensor | None
    ) -> None:
        super().__init__(name, parameter, edge, count)
        self.aligned, self.factor = aligned, factor

    def _gradients(self, D: Tensor) -> Tensor:
        summed = [axis for axis in range(1, D.dim()) if self.aligned[axis] == 1]
        if self.factor is None:
            kept = D.sum(summed) if summed else D
        else:
            product = D * self.factor
            kept = product.sum(summed) if summed else product
        return kept.reshape(self.count, -1, *self.shape).sum(1)

    def summary(self, D: Tensor) -> tuple[Tensor, Tensor]:
        made = self._gradients(D)
        return made.reshape(self.count, -1).square().sum(1), made.sum(0)

    def gradients(self, D: Tensor, some: slice) -> Tensor:
        return self._gradients(D)[some]

    def products(self, D: Tensor, direction: Tensor) -> Tensor:
        return self._gradients(D).reshape(self.count, -1) @ direction.reshape(-1)


class LinearUse(Use):
    """z = x Wᵀ on the last axis, or z = x W when `transposed`."""

    def __init__(
        self, name: str, parameter: Tensor, edge: Any, count: int, *, inputs: Tensor, transposed: bool = False
    ) -> None:
        super().__init__(name, parameter, edge, count)
        self.inputs, self.transposed = inputs, transposed

    def _rows(self, D: Tensor) -> tuple[Tensor, Tensor]:
        return by_example(self.inputs, self.count), by_example(D, self.count)

    def summary(self, D: Tensor) -> tuple[Tensor, Tensor]:
        X, D = self._rows(D)
        total = D.flatten(0, 1).T @ X.flatten(0, 1)
        total = total.T if self.transposed else total
        if X.shape[1] == 1:
            return X.square().sum((1, 2)) * D.square().sum((1, 2)), total
        if gram_is_cheaper(X.shape[1], X.shape[2], D.shape[2]):
            return ((X @ X.mT) * (D @ D.mT)).sum((1, 2)), total
        squares = [self.gradients(D, some).flatten(1).square().sum(1) for some in self.portions(self.shape.numel())]
        return torch.cat(squares), total

    def gradients(self, D: Tensor, some: slice) -> Tensor:
        X, D = self._rows(D)
        return X[some].mT @ D[some] if self.transposed else D[some].mT @ X[some]

    def products(self, D: Tensor, direction: Tensor) -> Tensor:
        X, D = self._rows(D)
        return (F.linear(X, direction.T if self.transposed else direction) * D).sum((1, 2))


class ConvolutionUse(Use):
    """A 1- or 2-dimensional convolution with numeric padding: a linear layer on patches, group by group."""

    def __init__(
        self, name: str, parameter: Tensor, edge: Any, count: int, *, inputs: Tensor, settings: dict[str, Any]
    ) -> None:
        super().__init__(name, parameter, edge, count)
        self.inputs, self.settings = inputs, settings

    def _rows(self, D: Tensor, some: slice) -> tuple[Tensor, Tensor]:
        """Patches (e·g, k, t) and output gradients (e·g, o, t) of some examples e: groups g, places t."""
        groups, kernel = self.settings["groups"], tuple(self.shape[2:])
        each = self.inputs.shape[0] // self.count  # images per example: 1 unless the model folded an axis in
        part = slice(some.start * each, some.stop * each)
        images, gradient = self.inputs[part], D[part].flatten(2)
        spread = {key: self.settings[key] for key in ("stride", "padding", "dilation")}
        if kernel == (1, 1) and spread["padding"] == (0, 0):  # a patch is a pixel: nothing to copy
            down, right = spread["stride"]
            patches = images[:, :, ::down, ::right].flatten(2)
        else:
            patches = F.unfold(images, kernel, **spread)
        return self._grouped(patches, groups, each), self._grouped(gradient, groups, each)

    @staticmethod
    def _grouped(rows: Tensor, groups: int, each: int) -> Tensor:
        if each > 1:  # images of one example side by side
            rows = rows.unflatten(0, (-1, each)).transpose(1, 2).flatten(2)
        return rows.reshape(rows.shape[0] * groups, rows.shape[1] // groups, rows.shape[2])

    def summary(self, D: Tensor) -> tuple[Tensor, Tensor]:
        groups = self.settings["groups"]
        inputs, outputs = self.shape[1:].numel(), self.shape[0] // groups
        places = D[0, 0].numel() * (self.inputs.shape[0] // self.count)
        if gram_is_cheaper(places, inputs, outputs):
            squares = []
            for some in self.portions(groups * inputs * places):
                X, E = self._rows(D, some)
                squares.append(((X.mT @ X) * (E.mT @ E)).sum((1, 2)).reshape(-1, groups).sum(1))
            return torch.cat(squares), self._weight_gradient(self.inputs, D, 1)[0]
        squares, total = [], D.new_zeros(self.shape)
        for some in self.portions(self.shape.numel()):
            G = self._gradients(D, some)
            squares.append(G.flatten(1).square().sum(1))
            total += G.sum(0)
        return torch.cat(squares), total

    def _weight_gradient(self, inputs: Tensor, D: Tensor, apart: int) -> Tensor:
        """The weight gradients of so many equal parts of the images, stacked: the parts become groups."""
        weight = D.new_empty(apart * self.shape[0], *self.shape[1:])  # only its shape is used
        stride, padding, dilation = ([*self.settings[key]] for key in ("stride", "padding", "dilation"))
        if apart > 1:
            inputs, D = (tensor.reshape(1, -1, *tensor.shape[2:]) for tensor in (inputs, D))
        found = torch.ops.aten.convolution_backward(
            D, inputs, weight, None, stride, padding, dilation, False, [0, 0], apart * self.settings["groups"],
            [False, True, False],
        )[1]  # fmt: skip
        return found.reshape(apart, *self.shape)

    def gradients(self, D: Tensor, some: slice) -> Tensor:
        return self._gradients(D, some)

    def _gradients(self, D: Tensor, some: slice) -> Tensor:
        # As groups of one convolution: 1.1 to 4 plain weight gradients on a CPU, products with patches 3 to 12.
        each = self.inputs.shape[0] // self.count
        part = slice(some.start * each, some.stop * each)
        made = self._weight_gradient(self.inputs[part], D[part], (some.stop - some.start) * each)
        return made.reshape(-1, each, *self.shape).sum(1)

    def products(self, D: Tensor, direction: Tensor) -> Tensor:
        return (F.conv2d(self.inputs, direction, **self.settings) * D).reshape(self.count, -1).sum(1)


class FlatConvolutionUse(ConvolutionUse):
    """A 1-dimensional convolution: a 2-dimensional one with images of height 1."""

    def __init__(
        self, name: str, parameter: Tensor, edge: Any, count: int, *, inputs: Tensor, settings: dict[str, Any]
    ) -> None:
        flat = {key: (zero, *settings[key]) for key, zero in (("stride", 1), ("padding", 0), ("dilation", 1))}
        wide = {**flat, "groups": settings["groups"]}
        super().__init__(name, parameter.unsqueeze(2), edge, count, inputs=inputs.unsqueeze(2), settings=wide)

    def summary(self, D: Tensor) -> tuple[Tensor, Tensor]:
        squares, total = super().summary(D.unsqueeze(2))
        return squares, total.squeeze(2)

    def gradients(self, D: Tensor, some: slice) -> Tensor:
        return self._gradients(D.unsqueeze(2), some).squeeze(3)

    def products(self, D: Tensor, direction: Tensor) -> Tensor:
        return super().products(D.unsqueeze(2), direction.unsqueeze(2))


class EmbeddingUse(Use):
    """z = W[tokens]; tokens equal to `padding` have no gradient."""

    def __init__(
        self, name: str, parameter: Tensor, edge: Any, count: int, *, tokens: Tensor, padding: int | None
    ) -> None:
        super().__init__(name, parameter, edge, count)
        self.tokens = tokens.reshape(count, -1)
        self.padding = None if padding is None else padding % parameter.shape[0]

    def _rows(self, D: Tensor) -> Tensor:
        rows = by_example(D, self.count)
        if self.padding is not None:
            rows = rows.masked_fill((self.tokens == self.padding).unsqueeze(-1), 0.0)
        return rows

    def summary(self, D: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._rows(D)
        equal = (self.tokens.unsqueeze(1) == self.tokens.unsqueeze(2)).to(rows.dtype)
        total = rows.new_zeros(self.shape).index_add_(0, self.tokens.reshape(-1), rows.flatten(0, 1))
        return (equal * (rows @ rows.mT)).sum((1, 2)), total

    def gradients(self, D: Tensor, some: slice) -> Tensor:
        tokens, rows = self.tokens[some], self._rows(D)[some]
        made = rows.new_zeros(len(tokens), *self.shape)
        return made.scatter_add_(1, tokens.unsqueeze(-1).expand_as(rows), rows)

    def products(self, D: Tensor, direction: Tensor) -> Tensor:
        return (direction[self.tokens] * self._rows(D)).sum((1, 2))


def by_example(tensor: Tensor, count: int) -> Tensor:
    """(examples, rows of one example, features)."""
    return tensor.reshape(count, -1, tensor.shape[-1])


def gram_is_cheaper(rows: int, inputs: int, outputs: int) -> bool:
    """T²(n+p) against T n p multiplications."""
    return rows * (inputs + outputs) <= inputs * outputs


def portions(count: int, numbers: int) -> Iterator[slice]:
    few = max(1, PATCH_NUMBERS // max(1, numbers))
    return (slice(start, min(count, start + few)) for start in range(0, count, few))


def summary_of_many(uses: list[Use], gradients: list[Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
    """The summary of a parameter with several uses: its example gradients are sums over them, so they are formed."""
    squares, total = [], torch.zeros_like(like)
    for some in portions(uses[0].count, like.numel()):
        whole = sum(use.gradients(D, some) for use, D in zip(uses, gradients, strict=True))
        assert isinstance(whole, Tensor)
        squares.append(whole.flatten(1).square().sum(1))
        total += whole.sum(0)
    return torch.cat(squares), total
