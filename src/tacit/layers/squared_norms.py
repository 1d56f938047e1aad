"""‖G‖² of a layer's weight gradient G from its factors, differentiable once, in the cheaper of two forms.

Gram form, for linear layers with few rows:  ‖DᵀX‖² = Σᵢⱼ (XXᵀ)ᵢⱼ (DDᵀ)ᵢⱼ;  a bias adds 1 to XXᵀ.
By index, for embeddings:                    rows of D with the same index are added up, then squared.
Direct form, for everything else:            G = Σ over uses of the layer's own weight gradient, then ‖G‖².

With micro-batches in one pass, rows have a leading axis of micro-batches, each has its own Gram matrices (blocks of
those of the whole batch) or its own G, and the result is the sum of ‖G‖² over micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tacit.layers.kinds import EmbeddingUse, LinearUse, rows
from tacit.layers.layer_use import LayerUse
from tacit.layers.modes import without_modes


def weight_squared_norm(uses: Sequence[LayerUse], *, with_bias: bool) -> Tensor:
    """‖G‖² for one weight over all its uses; `with_bias` adds ‖b̄‖² of the bias that is used just there."""
    if uses_gram(uses):
        return _gram_norm(uses, with_bias)
    if by_index(uses):
        return _norm_by_index(uses)
    return _direct_norm(uses, with_bias)


def bias_squared_norm(uses: Sequence[LayerUse]) -> Tensor:
    """‖b̄‖² for one bias over all its uses: few enough numbers for ordinary autograd."""
    # Only with micro-batches its penalty's part has to be known by rows; otherwise by its gradient.
    rows = [_output_gradient(use) if use.micro_batches is None else use.rows_of_norm("D") for use in uses]
    gradients = [use.each_bias_gradient(_wide(each)) for use, each in zip(uses, rows, strict=True)]
    return torch.stack(gradients).sum(0).square().sum()


def uses_gram(uses: Sequence[LayerUse]) -> bool:
    """Whether the Gram form needs fewer multiplications: 2 r²(n+p) against 3 r n p, with r rows in all."""
    if not all(isinstance(use, LinearUse) for use in uses):
        return False
    fan_out, fan_in = uses[0].weight.shape
    count = sum(_row_count(use) for use in uses)
    return 2 * count * (fan_in + fan_out) <= 3 * fan_in * fan_out


def by_index(uses: Sequence[LayerUse]) -> bool:
    """Whether only embeddings use the weight: most of its rows have no gradient then, and G is not formed."""
    return all(isinstance(use, EmbeddingUse) for use in uses)


def _row_count(use: LayerUse) -> int:
    """Rows of one micro-batch, or of the batch."""
    gradient = _output_gradient(use)
    return gradient.numel() // max(1, gradient.shape[-1]) // (use.micro_batches or 1)


def _gram_norm(uses: Sequence[LayerUse], with_bias: bool) -> Tensor:
    pairs = []
    for use in uses:
        assert isinstance(use, LinearUse)
        left, right = use.factor_rows(_wide(use.rows_of_norm("X")), _wide(use.rows_of_norm("D")))
        if with_bias and use.transposed:  # a bias adds to the Gram matrix of the inputs, here the right rows
            left, right = right, left
        pairs.append((left, right))
    left, right = (parts[0] if len(parts) == 1 else torch.cat(parts, -2) for parts in zip(*pairs, strict=True))
    return _GramNorm.apply(right, left, with_bias)


def _norm_by_index(uses: Sequence[LayerUse]) -> Tensor:
    """Micro-batches have rows of their own: index i of micro-batch k counts as index k · (rows of the weight) + i."""
    indices, gradients = [], []
    for use in uses:
        assert isinstance(use, EmbeddingUse)
        index, gradient = _inputs(use), rows(_wide(use.rows_of_norm("D")))
        if use.padding_index is not None:  # those rows never enter the weight's gradient
            gradient = gradient.masked_fill((index == use.padding_index).reshape(-1, 1), 0.0)
        if use.micro_batches is not None:
            first = use.weight.shape[0] * torch.arange(use.micro_batches, device=index.device)
            index = index.reshape(use.micro_batches, -1) + first.unsqueeze(1)
        indices.append(index.reshape(-1))
        gradients.append(gradient)
    whole = torch.cat(gradients)
    return torch.zeros_like(whole).index_add(0, _groups(torch.cat(indices)), whole).square().sum()


def _groups(indices: Tensor) -> Tensor:
    """For each index the number of its value among those that occur, as `torch.unique` has it.

    That waits for the device, which has to say how many there are.
    """
    ordered, order = indices.sort()
    new = torch.zeros_like(ordered)
    new[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(order).scatter(0, order, new.cumsum(0))


def _direct_norm(uses: Sequence[LayerUse], with_bias: bool) -> Tensor:
    flat = [tensor for use in uses for tensor in (use.rows_of_norm("X"), use.rows_of_norm("D"))]
    return _DirectNorm.apply(list(uses), with_bias, *flat)


class _GramNorm(torch.autograd.Function):
    @staticmethod
    @without_modes
    def forward(ctx: Any, inputs: Tensor, gradients: Tensor, with_bias: bool) -> Tensor:
        input_gram, gradient_gram = inputs @ inputs.mT, gradients @ gradients.mT
        if with_bias:
            input_gram += 1
        ctx.save_for_backward(inputs, gradients, input_gram, gradient_gram)
        return torch.dot(input_gram.reshape(-1), gradient_gram.reshape(-1))

    @staticmethod
    @without_modes
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        inputs, gradients, input_gram, gradient_gram = ctx.saved_tensors
        twice = 2 * cotangent
        to_inputs = twice * (gradient_gram @ inputs) if ctx.needs_input_grad[0] else None
        to_gradients = twice * (input_gram @ gradients) if ctx.needs_input_grad[1] else None
        return to_inputs, to_gradients, None


class _DirectNorm(torch.autograd.Function):
    @staticmethod
    @without_modes
    def forward(ctx: Any, uses: list[LayerUse], with_bias: bool, *flat: Tensor) -> Tensor:
        triples = zip(uses, map(_wide, flat[::2]), map(_wide, flat[1::2]), strict=True)
        formed = [use.each_parameter_gradients(inputs, gradients, with_bias) for use, inputs, gradients in triples]
        weight_gradient = _sum(weight for weight, _ in formed)
        bias_gradient = _sum(bias for _, bias in formed if bias is not None) if with_bias else None
        ctx.save_for_backward(weight_gradient, bias_gradient, *flat)
        ctx.uses = uses
        uses[0].weight_gradient_of_norm = weight_gradient
        norm = weight_gradient.square().sum()
        return norm if bias_gradient is None else norm + bias_gradient.square().sum()

    @staticmethod
    @without_modes
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        weight_gradient, bias_gradient, *flat = ctx.saved_tensors
        twice = 2 * cotangent
        pulled, pulled_bias = twice * weight_gradient, None if bias_gradient is None else twice * bias_gradient
        results: list[Tensor | None] = [None, None]
        for use, inputs, gradients in zip(ctx.uses, flat[::2], flat[1::2], strict=True):
            dtype = gradients.dtype
            each = pulled.to(dtype), None if pulled_bias is None else pulled_bias.to(dtype)
            results += use.pull_back(inputs, gradients, *each)
        return tuple(results)


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    first, *rest = tensors
    return sum(rest, first)


def _inputs(use: LayerUse) -> Tensor:
    assert use.inputs is not None
    return use.inputs


def _output_gradient(use: LayerUse) -> Tensor:
    assert use.output_gradient is not None
    return use.output_gradient


def _wide(tensor: Tensor) -> Tensor:
    """Half-precision factors are squared and summed in float32: a sum of squares in float16 overflows at 256²."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
