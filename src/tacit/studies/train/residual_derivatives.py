"""∇Ĉ and Hessian-vector products of a SkipInit `WideResNet`, written out layer by layer.

The penalised gradient is ∇Ĉ + (λ/2) H ∇Ĉ. Autograd finds it by differentiating its own backward pass, in some 600
calls for WRN-10-1. Written out it is one pass forward and one back, then the same two for their derivatives along a
direction: as many operations in a third of the calls, and about two thirds of the time (`benchmarks/wrn_update.py`).

A layer z = W ∗ x + b with D = ∂Ĉ/∂z, and its derivatives along a direction (Ẇ, ḃ), marked by a dot:

    forward     z = W ∗ x + b                        ż = W ∗ ẋ + Ẇ ∗ x + ḃ
    backward    ∂Ĉ/∂x = Wᵀ ∗ D                       its dot is Wᵀ ∗ Ḋ + Ẇᵀ ∗ D
                ∂Ĉ/∂W = D ⋆ x,  ∂Ĉ/∂b = Σ D          H·direction is Ḋ ⋆ x + D ⋆ ẋ for W and Σ Ḋ for b

ReLU multiplies each by the same mask: its second derivative is 0, as autograd has it. A SkipInit scalar s on a branch r
has ∂Ĉ/∂s = ⟨D, r⟩. Logits ℓ with probabilities p of B examples have D = (p − labels)/B and Ḋ = p ∘ (ℓ̇ − ⟨p, ℓ̇⟩)/B.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tacit.studies.train.models import SkipInitBlock, WideResNet

Gradients = dict[Tensor, Tensor]  # by parameter
Direction = Mapping[Tensor, Tensor]


class Derivatives:
    """Derivatives of the mean cross-entropy of one minibatch: call `gradient`, then `hessian_product`."""

    def __init__(self, model: WideResNet) -> None:
        self.stem = _Convolution(model.stem)
        self.blocks = [_Block(block) for block in model.blocks]
        self.head = _Head(model.head)

    @torch.no_grad()
    def gradient(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Gradients]:
        """The logits, and ∂Ĉ/∂ω of every parameter ω."""
        found: Gradients = {}
        outputs = self.stem.forward(_Pair(images, images, images))  # no derivative reaches the images
        for block in self.blocks:
            outputs = block.forward(outputs)
        logits, gradient = self.head.gradient(outputs, labels, found)
        for block in reversed(self.blocks):
            gradient = block.backward(gradient, found)
        self.stem.backward(gradient, found, to_inputs=False)
        return logits, found

    @torch.no_grad()
    def hessian_product(self, direction: Direction) -> Gradients:
        """H·direction for every parameter, at the weights and on the minibatch of the last `gradient`."""
        found: Gradients = {}
        outputs = self.stem.forward_dot(direction, from_inputs=False)
        for block in self.blocks:
            outputs = block.forward_dot(outputs, direction)
        self.head.hessian_product(outputs, direction, found)
        for block in reversed(self.blocks):
            block.backward_dot(direction, found)
        self.stem.backward_dot(direction, found, to_inputs=False)
        return found


class _Pair(NamedTuple):
    """A tensor and its dot, in the two halves of one batch: the gradient of a weight reads both in one call."""

    both: Tensor
    value: Tensor
    dot: Tensor

    @classmethod
    def of_inputs(cls, like: Tensor) -> _Pair:
        both = _twice(like)
        return cls(both, both[: len(like)], both[len(like) :])

    @classmethod
    def of_gradients(cls, like: Tensor) -> _Pair:
        """The dot first, so that it meets the value of the inputs."""
        both = _twice(like)
        return cls(both, both[len(like) :], both[: len(like)])


class _Convolution:
    """A convolution with a bias, the inputs that it saw and the gradients of its outputs."""

    inputs: _Pair
    gradients: _Pair

    def __init__(self, layer: nn.Conv2d) -> None:
        assert layer.bias is not None
        assert not isinstance(layer.padding, str)
        self.weight, self.bias = layer.weight, layer.bias
        self.settings = (list(layer.stride), list(layer.padding), list(layer.dilation), False, [0, 0], 1)

    def forward(self, inputs: _Pair) -> Tensor:
        self.inputs = inputs
        return self._forward(inputs.value, self.weight, self.bias)

    def backward(self, gradients: _Pair, found: Gradients, *, to_inputs: bool = True) -> Tensor:
        self.gradients = gradients
        gradient, found[self.weight], found[self.bias] = self._backward(
            gradients.value, self.inputs.value, self.weight, [to_inputs, True, True]
        )
        return gradient

    def forward_dot(self, direction: Direction, *, from_inputs: bool = True) -> Tensor:
        outputs = self._forward(self.inputs.value, direction[self.weight], direction[self.bias])
        return outputs.add_(self._forward(self.inputs.dot, self.weight, None)) if from_inputs else outputs

    def backward_dot(self, direction: Direction, found: Gradients, *, to_inputs: bool = True) -> Tensor | None:
        value, dot = self.gradients.value, self.gradients.dot
        found[self.bias] = dot.sum((0, 2, 3))
        if not to_inputs:
            found[self.weight] = self._backward(dot, self.inputs.value, self.weight, [False, True, False])[1]
            return None
        found[self.weight] = self._backward(self.gradients.both, self.inputs.both, self.weight, [False, True, False])[1]
        gradient = self._backward(dot, self.inputs.value, self.weight, [True, False, False])[0]
        return gradient.add_(self._backward(value, self.inputs.value, direction[self.weight], [True, False, False])[0])

    def _forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        outputs: Tensor = torch.ops.aten.convolution(inputs, weight, bias, *self.settings)
        return outputs

    def _backward(
        self, gradient: Tensor, inputs: Tensor, weight: Tensor, which: list[bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of inputs, weight and bias: those that `which` asks for."""
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            gradient, inputs, weight, [len(weight)], *self.settings, which
        )
        return found


