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

The penalty may also be a mean over micro-batches, `pieces` of equal size: products of rows with rows (XXᵀD, DDᵀX) then
stay inside a piece, and everything else is as before.

Between two layers may stand a linear map, a `Link` P: X' = P max(Z, 0). Then Ẋ' is P times the above, and what comes
back to D and Ḋ from the layer after passes Pᵀ first. A convolution is such a map and a product (`batched_conv1d`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit._util.random_generators import generator
from tacit.studies.train.models import mlp


class Link(ABC):
    """A linear map P from the activations of one layer to the rows that the next layer multiplies: X' = P max(Z, 0)."""

    @abstractmethod
    def forward(self, rows: Tensor) -> Tensor:
        """P times rows (runs, rows, features)."""

    @abstractmethod
    def transposed(self, rows: Tensor) -> Tensor:
        """Pᵀ times rows of the next layer."""


@dataclass(frozen=True)
class Layers:
    """Weights (runs, fan_in, fan_out) and biases (runs, 1, fan_out) of every layer; updated in place.

    `links` has what stands before each layer; none for an MLP, whose layers read activations as they are.
    """

    weights: list[Tensor]
    biases: list[Tensor]
    links: Sequence[Link] = field(default=())

    def __len__(self) -> int:
        return len(self.weights)

    def tensors(self) -> list[Tensor]:
        return [*self.weights, *self.biases]

    def to(self, device: torch.device) -> Layers:
        weights, biases = ([each.to(device) for each in part] for part in (self.weights, self.biases))
        return Layers(weights, biases, self.links)

    def read(self, layer: int, activations: Tensor) -> Tensor:
        """The rows that a layer multiplies, from the activations before it."""
        return self.links[layer].forward(activations) if self.links else activations

    def read_transposed(self, layer: int, rows: Tensor) -> Tensor:
        return self.links[layer].transposed(rows) if self.links else rows


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


def weights(layers: Layers, number: int) -> dict[str, Tensor]:
    """The parameters of one run by their names in the plain `mlp`, which has a ReLU after each layer but the last."""
    named: dict[str, Tensor] = {}
    for at, (weight, bias) in enumerate(zip(layers.weights, layers.biases, strict=True)):
        named |= {f"{2 * at}.weight": weight[number].T, f"{2 * at}.bias": bias[number, 0]}
    return named


def outputs(layers: Layers, inputs: Tensor) -> Tensor:
    """Logits (runs, rows, classes) of inputs (runs, rows, features)."""
    return forward(layers, inputs).logits


def update(layers: Layers, inputs: Tensor, targets: Tensor, *, rates: Rates) -> Tensor:
    """One SGD update of every run on its own minibatch, in place; returns the logits before it.

    inputs (runs, B, features), targets one-hot (runs, B, classes).
    """
    seen = forward(layers, inputs)
    X, logits = seen.X, seen.logits
    probabilities = logits.softmax(2)
    D = _backward(layers, seen, (probabilities - targets) / inputs.shape[1])
    if not rates.penalized:
        _apply(layers, X, [rates.learning_rate * d for d in D], rates=rates)
        return logits
    half = rates.learning_rate * rates.strength / 2  # ελ/2: the rate is multiplied in here, not once per weight
    T, S = _penalty(layers, seen, D, probabilities, rates=rates, half=half)
    _apply(layers, X, S, rates=rates)
    for weight, t, d in zip(layers.weights[1:], T[1:], D[1:], strict=True):
        weight.baddbmm_(t.mT, half * d, alpha=-1)
    return logits


def plain_gradient(layers: Layers, inputs: Tensor, targets: Tensor) -> tuple[list[Tensor], Seen, list[Tensor]]:
    """∇Ĉ of every run, in the order of `Layers.tensors`, with what the passes saw and D."""
    seen = forward(layers, inputs)
    D = _backward(layers, seen, (seen.logits.softmax(2) - targets) / inputs.shape[1])
    return _products(seen.X, D), seen, D


def penalty_gradient(
    layers: Layers, seen: Seen, D: list[Tensor], *, pieces: int, weight_decay: Tensor | None
) -> list[Tensor]:
    """½ (∇²Ĉₖ + μ)(∇Ĉₖ + μω), mean over `pieces` equal micro-batches k: times λ it is the gradient of the penalty.

    `seen` and `D` are those of `plain_gradient` on the rows of all pieces together; μ is 0 without `weight_decay`.
    """
    zero = D[0].new_zeros(1)
    decay = zero if weight_decay is None else weight_decay
    rates = Rates(zero, zero, decay, penalized=True, decayed=weight_decay is not None)
    D = [pieces * d for d in D]  # of the mean over one piece
    T, S = _penalty(layers, seen, D, seen.logits.softmax(2), rates=rates, half=0.5, pieces=pieces)
    found = _products(seen.X, S)
    for at in range(1, len(layers)):
        found[at].baddbmm_(T[at].mT, D[at], alpha=0.5)
    if pieces > 1:
        torch._foreach_div_(found, pieces)
    if weight_decay is not None:
        torch._foreach_add_(found, [weight_decay.square() / 2 * tensor for tensor in layers.tensors()])
    return found


def squared_gradient_norm(layers: Layers, inputs: Tensor, targets: Tensor, *, weight_decay: Tensor) -> Tensor:
    """‖∇Ĉ + μω‖² of one minibatch, per run."""
    seen = forward(layers, inputs)
    D = _backward(layers, seen, (seen.logits.softmax(2) - targets) / inputs.shape[1])
    total = torch.zeros(len(inputs), dtype=inputs.dtype, device=inputs.device)
    for x, d, weight, bias in zip(seen.X, D, layers.weights, layers.biases, strict=True):
        total += (torch.bmm(x.mT, d) + weight_decay * weight).square().sum((1, 2))
        total += (d.sum(1, keepdim=True) + weight_decay * bias).square().sum((1, 2))
    return total


def half_squared_norm(layers: Layers) -> Tensor:
    """½‖ω‖² per run."""
    return 0.5 * torch.stack([tensor.square().sum((1, 2)) for tensor in layers.tensors()]).sum(0)


# -- the passes -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Seen:
    """What a pass forward saw of every layer: the activations before it (`before`), and the rows X that it multiplies.

    The first of `before` is the minibatch.
    """

    before: list[Tensor]
    X: list[Tensor]
    logits: Tensor


def forward(layers: Layers, inputs: Tensor) -> Seen:
    before, X = [inputs], [layers.read(0, inputs)]
    for at, (weight, bias) in enumerate(zip(layers.weights[:-1], layers.biases[:-1], strict=True), start=1):
        before.append(torch.baddbmm(bias, X[-1], weight).relu_())
        X.append(layers.read(at, before[-1]))
    return Seen(before, X, torch.baddbmm(layers.biases[-1], X[-1], layers.weights[-1]))


def _backward(layers: Layers, seen: Seen, last: Tensor) -> list[Tensor]:
    """D = ∂Ĉ/∂Z of every layer, from that of the last."""
    D = [last]
    for at in range(len(layers) - 1, 0, -1):
        through = layers.read_transposed(at, torch.bmm(D[-1], layers.weights[at].mT))
        D.append(_where_active(through, seen.before[at]))
    return D[::-1]


def _penalty(
    layers: Layers, seen: Seen, D: list[Tensor], probabilities: Tensor, *, rates: Rates,
    half: Tensor | float, pieces: int = 1,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """T = Ẋ and S = εD + (ελ/2)(Ḋ + μD) of every layer; `half` is ελ/2."""
    last, runs = len(layers) - 1, len(probabilities)
    examples = probabilities.shape[1] // pieces

    def apart(rows: Tensor) -> Tensor:
        """Rows (runs, rows, features) as (runs · pieces, rows of a piece, features)."""
        return rows if pieces == 1 else rows.reshape(runs * pieces, -1, rows.shape[2])

    def together(rows: Tensor) -> Tensor:
        return rows if pieces == 1 else rows.reshape(runs, -1, rows.shape[2])

    X, E = [apart(x) for x in seen.X], [apart(d) for d in D]
    decayed = rates.decayed and rates.decay_penalized
    gram = [x.shape[1] * (x.shape[2] + d.shape[2]) < x.shape[2] * d.shape[2] * 3 / 2 for x, d in zip(X, E, strict=True)]
    gradients = [None if small else torch.bmm(x.mT, d) for small, x, d in zip(gram, X, E, strict=True)]
    T = [torch.zeros(0)]  # the minibatch itself does not move
    for at, (x, d, gradient) in enumerate(zip(X, E, gradients, strict=True)):
        moved = torch.bmm(torch.bmm(x, x.mT), d) if gradient is None else torch.bmm(x, gradient)
        moved += d.sum(1, keepdim=True)
        moved = together(moved)
        if at > 0:
            moved.baddbmm_(T[at], layers.weights[at])
        if decayed:
            moved += rates.weight_decay * torch.baddbmm(layers.biases[at], seen.X[at], layers.weights[at])
        if at < last:
            T.append(layers.read(at + 1, _where_active(moved, seen.before[at + 1])))
    turned = probabilities * moved
    turned -= probabilities * turned.sum(2, keepdim=True)  # the softmax's own derivative
    S = [rates.learning_rate * D[last] + half / examples * turned]
    if decayed:
        S[0] += half * rates.weight_decay * D[last]
    for at in range(last, 0, -1):
        x, d, gradient = X[at], half * E[at], gradients[at]
        s = together(torch.bmm(torch.bmm(d, E[at].mT), x) if gradient is None else torch.bmm(d, gradient.mT))
        s.baddbmm_(S[-1], layers.weights[at].mT)
        s = _where_active(layers.read_transposed(at, s), seen.before[at])
        if decayed:
            s += half * rates.weight_decay * D[at - 1]
        S.append(s)
    return T, S[::-1]


def _products(X: list[Tensor], S: list[Tensor]) -> list[Tensor]:
    """XᵀS of every layer, then 1ᵀS."""
    weights = [torch.bmm(x.mT, s) for x, s in zip(X, S, strict=True)]
    return [*weights, *[s.sum(1, keepdim=True) for s in S]]


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
