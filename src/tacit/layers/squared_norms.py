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

from tacit.layers.kinds import EmbeddingSite, LinearSite, rows
from tacit.layers.layer_use import Site
from tacit.layers.modes import without_modes


def weight_squared_norm(sites: Sequence[Site], *, with_bias: bool) -> Tensor:
    """‖G‖² for one weight over all its uses; `with_bias` adds ‖b̄‖² of the bias that is used just there."""
    if uses_gram(sites):
        return _gram_norm(sites, with_bias)
    if by_index(sites):
        return _norm_by_index(sites)
    return _direct_norm(sites, with_bias)


def bias_squared_norm(sites: Sequence[Site]) -> Tensor:
    """‖b̄‖² for one bias over all its uses: few enough numbers for ordinary autograd."""
    # Only with micro-batches its penalty's part has to be known by rows; otherwise by its gradient.
    rows = [_output_gradient(site) if site.micro_batches is None else site.rows_of_norm("D") for site in sites]
    gradients = [site.each_bias_gradient(_wide(each)) for site, each in zip(sites, rows, strict=True)]
    return torch.stack(gradients).sum(0).square().sum()


def uses_gram(sites: Sequence[Site]) -> bool:
    """Whether the Gram form needs fewer multiplications: 2 r²(n+p) against 3 r n p, with r rows in all."""
    if not all(isinstance(site, LinearSite) for site in sites):
        return False
    fan_out, fan_in = sites[0].weight.shape
    count = sum(_row_count(site) for site in sites)
    return 2 * count * (fan_in + fan_out) <= 3 * fan_in * fan_out


def by_index(sites: Sequence[Site]) -> bool:
    """Whether only embeddings use the weight: most of its rows have no gradient then, and G is not formed."""
    return all(isinstance(site, EmbeddingSite) for site in sites)


def _row_count(site: Site) -> int:
    """Rows of one micro-batch, or of the batch."""
    gradient = _output_gradient(site)
    return gradient.numel() // max(1, gradient.shape[-1]) // (site.micro_batches or 1)


def _gram_norm(sites: Sequence[Site], with_bias: bool) -> Tensor:
    pairs = []
    for site in sites:
        assert isinstance(site, LinearSite)
        left, right = site.factor_rows(_wide(site.rows_of_norm("X")), _wide(site.rows_of_norm("D")))
        if with_bias and site.transposed:  # a bias adds to the Gram matrix of the inputs, here the right rows
            left, right = right, left
        pairs.append((left, right))
    left, right = (parts[0] if len(parts) == 1 else torch.cat(parts, -2) for parts in zip(*pairs, strict=True))
    return _GramNorm.apply(right, left, with_bias)


def _norm_by_index(sites: Sequence[Site]) -> Tensor:
    """Micro-batches have rows of their own: index i of micro-batch k counts as index k · (rows of the weight) + i."""
    indices, gradients = [], []
    for site in sites:
        assert isinstance(site, EmbeddingSite)
        index, gradient = _inputs(site), rows(_wide(site.rows_of_norm("D")))
        if site.padding_index is not None:  # those rows never enter the weight's gradient
            gradient = gradient.masked_fill((index == site.padding_index).reshape(-1, 1), 0.0)
        if site.micro_batches is not None:
            first = site.weight.shape[0] * torch.arange(site.micro_batches, device=index.device)
            index = index.reshape(site.micro_batches, -1) + first.unsqueeze(1)
        indices.append(index.reshape(-1))
        gradients.append(gradient)
    found, places = torch.unique(torch.cat(indices), return_inverse=True)
    whole = torch.cat(gradients)
    return whole.new_zeros(len(found), whole.shape[-1]).index_add(0, places, whole).square().sum()


def _direct_norm(sites: Sequence[Site], with_bias: bool) -> Tensor:
    flat = [tensor for site in sites for tensor in (site.rows_of_norm("X"), site.rows_of_norm("D"))]
    return _DirectNorm.apply(list(sites), with_bias, *flat)


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
    def forward(ctx: Any, sites: list[Site], with_bias: bool, *flat: Tensor) -> Tensor:
        triples = zip(sites, map(_wide, flat[::2]), map(_wide, flat[1::2]), strict=True)
        found = [site.each_parameter_gradients(inputs, gradients, with_bias) for site, inputs, gradients in triples]
        weight_gradient = _sum(weight for weight, _ in found)
        bias_gradient = _sum(bias for _, bias in found if bias is not None) if with_bias else None
        ctx.save_for_backward(weight_gradient, bias_gradient, *flat)
        ctx.sites = sites
        sites[0].weight_gradient_of_norm = weight_gradient
        norm = weight_gradient.square().sum()
        return norm if bias_gradient is None else norm + bias_gradient.square().sum()

    @staticmethod
    @without_modes
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        weight_gradient, bias_gradient, *flat = ctx.saved_tensors
        twice = 2 * cotangent
        pulled, pulled_bias = twice * weight_gradient, None if bias_gradient is None else twice * bias_gradient
        results: list[Tensor | None] = [None, None]
        for site, inputs, gradients in zip(ctx.sites, flat[::2], flat[1::2], strict=True):
            dtype = gradients.dtype
            each = pulled.to(dtype), None if pulled_bias is None else pulled_bias.to(dtype)
            results += site.pull_back(inputs, gradients, *each)
        return tuple(results)


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    first, *rest = tensors
    return sum(rest, first)


def _inputs(site: Site) -> Tensor:
    assert site.inputs is not None
    return site.inputs


def _output_gradient(site: Site) -> Tensor:
    assert site.output_gradient is not None
    return site.output_gradient


def _wide(tensor: Tensor) -> Tensor:
    """Half-precision factors are squared and summed in float32: a sum of squares in float16 overflows at 256²."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