class _Block:
    """z ↦ skip(z) + s · second(relu(first(relu(z)))), with the names of `SkipInitBlock`."""

    branch: Tensor
    branch_dot: Tensor
    above: _Pair  # the gradients of the outputs
    below: _Pair  # the gradients of z

    def __init__(self, block: nn.Module) -> None:
        assert isinstance(block, SkipInitBlock)
        self.first, self.second, self.scalar = _Convolution(block.first), _Convolution(block.second), block.scalar
        self.projection = None if block.projection is None else _Convolution(block.projection)

    def forward(self, inputs: Tensor) -> Tensor:
        active = _relu(inputs)
        skip = inputs if self.projection is None else self.projection.forward(active)
        self.branch = self.second.forward(_relu(self.first.forward(active)))
        return torch.addcmul(skip, self.branch, self.scalar)

    def backward(self, gradients: _Pair, found: Gradients) -> _Pair:
        self.above = gradients
        found[self.scalar] = _inner_product(gradients.value, self.branch)
        to_branch = _Pair.of_gradients(self.branch)
        torch.mul(gradients.value, self.scalar, out=to_branch.value)
        to_hidden = _Pair.of_gradients(self.second.inputs.value)
        _where_positive(self.second.inputs.value, self.second.backward(to_branch, found), out=to_hidden.value)
        to_active = self.first.backward(to_hidden, found)
        if self.projection is not None:
            to_active.add_(self.projection.backward(gradients, found))
        self.below = _Pair.of_gradients(to_active)
        _where_positive(self.first.inputs.value, to_active, out=self.below.value)
        if self.projection is None:
            self.below.value.add_(gradients.value)
        return self.below

    def forward_dot(self, inputs: Tensor, direction: Direction) -> Tensor:
        _where_positive(self.first.inputs.value, inputs, out=self.first.inputs.dot)
        skip = inputs if self.projection is None else self.projection.forward_dot(direction)
        hidden = self.first.forward_dot(direction)
        _where_positive(self.second.inputs.value, hidden, out=self.second.inputs.dot)
        self.branch_dot = self.second.forward_dot(direction)
        outputs = torch.addcmul(skip, self.branch_dot, self.scalar)
        return outputs.addcmul_(self.branch, direction[self.scalar])

    def backward_dot(self, direction: Direction, found: Gradients) -> None:
        value, dot = self.above.value, self.above.dot
        found[self.scalar] = _inner_product(dot, self.branch) + _inner_product(value, self.branch_dot)
        to_branch = torch.mul(dot, self.scalar, out=self.second.gradients.dot)
        to_branch.addcmul_(value, direction[self.scalar])
        to_hidden = self.second.backward_dot(direction, found)
        assert to_hidden is not None
        _where_positive(self.second.inputs.value, to_hidden, out=self.first.gradients.dot)
        to_active = self.first.backward_dot(direction, found)
        assert to_active is not None
        if self.projection is not None:
            to_active.add_(self.projection.backward_dot(direction, found))  # type: ignore[arg-type]
        _where_positive(self.first.inputs.value, to_active, out=self.below.dot)
        if self.projection is None:
            self.below.dot.add_(dot)


