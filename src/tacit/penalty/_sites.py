"""Layers whose weight gradient is known by its factors, so that it need not be formed inside the graph.

A linear layer with input rows X and output-gradient rows D has the weight gradient G = DᵀX. While the penalty's graph
is built, a `Site` keeps X and D instead of G. When the whole objective is differentiated, the layer's weight receives
two contributions at once: (X, S) from the forward pass and (T, D) from the backward pass, one product of stacked rows:

    ∇_W (Ĉ + (λ/4)‖∇Ĉ‖²) = [S; D]ᵀ [X; T]

Convolutions have the same shape with the convolution's own weight gradient in place of the matrix product.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.penalty import _skinny


class Site(ABC):
    """One call of one layer inside a closure: its facts, and what the passes leave behind.

    The inner pass sets `inputs` (X) and `output_gradient` (D). The outer pass visits a site up to three times (see
    above). `pulled` (V = ∂R/∂G) and `tangents` (T) wait for a later visit only while that visit is known to come;
    otherwise the visit that has them returns their contribution itself. So no order of visits loses a term.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.inner = True
        self.ordinary: Callable[[], bool] = lambda: False  # whether to differentiate now as any layer does
        self.weight_by_autograd = self.bias_by_autograd = False
        self.direct = False  # whether its squared norm has the direct form, which needs V
        self.keep_factors = self.keep_for_another_pass = False
        self.inputs: Tensor | None = None
        self.output_gradient: Tensor | None = None
        self.input_gradient_node: Any = None  # of the inner pass, until it is known whether the penalty reaches it
        self.factors: tuple[Tensor, Tensor] | None = None
        self.start_outer_pass()

    def start_outer_pass(self, *, input_gradient_comes: bool = False) -> None:
        """Forget an earlier outer pass; say whether the coming one will visit the input gradient."""
        self.tangents: Tensor | None = None
        self.pulled: Tensor | None = None
        self.pulled_bias: Tensor | None = None
        self.input_gradient_comes, self.layer_comes = input_gradient_comes, True

    @property
    def complete(self) -> bool:
        """Whether nothing that a visit of the outer pass left is still waiting."""
        return self.pulled is None and self.tangents is None

    def apply(self, inputs: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor) -> Tensor:
        """The layer's output. The inner pass asks for the gradient of `anchor`, a leaf that only sites hang on."""
        return _Layer.apply(inputs, weight, bias, anchor, self)

    @abstractmethod
    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's output; bilinear in (inputs, weight) when there is no bias."""

    @abstractmethod
    def input_gradient(self, output_gradient: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """Bilinear in (output gradient, weight); `like` only gives the shape."""

    @abstractmethod
    def weight_gradient(self, inputs: Tensor, output_gradient: Tensor) -> Tensor:
        """G, bilinear in (inputs, output gradient)."""

    @abstractmethod
    def bias_gradient(self, output_gradient: Tensor) -> Tensor:
        """The sum of the output gradient over everything but the output's features."""

    def pull_back(
        self, inputs: Tensor, output_gradient: Tensor, pulled: Tensor, pulled_bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of ⟨V, G(X, D)⟩ + ⟨v, b̄(D)⟩ for X and D: the layer itself with V and v for its parameters.

        What a later visit can add into a tensor of its own is left to it.
        """
        to_inputs = to_output_gradient = None
        if self.input_gradient_comes or (self.layer_comes and inputs.requires_grad):
            self.pulled = pulled if self.pulled is None else self.pulled + pulled
            if pulled_bias is not None:
                self.pulled_bias = pulled_bias if self.pulled_bias is None else self.pulled_bias + pulled_bias
        if not self.input_gradient_comes:
            to_output_gradient = self.forward(inputs, pulled, pulled_bias)
        if not self.layer_comes and inputs.requires_grad:
            to_inputs = self.input_gradient(output_gradient, pulled, inputs)
        return to_inputs, to_output_gradient

    def differentiate_input_gradient(
        self, tangents: Tensor | None, weight: Tensor, output_gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradient for D (T through the layer with W, X through the layer with V), and for W if the layer is past.

        T is left for the layer, which adds its part to the weight's gradient.
        """
        self.input_gradient_comes = False
        to_weight = None
        if self.layer_comes:
            self.tangents = tangents
        elif tangents is not None:
            to_weight = self.weight_gradient(tangents, output_gradient.detach())
        result = None if tangents is None else self.forward(tangents, weight, None)
        if self.pulled is not None:
            assert self.inputs is not None
            extra = self.forward(self.inputs.detach(), *self._pulled_as(weight.dtype))
            result = extra if result is None else result.add_(extra)
        self._release_when_past()
        return result, to_weight

    def final_gradients(
        self, inputs: Tensor, output_gradient: Tensor, weight: Tensor, wants: tuple[bool, bool, bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The outer pass of the layer: gradients for inputs (S with W, D with V), weight (SᵀX + DᵀT) and bias."""
        to_inputs = to_weight = to_bias = None
        if wants[0]:
            to_inputs = self.input_gradient(output_gradient, weight, inputs)
            if self.pulled is not None:
                pulled, _ = self._pulled_as(weight.dtype)
                to_inputs.add_(self.input_gradient(self.recorded_gradient(), pulled, inputs))
        if wants[1]:
            to_weight, to_bias = self.final_parameter_gradients(inputs, output_gradient, wants[2])
        elif wants[2]:
            to_bias = self.bias_gradient(output_gradient)
        return to_inputs, to_weight, to_bias

    def final_parameter_gradients(
        self, inputs: Tensor, output_gradient: Tensor, wants_bias: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        to_weight, to_bias = self.parameter_gradients(inputs, output_gradient, wants_bias)
        if self.tangents is not None:
            to_weight = to_weight.add_(self.weight_gradient(self.tangents, self.recorded_gradient()))
        return to_weight, to_bias

    def parameter_gradients(
        self, inputs: Tensor, output_gradient: Tensor, wants_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """G and b̄ in one call, for layers whose kernel does both at the price of one."""
        bias_gradient = self.bias_gradient(output_gradient) if wants_bias else None
        return self.weight_gradient(inputs, output_gradient), bias_gradient

    def layer_is_past(self) -> None:
        self.layer_comes = False
        self._release_when_past()

    def _release_when_past(self) -> None:
        """Drop what the passes left as soon as nobody needs it: autograd frees its own tensors on the way, too."""
        if self.layer_comes or self.input_gradient_comes:
            return
        self.tangents = self.pulled = self.pulled_bias = None
        if not self.keep_for_another_pass:
            self.inputs = self.output_gradient = None

    def recorded_gradient(self) -> Tensor:
        assert self.output_gradient is not None
        return self.output_gradient.detach()

    def _pulled_as(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        assert self.pulled is not None
        return self.pulled.to(dtype), None if self.pulled_bias is None else self.pulled_bias.to(dtype)


class LinearSite(Site):
    """z = x Wᵀ + b on the last axis; every other axis counts as rows."""

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _skinny.linear(inputs, weight, bias)

    def input_gradient(self, output_gradient: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        return _skinny.product(output_gradient, weight)

    def weight_gradient(self, inputs: Tensor, output_gradient: Tensor) -> Tensor:
        return rows(output_gradient).T @ rows(inputs)

    def bias_gradient(self, output_gradient: Tensor) -> Tensor:
        return rows(output_gradient).sum(0)

    def final_parameter_gradients(
        self, inputs: Tensor, output_gradient: Tensor, wants_bias: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        to_bias = self.bias_gradient(output_gradient) if wants_bias else None
        left, right = rows(output_gradient), rows(inputs)
        if self.tangents is not None:  # one product of stacked rows: the weight-sized result is written once
            left = torch.cat([left, rows(self.recorded_gradient())])
            right = torch.cat([right, rows(self.tangents)])
        if self.keep_factors:
            self.factors = (left, right)
            return None, to_bias
        return left.T @ right, to_bias


class ConvolutionSite(Site):
    """A 1-, 2- or 3-dimensional convolution with numeric padding."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, settings: tuple[list[int], list[int], list[int], int]
    ) -> None:
        super().__init__(weight, bias)
        self.stride, self.padding, self.dilation, self.groups = settings
        self.no_output_padding = [0] * len(self.stride)

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.ops.aten.convolution(
            inputs, weight, bias, self.stride, self.padding, self.dilation, False, self.no_output_padding, self.groups
        )

    def _backward(self, output_gradient: Tensor, inputs: Tensor, weight: Tensor, which: list[bool]) -> Any:
        bias_size = [output_gradient.shape[1]] if which[2] else None
        return torch.ops.aten.convolution_backward(
            output_gradient, inputs, weight, bias_size, self.stride, self.padding, self.dilation, False,
            self.no_output_padding, self.groups, which,
        )  # fmt: skip

    def input_gradient(self, output_gradient: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        return self._backward(output_gradient, like, weight, [True, False, False])[0]

    def weight_gradient(self, inputs: Tensor, output_gradient: Tensor) -> Tensor:
        return self.parameter_gradients(inputs, output_gradient, False)[0]

    def parameter_gradients(
        self, inputs: Tensor, output_gradient: Tensor, wants_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        weight = self.weight.detach().to(inputs.dtype)  # only its shape is used
        _, to_weight, to_bias = self._backward(output_gradient, inputs, weight, [False, True, wants_bias])
        return to_weight, to_bias if wants_bias else None

    def bias_gradient(self, output_gradient: Tensor) -> Tensor:
        return output_gradient.sum(dim=[axis for axis in range(output_gradient.dim()) if axis != 1])


class ScalarSite(Site):
    """z = s · x for a parameter with one element, such as SkipInit's: its gradient is one inner product."""

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return inputs * weight

    def input_gradient(self, output_gradient: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        return output_gradient * weight

    def weight_gradient(self, inputs: Tensor, output_gradient: Tensor) -> Tensor:
        return torch.dot(*_in_memory_order(inputs, output_gradient)).reshape(self.weight.shape)

    def bias_gradient(self, output_gradient: Tensor) -> Tensor:
        raise AssertionError("a scalar factor has no bias")


class EmbeddingSite(Site):
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
        picked = F.embedding(inputs, pulled)
        if self.padding_index is not None:  # those rows never enter the weight's gradient
            picked = picked.masked_fill((inputs == self.padding_index).unsqueeze(-1), 0.0)
        return None, picked


class _Layer(torch.autograd.Function):
    """The layer itself. Its first differentiation (the inner pass) records D; its second (the outer pass) uses it."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor, site: Site) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.site = site
        outputs = site.forward(inputs, weight, bias)
        # Autograd forbids changes in place (a ReLU, `h += x`) on a view that a Function made, even if nobody else holds
        # its base. A layer's rows reshaped to tokens are such a view.
        if outputs._is_view():
            outputs = torch.ops.aten._unsafe_view(outputs.contiguous(), outputs.shape)
        return outputs

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        site: Site = ctx.site
        wants_inputs, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        if site.ordinary():  # the closure differentiates (a physics loss, a critic's penalty), or the check below does
            to_inputs = site.input_gradient(output_gradient, weight, inputs) if wants_inputs else None
            to_weight = site.weight_gradient(inputs, output_gradient) if wants_weight else None
            return to_inputs, to_weight, site.bias_gradient(output_gradient) if wants_bias else None, None, None
        if not site.inner:
            wants = (wants_inputs, wants_weight, wants_bias)
            found = site.final_gradients(inputs, output_gradient, weight, wants)
            site.layer_is_past()
            return (*found, None, None)
        input_gradient = weight_gradient = bias_gradient = None
        site.inputs, site.output_gradient = inputs, output_gradient
        if wants_inputs:
            input_gradient = _InputGradient.apply(output_gradient, weight, inputs, site)
            site.input_gradient_node = input_gradient.grad_fn
        # A weight that is also used outside known layers gets an ordinary, differentiable gradient here.
        if site.weight_by_autograd and wants_weight:
            weight_gradient = site.weight_gradient(inputs, output_gradient)
        if site.bias_by_autograd and wants_bias:
            bias_gradient = site.bias_gradient(output_gradient)
        return input_gradient, weight_gradient, bias_gradient, None, None


class _InputGradient(torch.autograd.Function):
    """The layer's input gradient, D ↦ D W, itself differentiable: T ↦ T Wᵀ, leaving T for the weight's gradient."""

    @staticmethod
    def forward(ctx: Any, output_gradient: Tensor, weight: Tensor, inputs: Tensor, site: Site) -> Tensor:
        ctx.save_for_backward(output_gradient, weight)
        ctx.set_materialize_grads(False)
        ctx.site = site
        return site.input_gradient(output_gradient, weight, inputs.detach())

    @staticmethod
    def backward(ctx: Any, tangents: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        output_gradient, weight = ctx.saved_tensors
        return *ctx.site.differentiate_input_gradient(tangents, weight, output_gradient), None, None


class Rectify(torch.autograd.Function):
    """ReLU whose gradient, differentiated again, is one mask.

    PyTorch's own also returns a gradient of zeros for the activations, which costs two passes over memory.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        outputs = inputs.clamp_min(0)
        ctx.save_for_backward(outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> Tensor:
        outputs = ctx.saved_tensors[0].detach()
        if not torch.is_grad_enabled():  # the outer pass
            return torch.ops.aten.threshold_backward(output_gradient, outputs, 0)
        return _Mask.apply(output_gradient, outputs)


class _Mask(torch.autograd.Function):
    """d ↦ d where the unit is on: linear in d, so its gradient is itself."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, outputs: Tensor) -> Tensor:
        ctx.save_for_backward(outputs)
        return torch.ops.aten.threshold_backward(gradient, outputs, 0)

    @staticmethod
    def backward(ctx: Any, tangents: Tensor) -> tuple[Tensor, None]:
        return torch.ops.aten.threshold_backward(tangents, ctx.saved_tensors[0], 0), None


def rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _in_memory_order(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Both as vectors in one order of their elements; without a copy when both are channels-last."""
    last = torch.channels_last
    if left.dim() == 4 and left.is_contiguous(memory_format=last) and right.is_contiguous(memory_format=last):
        left, right = left.permute(0, 2, 3, 1), right.permute(0, 2, 3, 1)
    return left.reshape(-1), right.reshape(-1)
