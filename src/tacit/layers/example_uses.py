"""What each example contributes to the gradient of a parameter, in one use of it, without a pass per example.

A `LayerUse` with as many micro-batches as examples gives every example's gradient G = DᵀX. Its squared norm has two
forms, and each layer takes the one with fewer multiplications (T rows per example, n inputs, p outputs):

    Gram:    ‖G‖² = Σₛₜ (XXᵀ)ₛₜ (DDᵀ)ₛₜ     T²(n+p)
    direct:  G itself, then its squares       T n p

A convolution is a linear layer on patches. An embedding is one on one-hot rows, whose Gram matrix says which tokens are
equal. Biases, scalars, norms and other parameters that are broadcast are small, and have their gradients formed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.layers.kinds import ConvolutionUse, EmbeddingUse, LinearUse
from tacit.layers.layer_use import LayerUse

NUMBERS_AT_ONCE = 2**22  # patches or example gradients are made this many numbers at a time: 16 MB in float32


class ExampleUse(ABC):
    """One use of one parameter by `count` examples; `edge` is where the operation's output stands in autograd's graph.

    D is the gradient of the sum of the examples' losses for that output. Its first axis is the examples', or that of
    examples x rows.
    """

    def __init__(self, name: str, parameter: Tensor, edge: Any, count: int) -> None:
        self.name, self.parameter, self.edge, self.count = name, parameter, edge, count

    @abstractmethod
    def gradients(self, D: Tensor, some: slice) -> Tensor:
        """Gⱼ of some of the examples, stacked."""

    @abstractmethod
    def products(self, D: Tensor, direction: Tensor) -> Tensor:
        """⟨Gⱼ, V⟩ for each example, V a tensor like the parameter."""

    def summary(self, D: Tensor) -> tuple[Tensor, Tensor]:
        """(‖Gⱼ‖² for each example, Σⱼ Gⱼ), in the direct form."""
        return _direct_summary([(self, D)])


class BroadcastUse(ExampleUse):
    """z = … + p or z = … ∘ p with p broadcast: biases, scalars, positions, and the two parameters of a norm.

    `aligned` is p's shape with as many axes as z, and `factor` what p is multiplied with.
    """

    def __init__(
        self, name: str, parameter: Tensor, edge: Any, count: int, aligned: tuple[int, ...], factor: Tensor | None
    ) -> None:
        super().__init__(name, parameter, edge, count)
        self.aligned, self.factor = aligned, factor

    def gradients(self, D: Tensor, some: slice = slice(None)) -> Tensor:
        summed = [axis for axis in range(1, D.dim()) if self.aligned[axis] == 1]
        product = D if self.factor is None else D * self.factor
        kept = product.sum(summed) if summed else product
        return kept.reshape(self.count, -1, *self.parameter.shape).sum(1)[some]

    def products(self, D: Tensor, direction: Tensor) -> Tensor:
        return self.gradients(D).reshape(self.count, -1) @ direction.reshape(-1)

    def summary(self, D: Tensor) -> tuple[Tensor, Tensor]:
        made = self.gradients(D)
        return made.reshape(self.count, -1).square().sum(1), made.sum(0)


class WeightUse(ExampleUse):
    """The weight of a linear layer, a convolution or an embedding; `inputs` are the layer's."""

    def __init__(self, name: str, layer: LayerUse, edge: Any, count: int, inputs: Tensor) -> None:
        super().__init__(name, layer.weight, edge, count)
        self.layer, self.inputs = layer, self._by_example(inputs)

    def _by_example(self, tensor: Tensor) -> Tensor:
        """(examples, rows or images of one example, …)."""
        return tensor.unflatten(0, (self.count, -1))

    def gradients(self, D: Tensor, some: slice) -> Tensor:
        inputs, D = self.inputs[some], self._by_example(D)[some]
        self.layer.micro_batches = len(inputs)
        return self.layer.each_parameter_gradients(inputs, D, False)[0]

    def products(self, D: Tensor, direction: Tensor) -> Tensor:
        self.layer.micro_batches = None
        _, along = self.layer.pull_back(self.inputs, self._by_example(D), direction, None)
        assert along is not None
        return (along * self._by_example(D)).flatten(1).sum(1)

    def summary(self, D: Tensor) -> tuple[Tensor, Tensor]:
        whole = self._by_example(D)
        convolution = self.layer if isinstance(self.layer, ConvolutionUse) else None
        groups = 1 if convolution is None else convolution.groups
        inputs, outputs = self.parameter.shape[1:].numel(), self.parameter.shape[0] // groups
        places = whole[0].numel() // whole.shape[-1 if convolution is None else 2]
        cheaper = isinstance(self.layer, EmbeddingUse) or places * (inputs + outputs) <= inputs * outputs
        if not cheaper or (convolution is not None and len(convolution.stride) > 2):  # torch has no patches of volumes
            return super().summary(D)
        kept = groups * places * max(places, inputs)  # numbers of one example: Gram matrices or patches
        squares = [self._by_gram(self.inputs[some], whole[some]) for some in portions(self.count, kept)]
        return torch.cat(squares), self.layer.weight_gradient(self.inputs, whole)

    def _by_gram(self, inputs: Tensor, D: Tensor) -> Tensor:
        """‖Gⱼ‖² of some of the examples."""
        if isinstance(self.layer, ConvolutionUse):
            X, D = self._patches(self.layer, inputs), self._grouped(self.layer, D.flatten(3))
            return (gram(X) * gram(D)).sum((1, 2, 3))
        D = D.flatten(1, -2)
        if isinstance(self.layer, LinearUse):
            return (gram(inputs.flatten(1, -2)) * gram(D)).sum((1, 2))
        assert isinstance(self.layer, EmbeddingUse)
        tokens = inputs.flatten(1)
        equal = tokens.unsqueeze(1) == tokens.unsqueeze(2)
        if self.layer.padding_index is not None:  # those rows have no gradient
            equal &= (tokens != self.layer.padding_index).unsqueeze(1)
        return (equal * gram(D)).sum((1, 2))

    def _patches(self, layer: ConvolutionUse, images: Tensor) -> Tensor:
        """Rows (examples, groups, places, numbers of a patch)."""
        flat, missing = images.flatten(0, 1), 2 - len(layer.stride)
        for _ in range(missing):  # a signal is an image of height 1
            flat = flat.unsqueeze(2)
        patches = F.unfold(
            flat, (*[1] * missing, *self.parameter.shape[2:]), stride=(*[1] * missing, *layer.stride),
            padding=(*[0] * missing, *layer.padding), dilation=(*[1] * missing, *layer.dilation),
        )  # fmt: skip
        return self._grouped(layer, patches.unflatten(0, images.shape[:2]))

    @staticmethod
    def _grouped(layer: ConvolutionUse, columns: Tensor) -> Tensor:
        """(examples, images, channels, places) → (examples, groups, images x places, channels of a group)."""
        return columns.unflatten(2, (layer.groups, -1)).permute(0, 2, 1, 4, 3).flatten(2, 3)


def gram(rows: Tensor) -> Tensor:
    return rows @ rows.mT


def portions(count: int, numbers: int) -> Iterator[slice]:
    """The examples, a few at a time, when each needs so many numbers."""
    few = max(1, NUMBERS_AT_ONCE // max(1, numbers))
    return (slice(start, min(count, start + few)) for start in range(0, count, few))


def summary(uses: Sequence[tuple[ExampleUse, Tensor]]) -> tuple[Tensor, Tensor]:
    """That of a parameter over all its uses, each with its D: of several, example gradients are formed and added."""
    use, D = uses[0]
    return use.summary(D) if len(uses) == 1 else _direct_summary(uses)


def _direct_summary(uses: Sequence[tuple[ExampleUse, Tensor]]) -> tuple[Tensor, Tensor]:
    like, count = uses[0][0].parameter, uses[0][0].count
    squares, total = [], torch.zeros_like(like)
    for some in portions(count, like.numel()):
        first, *others = (use.gradients(D, some) for use, D in uses)
        whole = sum(others, first)
        squares.append(whole.flatten(1).square().sum(1))
        total += whole.sum(0)
    return torch.cat(squares), total
