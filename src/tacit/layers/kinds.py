"""The layers whose calls are captured: linear, convolution, embedding, and multiplication with a single parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.layers import few_rows
from tacit.layers.layer_use import LayerUse
from tacit.layers.penalty_part import in_memory_order


class LinearUse(LayerUse):
    """z = x Wᵀ + b on the last axis, or z = x W + b when `transposed`; every other axis counts as rows.

    The weight's gradient is LᵀR with `left` rows L and `right` rows R: output gradients and inputs, or the reverse.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, transposed: bool = False) -> None:
        super().__init__(weight, bias)
        self.transposed = transposed

    def factor_rows(self, inputs: Tensor, output_gradient: Tensor) -> tuple[Tensor, Tensor]:
        """(L, R), with a leading axis of micro-batches where there are any."""
        if self.micro_batches is None:
            X, D = rows(inputs), rows(output_gradient)
        else:
            X, D = self._each_rows(inputs), self._each_rows(output_gradient)
        return (X, D) if self.transposed else (D, X)

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self.transposed:
            return few_rows.linear(inputs, weight, bias)
        outputs = few_rows.product(inputs, weight)
        return outputs if bias is None else outputs.add_(bias)

    def input_gradient(self, output_gradient: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        if self.transposed:
            return few_rows.linear(output_gradient, weight, None)
        return few_rows.product(output_gradient, weight)

    def weight_gradient(self, inputs: Tensor, output_gradient: Tensor) -> Tensor:
        X, D = rows(inputs), rows(output_gradient)
        return X.T @ D if self.transposed else D.T @ X

    def bias_gradient(self, output_gradient: Tensor) -> Tensor:
        return rows(output_gradient).sum(0)

    def each_forward(self, inputs: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
        if self.micro_batches is None:
            return self.forward(inputs, weights, biases)
        outputs = self._each_rows(inputs) @ (weights if self.transposed else weights.mT)
        if biases is not None:
            outputs += biases.unsqueeze(1)
        return outputs.reshape(*inputs.shape[:-1], outputs.shape[-1])

    def each_input_gradient(self, output_gradient: Tensor, weights: Tensor, like: Tensor) -> Tensor:
        if self.micro_batches is None:
            return self.input_gradient(output_gradient, weights, like)
        made = self._each_rows(output_gradient) @ (weights.mT if self.transposed else weights)
        return made.reshape(*output_gradient.shape[:-1], made.shape[-1])

    def each_parameter_gradients(
        self, inputs: Tensor, output_gradient: Tensor, wants_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.micro_batches is None:
            return self.parameter_gradients(inputs, output_gradient, wants_bias)
        left, right = self.factor_rows(inputs, output_gradient)
        return left.mT @ right, self.each_bias_gradient(output_gradient) if wants_bias else None

    def each_bias_gradient(self, output_gradient: Tensor) -> Tensor:
        return self._each_rows(output_gradient).sum(-2)

    def final_parameter_gradients(
        self, inputs: Tensor, output_gradient: Tensor, wants_bias: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        to_bias = self.bias_gradient(output_gradient) if wants_bias else None
        of_outputs, of_inputs = rows(output_gradient), rows(inputs)
        if self.tangents is not None:  # one product of stacked rows: the weight-sized result is written once
            of_outputs = torch.cat([of_outputs, rows(self.recorded_gradient())])
            of_inputs = torch.cat([of_inputs, rows(self.tangents)])
        left, right = (of_inputs, of_outputs) if self.transposed else (of_outputs, of_inputs)
        if self.keep_factors:
            self.factors = (left, right)
            return None, to_bias
        return left.T @ right, to_bias

    def _each_rows(self, tensor: Tensor) -> Tensor:
        if self.micro_batches is None:
            return rows(tensor)
        return tensor.reshape(self.micro_batches, -1, tensor.shape[-1])


class ConvolutionUse(LayerUse):
    """A 1-, 2- or 3-dimensional convolution with numeric padding."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, settings: tuple[list[int], list[int], list[int], int]
    ) -> None:
        super().__init__(weight, bias)
        self.stride, self.padding, self.dilation, self.groups = settings
        self.no_output_padding = [0] * len(self.stride)

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        outputs = torch.ops.aten.convolution(
            self._images(inputs), weight, bias, self.stride, self.padding, self.dilation, False, self.no_output_padding,
            self.groups,
        )  # fmt: skip
        return self._like(inputs, outputs)

    def _backward(self, output_gradient: Tensor, inputs: Tensor, weight: Tensor, which: list[bool]) -> Any:
        bias_size = [weight.shape[0]] if which[2] else None
        return torch.ops.aten.convolution_backward(
            self._images(output_gradient), self._images(inputs), weight, bias_size, self.stride, self.padding,
            self.dilation, False, self.no_output_padding, self.groups, which,
        )  # fmt: skip

    def input_gradient(self, output_gradient: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        return self._like(like, self._backward(output_gradient, like, weight, [True, False, False])[0])

    def weight_gradient(self, inputs: Tensor, output_gradient: Tensor) -> Tensor:
        return self.parameter_gradients(inputs, output_gradient, False)[0]

    def parameter_gradients(
        self, inputs: Tensor, output_gradient: Tensor, wants_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        weight = self.weight.detach().to(inputs.dtype)  # only its shape is used
        _, to_weight, to_bias = self._backward(output_gradient, inputs, weight, [False, True, wants_bias])
        return to_weight, to_bias if wants_bias else None

    def bias_gradient(self, output_gradient: Tensor) -> Tensor:
        images = self._images(output_gradient)
        return images.sum(dim=[axis for axis in range(images.dim()) if axis != 1])

    def _images(self, tensor: Tensor) -> Tensor:
        """Images of all micro-batches as one batch."""
        return tensor if tensor.dim() == len(self.stride) + 2 else tensor.flatten(0, 1)

    def _like(self, tensor: Tensor, images: Tensor) -> Tensor:
        return images if tensor.dim() == images.dim() else images.unflatten(0, tensor.shape[:2])


class ScalarUse(LayerUse):
    """z = s · x for a parameter with one element, such as SkipInit's: its gradient is one inner product."""

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return inputs * weight

    def input_gradient(self, output_gradient: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        return output_gradient * weight

    def weight_gradient(self, inputs: Tensor, output_gradient: Tensor) -> Tensor:
        return torch.dot(*in_memory_order(inputs, output_gradient)).reshape(self.weight.shape)

    def bias_gradient(self, output_gradient: Tensor) -> Tensor:
        raise AssertionError("a scalar factor has no bias")


class EmbeddingUse(LayerUse):
    """z = W[indices]: the input rows are one-hot, so the weight gradient is a sum of rows by index."""

    def __init__(self, weight: Tensor, padding_index: int | None) -> None:
        super().__init__(weight, None)
        if padding_index is not None and padding_index < 0:
            padding_index += weight.shape[0]
        self.padding_index = padding_index

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.embedding(inputs, weight, self.padding_index)

    def weight_gradient(self, inputs: Tensor, output_gradient: Tensor) -> Tensor:
        padding = -1 if self.padding_index is None else self.padding_index
        return torch.ops.aten.embedding_dense_backward(output_gradient, inputs, self.weight.shape[0], padding, False)

    def input_gradient(self, output_gradient: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        raise AssertionError("indices have no gradient")

    def bias_gradient(self, output_gradient: Tensor) -> Tensor:
        raise AssertionError("an embedding has no bias")

    def pull_back(
        self, inputs: Tensor, output_gradient: Tensor, pulled: Tensor, pulled_bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        if self.micro_batches is None:
            picked = F.embedding(inputs, pulled)
        else:
            picked = torch.stack([F.embedding(*one) for one in zip(inputs.unbind(), pulled.unbind(), strict=True)])
        if self.padding_index is not None:  # those rows never enter the weight's gradient
            picked = picked.masked_fill((inputs == self.padding_index).unsqueeze(-1), 0.0)
        return None, picked


def rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])