class _Head:
    """ReLU, the mean over places, one linear layer, softmax and cross-entropy."""

    features: Tensor
    pooled: Tensor
    probabilities: Tensor
    to_logits: Tensor  # ∂Ĉ/∂logits
    below: _Pair

    def __init__(self, layer: nn.Linear) -> None:
        self.weight, self.bias = layer.weight, layer.bias

    def gradient(self, inputs: Tensor, labels: Tensor, found: Gradients) -> tuple[Tensor, _Pair]:
        self.features = torch.relu(inputs)
        self.pooled = self.features.mean((2, 3))
        logits = torch.addmm(self.bias, self.pooled, self.weight.T)
        self.probabilities = torch.softmax(logits, 1)
        errors = self.probabilities.clone()
        errors[torch.arange(len(labels), device=labels.device), labels] -= 1
        self.to_logits = errors / len(labels)
        found[self.weight], found[self.bias] = self.to_logits.T @ self.pooled, self.to_logits.sum(0)
        self.below = _Pair.of_gradients(inputs)
        self._spread(self.to_logits @ self.weight, out=self.below.value)
        return logits, self.below

    def hessian_product(self, inputs: Tensor, direction: Direction, found: Gradients) -> None:
        """Its own part, and the dot of `below`."""
        weight_dot, pooled = direction[self.weight], self.pooled
        pooled_dot = _where_positive(self.features, inputs).mean((2, 3))
        logits = pooled_dot @ self.weight.T + torch.addmm(direction[self.bias], pooled, weight_dot.T)
        centred = logits - (self.probabilities * logits).sum(1, keepdim=True)
        to_logits = self.probabilities * centred / len(logits)
        found[self.weight] = to_logits.T @ pooled + self.to_logits.T @ pooled_dot
        found[self.bias] = to_logits.sum(0)
        self._spread(to_logits @ self.weight + self.to_logits @ weight_dot, out=self.below.dot)

    def _spread(self, to_pooled: Tensor, *, out: Tensor) -> None:
        places = self.features.shape[2] * self.features.shape[3]
        _where_positive(self.features, (to_pooled / places)[:, :, None, None].expand_as(self.features), out=out)


def _relu(inputs: Tensor) -> _Pair:
    """The activated inputs, and room for their dot."""
    active = _Pair.of_inputs(inputs)
    torch.clamp_min(inputs, 0, out=active.value)
    return active


def _where_positive(active: Tensor, values: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The values where a ReLU let its input through, else 0."""
    made = torch.empty_like(active) if out is None else out
    torch.ops.aten.threshold_backward.grad_input(values, active, 0, grad_input=made)
    return made


def _inner_product(left: Tensor, right: Tensor) -> Tensor:
    """Of two batches of images, in the order of a channels-last memory: no copy there."""
    return torch.dot(left.permute(0, 2, 3, 1).reshape(-1), right.permute(0, 2, 3, 1).reshape(-1))


def _twice(like: Tensor) -> Tensor:
    last = like.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    shape = (2 * len(like), *like.shape[1:])
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout)
