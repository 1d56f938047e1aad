"""Many ReLU MLPs of one shape as one program: every tensor has a leading run axis, and no run sees another.

Layer l of run r maps its inputs X (B rows) to Z = XW + b, and the next layer's inputs are X' = max(Z, 0). With
D = ∂Ĉ/∂Z the weight gradient is XᵀD and the bias gradient 1ᵀD. Weight decay μ adds (μ/2)‖ω‖² to Ĉ, so the whole
gradient is v = ∇Ĉ + μω and the penalized loss of one minibatch is

    Ĉ + (μ/2)‖ω‖² + (λ/4)‖v‖²,      whose gradient is   v + (λ/2)(∇²Ĉ + μ)v                      (section 2.3)

∇²Ĉ v is the derivative of ∇Ĉ along v. Moving every W along XᵀD + μW and every b along 1ᵀD + μb moves

    Z by  Ż = ẊW + (XXᵀ + 1)D + μZ,      X' by  Ẋ' = Ż where Z > 0,      the gradient of the softmax by its own rule,
    D by  Ḋ = [(Ḋ' + μD')W'ᵀ + (D'D'ᵀ)X'] where Z > 0     (primes: the layer after)

so the weight gradient of the penalized loss is Xᵀ[D + (λ/2)(Ḋ + μD)] + (λ/2)ẊᵀD + μ(1 + λμ/2)W: the gradient XᵀD is
never formed where B is small beside the layer (the Gram form). Where it is not, the same products are
associated the other way, X(XᵀD) and D(XᵀD)ᵀ: the cheaper of the two is counted, per layer. With μω outside the
penalized norm, `decay_penalized=False`, the terms with λμ are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit._random import generator
from tacit.studies.train.models import mlp


@dataclass(frozen=True)
class Layers:
    """Weights (runs, fan_in, fan_out) and biases (runs, 1, fan_out) of every layer; updated in place."""

    weights: list[Tensor]
    biases: list[Tensor]

    def __len__(self) -> int:
        return len(self.weights)

    def tensors(self) -> list[Tensor]:
        return [*self.weights, *self.biases]

    def to(self, device: torch.device) -> Layers:
        return Layers([weight.to(device) for weight in self.weights], [bias.to(device) for bias in self.biases])


@dataclass(frozen=True)
class Rates:
    """One number per run, shaped (runs, 1, 1): the rate of this update, λ and μ."""

    learning_rate: Tensor
    strength: Tensor
    weight_decay: Tensor
    penalized: bool
    decayed: bool
    decay_penalized: bool = True  # whether μω is inside the penalized norm


def initialise(sizes: Sequence[int], seeds: Sequence[int], *, dtype: torch.dtype = torch.float32) -> Layers:
    """Run r starts where the plain model of its seed starts: `mlp(sizes, generator(seed, "init"))`."""
    models = [mlp(sizes, generator(seed, "init")) for seed in seeds]
    linear = [[module for module in model if isinstance(module, torch.nn.Linear)] for model in models]
    weights = [torch.stack([layer.weight.detach().T for layer in layers]) for layers in zip(*linear, strict=True)]
    biases = [torch.stack([layer.bias.detach()[None] for layer in layers]) for layers in zip(*linear, strict=True)]
    return Layers([weight.to(dtype).contiguous() for weight in weights], [bias.to(dtype) for bias in biases])


def outputs(layers: Layers, inputs: Tensor) -> Tensor:
    """Logits (runs, rows, classes) of inputs (runs, rows, features)."""
    return _forward(layers, inputs)[1]


def update(layers: Layers, inputs: Tensor, targets: Tensor, *, rates: Rates) -> Tensor:
    """One SGD update of every run on its own minibatch, in place; returns the logits before it.

    inputs (runs, B, features), targets one-hot (runs, B, classes).
    """
    X, logits = _forward(layers, inputs)
    probabilities = logits.softmax(2)
    D = _backward(layers, X, (probabilities - targets) / inputs.shape[1])
    if not rates.penalized:
        _apply(layers, X, [rates.learning_rate * d for d in D], rates=rates)
        return logits
    half = rates.learning_rate * rates.strength / 2  # ελ/2: the rate is multiplied in here, not once per weight
    T, S = _penalty(layers, X, D, probabilities, rates=rates, half=half)
    _apply(layers, X, S, rates=rates)
    for weight, t, d in zip(layers.weights[1:], T[1:], D[1:], strict=True):
        weight.baddbmm_(t.mT, half * d, alpha=-1)
    return logits


def squared_gradient_norm(layers: Layers, inputs: Tensor, targets: Tensor, *, weight_decay: Tensor) -> Tensor:
    """‖∇Ĉ + μω‖² of one minibatch, per run."""
    X, logits = _forward(layers, inputs)
    D = _backward(layers, X, (logits.softmax(2) - targets) / inputs.shape[1])
    total = torch.zeros(len(inputs), dtype=inputs.dtype, device=inputs.device)
    for x, d, weight, bias in zip(X, D, layers.weights, layers.biases, strict=True):
        total += (torch.bmm(x.mT, d) + weight_decay * weight).square().sum((1, 2))
        total += (d.sum(1, keepdim=True) + weight_decay * bias).square().sum((1, 2))
    return total


def half_squared_norm(layers: Layers) -> Tensor:
    """½‖ω‖² per run."""
    return 0.5 * torch.stack([tensor.square().sum((1, 2)) for tensor in layers.tensors()]).sum(0)


# -- the passes -----------------------------------------------------------------------------------------------------
def _forward(layers: Layers, inputs: Tensor) -> tuple[list[Tensor], Tensor]:
    """The inputs X of every layer, and the logits."""
    X = [inputs]
    for weight, bias in zip(layers.weights[:-1], layers.biases[:-1], strict=True):
        X.append(torch.baddbmm(bias, X[-1], weight).relu_())
    return X, torch.baddbmm(layers.biases[-1], X[-1], layers.weights[-1])


def _backward(layers: Layers, X: list[Tensor], last: Tensor) -> list[Tensor]:
    """D = ∂Ĉ/∂Z of every layer, from that of the last."""
    D = [last]
    for weight, x in zip(reversed(layers.weights[1:]), reversed(X[1:]), strict=True):
        D.append(_where_active(torch.bmm(D[-1], weight.mT), x))
    return D[::-1]


def _penalty(
    layers: Layers, X: list[Tensor], D: list[Tensor], probabilities: Tensor, *, rates: Rates, half: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """T = Ẋ and S = εD + (ελ/2)(Ḋ + μD) of every layer."""
    last = len(layers) - 1
    rows = X[0].shape[1]
    decayed = rates.decayed and rates.decay_penalized
    gram = [rows * (x.shape[2] + d.shape[2]) < x.shape[2] * d.shape[2] * 3 / 2 for x, d in zip(X, D, strict=True)]
    gradients = [None if small else torch.bmm(x.mT, d) for small, x, d in zip(gram, X, D, strict=True)]
    T = [torch.zeros(0)]  # the minibatch itself does not move
    for at, (x, d, gradient) in enumerate(zip(X, D, gradients, strict=True)):
        moved = torch.bmm(torch.bmm(x, x.mT), d) if gradient is None else torch.bmm(x, gradient)
        moved += d.sum(1, keepdim=True)
        if at > 0:
            moved.baddbmm_(T[at], layers.weights[at])
        if decayed:
            moved += rates.weight_decay * torch.baddbmm(layers.biases[at], x, layers.weights[at])
        if at < last:
            T.append(_where_active(moved, X[at + 1]))
    turned = probabilities * moved
    turned -= probabilities * turned.sum(2, keepdim=True)  # the softmax's own derivative
    S = [rates.learning_rate * D[last] + half / rows * turned]
    if decayed:
        S[0] += half * rates.weight_decay * D[last]
    for at in range(last, 0, -1):
        x, d, gradient = X[at], half * D[at], gradients[at]
        s = torch.bmm(torch.bmm(d, D[at].mT), x) if gradient is None else torch.bmm(d, gradient.mT)
        s.baddbmm_(S[-1], layers.weights[at].mT)
        s = _where_active(s, x)
        if decayed:
            s += half * rates.weight_decay * D[at - 1]
        S.append(s)
    return T, S[::-1]


def _apply(layers: Layers, X: list[Tensor], S: list[Tensor], *, rates: Rates) -> None:
    """ω ← (1 − εμ(1 + λμ/2)) ω − (XᵀS, 1ᵀS): no gradient is written anywhere."""
    if rates.decayed:
        decay = rates.weight_decay
        if rates.decay_penalized:
            decay = decay * (1 + rates.strength * rates.weight_decay / 2)
        for tensor in layers.tensors():
            tensor.mul_(1 - rates.learning_rate * decay)
    for weight, bias, x, s in zip(layers.weights, layers.biases, X, S, strict=True):
        weight.baddbmm_(x.mT, s, alpha=-1)
        bias.sub_(s.sum(1, keepdim=True))


def _where_active(gradient: Tensor, activations: Tensor) -> Tensor:
    """The gradient where the activation is positive, 0 elsewhere: one pass instead of a mask and a product."""
    return torch.ops.aten.threshold_backward(gradient, activations, 0)
