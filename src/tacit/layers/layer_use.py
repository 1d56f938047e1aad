"""A layer whose weight gradient is known by its factors, so that it need not be formed inside the graph.

A linear layer with input rows X and output-gradient rows D has the weight gradient G = DᵀX. While the penalty's graph
is built, a `LayerUse` keeps X and D instead of G. The passes over one layer use:

    forward pass      X ──── layer (W) ──────────▶ z ──▶ … ──▶ Ĉ

    inner pass        X̄ ◀─── input gradient (W) ── D ◀── … ◀── 1            the use keeps X and D

    R = ‖∇Ĉ‖²         ‖G(X, D)‖², added up over layer uses (`squared_norms`)

    outer pass        1. squared norm:    V = ∂R/∂G arrives;  D receives layer(X; V), X receives input gradient(D; V)
    of Ĉ + (λ/4) R    2. input gradient:  T = ∂/∂X̄ arrives;   D receives layer(T; W), W receives G(T, D)
                      3. layer:           S = ∂/∂z arrives;   X receives input gradient(S; W), W receives G(X, S)

Autograd makes the visits of the outer pass in this order, and leaves the second out when nothing below the layer is in
the norm. T waits for visit 3, where the weight receives both its contributions in one product of stacked rows:

    ∇_W (Ĉ + (λ/4)‖∇Ĉ‖²) = [S; D]ᵀ [X; T]

Convolutions have the same shape with the convolution's own weight gradient in place of the matrix product.

With K micro-batches in one pass every tensor has a leading axis of K, the weight is shared, and V is one per
micro-batch: (K, *shape of the weight).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.layers.modes import without_modes
from tacit.layers.penalty_part import RowWatch


class LayerUse(ABC):
    """One call of one layer inside a closure: its facts, and what the passes leave behind.

    The inner pass sets `inputs` (X) and `output_gradient` (D). The outer pass visits a layer use up to three times (see
    above). `tangents` (T) wait for the layer's visit; where that has been, the visit that has them returns their
    contribution itself. So no order of visits loses a term.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.micro_batches: int | None = None  # how many go through in one pass
        self.inner = True
        self.ordinary: Callable[[], bool] = lambda: False  # whether to differentiate now as any layer does
        self.weight_by_autograd = self.bias_by_autograd = False
        self.keep_factors = self.keep_for_another_pass = False
        self.inputs: Tensor | None = None
        self.output_gradient: Tensor | None = None
        self.factors: tuple[Tensor, Tensor] | None = None
        self.weight_gradient_of_norm: Tensor | None = None  # G over all uses, where the direct form has formed it
        self.in_norm: set[str] = set()  # "X" and "D", as far as the norm's gradient reaches them
        self.row_watch: RowWatch | None = None
        self.tangents: Tensor | None = None
        self.layer_is_past = False

    def start_outer_pass(self) -> None:
        """Forget an earlier outer pass."""
        self.tangents, self.layer_is_past = None, False

    def apply(self, inputs: Tensor, weight: Tensor, bias: Tensor | None, common_leaf: Tensor) -> Tensor:
        """The layer's output. The inner pass asks for the gradient of `common_leaf`, which all uses depend on."""
        return _Layer.apply(inputs, weight, bias, common_leaf, self)

    # -- the layer's own algebra ------------------------------------------------------------------------------------
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

    def parameter_gradients(
        self, inputs: Tensor, output_gradient: Tensor, wants_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """G and b̄ in one call, for layers whose kernel does both at the price of one."""
        bias_gradient = self.bias_gradient(output_gradient) if wants_bias else None
        return self.weight_gradient(inputs, output_gradient), bias_gradient

    # -- the same, where every micro-batch has a weight (V) or a weight gradient of its own ---------------------------
    def each_forward(self, inputs: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
        if self.micro_batches is None:
            return self.forward(inputs, weights, biases)
        each = [None] * self.micro_batches if biases is None else biases.unbind()
        return torch.stack([self.forward(*one) for one in zip(inputs.unbind(), weights.unbind(), each, strict=True)])

    def each_input_gradient(self, output_gradient: Tensor, weights: Tensor, like: Tensor) -> Tensor:
        if self.micro_batches is None:
            return self.input_gradient(output_gradient, weights, like)
        triples = zip(output_gradient.unbind(), weights.unbind(), like.unbind(), strict=True)
        return torch.stack([self.input_gradient(*one) for one in triples])

    def each_parameter_gradients(
        self, inputs: Tensor, output_gradient: Tensor, wants_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.micro_batches is None:
            return self.parameter_gradients(inputs, output_gradient, wants_bias)
        pairs = zip(inputs.unbind(), output_gradient.unbind(), strict=True)
        weights, biases = zip(*[self.parameter_gradients(*pair, wants_bias) for pair in pairs], strict=True)
        return torch.stack(weights), torch.stack(biases) if wants_bias else None

    def each_bias_gradient(self, output_gradient: Tensor) -> Tensor:
        if self.micro_batches is None:
            return self.bias_gradient(output_gradient)
        return torch.stack([self.bias_gradient(one) for one in output_gradient.unbind()])

    # -- what the norm is made of ------------------------------------------------------------------------------------
    def rows_of_norm(self, name: str) -> Tensor:
        """X or D for the norm to depend on: the row watch sees what it hands back to them."""
        rows = self.inputs if name == "X" else self.output_gradient
        assert rows is not None
        if not rows.requires_grad:
            return rows
        self.in_norm.add(name)
        alias = rows.view_as(rows)

        def keep(gradient: Tensor | None) -> None:
            if self.row_watch is not None and gradient is not None:
                self.row_watch.keep(name, gradient)

        alias.register_hook(keep)
        return alias

    # -- the outer pass -----------------------------------------------------------------------------------------------
    def pull_back(
        self, inputs: Tensor, output_gradient: Tensor, pulled: Tensor, pulled_bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Visit 1: the gradients of ⟨V, G(X, D)⟩ + ⟨v, b̄(D)⟩ for X and D."""
        to_inputs = self.each_input_gradient(output_gradient, pulled, inputs) if inputs.requires_grad else None
        return to_inputs, self.each_forward(inputs, pulled, pulled_bias)

    def differentiate_input_gradient(
        self, tangents: Tensor | None, weight: Tensor, output_gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Visit 2: the gradient for D, from T and W; and for W, if the layer is past."""
        if tangents is None:
            return None, None
        to_weight = None
        if self.layer_is_past:
            to_weight = self.weight_gradient(tangents, output_gradient.detach())
            if self.row_watch is not None:
                self.row_watch.part.along_missing = True
        else:
            self.tangents = tangents
        return self.forward(tangents, weight, None), to_weight

    def final_gradients(
        self, inputs: Tensor, output_gradient: Tensor, weight: Tensor, wants: tuple[bool, bool, bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Visit 3: gradients for inputs (S with W), weight (SᵀX + DᵀT) and bias; forgets what the passes left."""
        to_weight = to_bias = None
        to_inputs = self.input_gradient(output_gradient, weight, inputs) if wants[0] else None
        if self.row_watch is not None:
            D, T = self.recorded_gradient(), self.tangents
            self.row_watch.see(inputs, D, output_gradient, T, in_norm=self.in_norm)
        if wants[1]:
            to_weight, to_bias = self.final_parameter_gradients(inputs, output_gradient, wants[2])
        elif wants[2]:
            to_bias = self.bias_gradient(output_gradient)
        self.tangents, self.layer_is_past = None, True
        if not self.keep_for_another_pass:  # autograd frees its own tensors on the way, too
            self.inputs = self.output_gradient = None
        return to_inputs, to_weight, to_bias

    def final_parameter_gradients(
        self, inputs: Tensor, output_gradient: Tensor, wants_bias: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        to_weight, to_bias = self.parameter_gradients(inputs, output_gradient, wants_bias)
        if self.tangents is not None:
            to_weight = to_weight.add_(self.weight_gradient(self.tangents, self.recorded_gradient()))
        return to_weight, to_bias

    def recorded_inputs(self) -> Tensor:
        assert self.inputs is not None
        return self.inputs.detach()

    def recorded_gradient(self) -> Tensor:
        assert self.output_gradient is not None
        return self.output_gradient.detach()


class _Layer(torch.autograd.Function):
    """The layer itself. Its first differentiation (the inner pass) records D; its second (the outer pass) uses it."""

    @staticmethod
    @without_modes
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, common_leaf: Tensor, use: LayerUse
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.use = use
        outputs = use.forward(inputs, weight, bias)
        # Autograd forbids changes in place (a ReLU, `h += x`) on a view that a Function made, even if nobody else holds
        # its base. A layer's rows reshaped to tokens are such a view.
        if outputs._is_view():
            outputs = torch.ops.aten._unsafe_view(outputs.contiguous(), outputs.shape)
        return outputs

    @staticmethod
    @without_modes
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        use: LayerUse = ctx.use
        wants_inputs, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        if use.ordinary():  # the closure differentiates (a physics loss, a critic's penalty), or the check does
            to_inputs = use.input_gradient(output_gradient, weight, inputs) if wants_inputs else None
            to_weight = use.weight_gradient(inputs, output_gradient) if wants_weight else None
            return to_inputs, to_weight, use.bias_gradient(output_gradient) if wants_bias else None, None, None
        if not use.inner:
            wants = (wants_inputs, wants_weight, wants_bias)
            return *use.final_gradients(inputs, output_gradient, weight, wants), None, None
        input_gradient = weight_gradient = bias_gradient = None
        use.inputs, use.output_gradient = inputs, output_gradient
        if wants_inputs:
            input_gradient = _InputGradient.apply(output_gradient, weight, inputs, use)
        # A weight that is also used outside known layers gets an ordinary, differentiable gradient here.
        if use.weight_by_autograd and wants_weight:
            weight_gradient = use.weight_gradient(inputs, output_gradient)
        if use.bias_by_autograd and wants_bias:
            bias_gradient = use.bias_gradient(output_gradient)
        return input_gradient, weight_gradient, bias_gradient, None, None


class _InputGradient(torch.autograd.Function):
    """The layer's input gradient, D ↦ D W, itself differentiable: T ↦ T Wᵀ, leaving T for the weight's gradient."""

    @staticmethod
    @without_modes
    def forward(ctx: Any, output_gradient: Tensor, weight: Tensor, inputs: Tensor, use: LayerUse) -> Tensor:
        ctx.save_for_backward(output_gradient, weight)
        ctx.set_materialize_grads(False)
        ctx.use = use
        return use.input_gradient(output_gradient, weight, inputs.detach())

    @staticmethod
    @without_modes
    def backward(ctx: Any, tangents: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        output_gradient, weight = ctx.saved_tensors
        return *ctx.use.differentiate_input_gradient(tangents, weight, output_gradient), None, None
