"""Operations of random networks that have parameters: layers, weights used again, norms, gates, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from random_networks import Network, Op, changeable, features, like_features, on_last_axis, op
from torch import Tensor, nn
from torch.nn import functional as F

# --- Layers with weights ---


@op
def linear(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    layer = net.part(path, lambda: nn.Linear(features(x), op.size, bias=op.option == 0))
    return on_last_axis(x, layer)


@op
def bare_linear(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    weight = net.parameter(path, op.size, features(x))
    bias = net.parameter(path + "bias", op.size) if op.option == 0 else None
    if op.option == 2:
        weight = weight.T.contiguous().T  # a copy of a view: no longer the parameter itself
    return on_last_axis(x, lambda rows: F.linear(rows, weight, bias))


@op
def matmul(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    if op.option == 1:  # the weight on the left
        weight = net.parameter(path, op.size, features(x))
        return on_last_axis(x, lambda rows: torch.matmul(weight, rows.mT).mT if rows.dim() > 1 else rows)
    if op.option == 2:  # a weight that is turned first
        weight = net.parameter(path, op.size, features(x))
        return on_last_axis(x, lambda rows: rows @ weight.t())
    weight = net.parameter(path, features(x), op.size)
    return on_last_axis(x, lambda rows: rows @ weight)


@op
def addmm(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """Hugging Face's Conv1D."""
    weight, bias = net.parameter(path, features(x), op.size), net.parameter(path + "bias", op.size)
    factors = {"alpha": 0.5, "beta": 2.0} if op.option == 1 else {}

    def layer(rows: Tensor) -> Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        if op.option == 2:
            return torch.mm(flat, weight).view(*rows.shape[:-1], op.size)
        return torch.addmm(bias, flat, weight, **factors).view(*rows.shape[:-1], op.size)

    return on_last_axis(x, layer)


@op
def einsum(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    if op.option == 1:
        weight = net.parameter(path, 2, op.size, features(x))  # heads
        return on_last_axis(x, lambda rows: torch.einsum("...i,hoi->...ho", rows, weight).flatten(-2))
    weight = net.parameter(path, op.size, features(x))
    return on_last_axis(x, lambda rows: torch.einsum("...i,oi->...o", rows, weight))


@op
def baddbmm(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """One matrix per position."""
    if x.dim() != 3:
        return matmul(net, path, x, op)
    weight = net.parameter(path, x.shape[1], x.shape[2], op.size)
    bias = net.parameter(path + "bias", x.shape[1], 1, op.size)
    if op.option == 1:
        return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)
    return torch.baddbmm(bias, x.transpose(0, 1), weight).transpose(0, 1)


@op
def convolution(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    kernel, stride, dilation, groups = [(3, 1, 1, 1), (3, 2, 1, 1), (3, 1, 2, 1), (1, 1, 1, 1), (3, 1, 1, 2)][
        op.option % 5
    ]
    bias = op.option < 5
    if x.dim() == 2:
        return linear(net, path, x, Op("linear", op.size, int(not bias)))
    count, size = features(x), op.size
    if groups == 2 and (count % 2 or size % 2):
        groups = 1
    kind = nn.Conv2d if x.dim() == 4 else nn.Conv1d
    settings = dict(stride=stride, padding=dilation * (kernel // 2), dilation=dilation, groups=groups, bias=bias)
    layer = net.part(path, lambda: kind(count, size, kernel, **settings))
    return layer(x) if x.dim() == 4 else layer(x.transpose(1, 2)).transpose(1, 2)


@op
def depthwise(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    if x.dim() == 2:
        return x
    kind, count = (nn.Conv2d if x.dim() == 4 else nn.Conv1d), features(x)
    padding = "same" if op.option == 1 else 1
    mode = "circular" if op.option == 2 else "zeros"
    layer = net.part(path, lambda: kind(count, count, 3, padding=padding, groups=count, padding_mode=mode))
    return layer(x) if x.dim() == 4 else layer(x.transpose(1, 2)).transpose(1, 2)


@op
def transposed_convolution(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    if x.dim() == 2:
        return x
    kind = nn.ConvTranspose2d if x.dim() == 4 else nn.ConvTranspose1d
    layer = net.part(path, lambda: kind(features(x), op.size, 3, padding=1))
    return layer(x) if x.dim() == 4 else layer(x.transpose(1, 2)).transpose(1, 2)


@op
def lookup(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """An embedding of fixed indices, added: repeated indices, plain, with a padding index, or counted."""
    padding = 0 if op.option == 1 else None
    table = net.part(path, lambda: nn.Embedding(3, features(x), padding_idx=padding, scale_grad_by_freq=op.option == 2))
    rows = table(torch.tensor([0, 1, 1, 2]))
    return x + like_features(rows.sum(0), x)


@op
def recurrent(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    if x.dim() != 3:
        return x
    kind = (nn.GRU, nn.LSTM, nn.RNN)[op.option % 3]
    return net.part(path, lambda: kind(features(x), op.size, batch_first=True))(x)[0]


@op
def bilinear(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    layer = net.part(path, lambda: nn.Bilinear(features(x), features(x), op.size))
    return on_last_axis(x, lambda rows: layer(rows.contiguous(), rows.flip(-1).contiguous()))


@op
def low_rank(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """LoRA: a constant matrix plus a product of two thin ones."""
    down = net.part(path + "down", lambda: nn.Linear(features(x), 2, bias=False))
    up = net.part(path + "up", lambda: nn.Linear(2, features(x), bias=False))
    constant = torch.eye(features(x), dtype=down.weight.dtype)
    return on_last_axis(x, lambda rows: F.linear(rows, constant) + 0.5 * up(down(rows)))


# --- Weights that are used again ---


@op
def again(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """An earlier matrix once more: as a layer, turned, or outside of any layer."""
    weight = net.earlier_matrix(path, features(x), op.size)
    if weight is None:
        return x
    if op.option == 1:
        return x + 0.1 * torch.sin(weight).sum()
    if op.option == 2:
        return on_last_axis(x, lambda rows: rows @ (weight.T if weight.shape[1] == rows.shape[-1] else weight))
    if op.option == 3:
        return x * (1 + 0.1 * _Square.apply(weight))
    if weight.shape[1] == features(x):
        return on_last_axis(x, lambda rows: F.linear(rows, weight))
    return on_last_axis(x, lambda rows: F.linear(rows, weight.T))


class _Square(torch.autograd.Function):
    """Takes a weight out of sight of torch functions."""

    @staticmethod
    def forward(weight: Tensor) -> Tensor:
        return weight.square().mean()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (weight,) = ctx.saved_tensors
        return 2 / weight.numel() * upstream * weight

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        (weight,) = ctx.saved_tensors
        return 2 * (weight * tangent).mean()


# --- Norms, gates, bare parameters ---


@op
def norm(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    count = features(x)
    if op.option == 0:
        return on_last_axis(x, net.part(path, lambda: nn.LayerNorm(count)))
    if op.option == 1:
        return on_last_axis(x, net.part(path, lambda: nn.RMSNorm(count)))
    if op.option == 2 and x.dim() > 2:
        layer = net.part(path, lambda: nn.GroupNorm(2 if count % 2 == 0 else 1, count))
        if not x.requires_grad:  # torch 2.13 crashes in a plain backward pass where such images are channels-last
            x = x.contiguous()
        return layer(x) if x.dim() == 4 else layer(x.transpose(1, 2)).transpose(1, 2)
    if op.option == 3 and x.dim() == 4:
        # Without weights: with them torch 2.13's own backward is wrong for one channels-last example.
        return net.part(path, lambda: nn.InstanceNorm2d(count))(x)
    return on_last_axis(x, net.part(path, lambda: nn.LayerNorm(count, elementwise_affine=op.option != 4)))


@op
def batch_norm(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """In training mode, or with option 1 in evaluation mode whatever the network's mode is."""
    layer = net.part(path, lambda: (nn.BatchNorm2d if x.dim() == 4 else nn.BatchNorm1d)(features(x)))
    if op.option == 1:
        layer.eval()
    if layer.training and x.shape[0] * x[0].numel() // features(x) < 2:  # one value per feature has no variance
        return x
    return layer(x.transpose(1, 2)).transpose(1, 2) if x.dim() == 3 else layer(x)


@op
def gate(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """A factor with one element, written in the ways that people write it."""
    scalar = net.parameter(path, *[(), (1,), (1, 1)][op.size % 3])
    ways: list[Callable[[], Tensor]] = [
        lambda: x * scalar,
        lambda: scalar * x,
        lambda: x.mul(scalar),
        lambda: x * scalar.exp(),
        lambda: x + scalar * torch.tanh(x),
        lambda: changeable(net, path, x).mul_(scalar),
        lambda: x * scalar + scalar,
    ]
    return ways[op.option % len(ways)]()


@op
def scale(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """LayerScale, learned positions, a class token's neighbour: bare parameters."""
    if op.option == 1:
        return x + net.parameter(path, *x.shape[1:])
    vector = net.parameter(path, features(x))
    if op.option == 2:
        return x * F.softplus(like_features(vector, x))
    if op.option == 3:
        x = changeable(net, path, x)
        x += like_features(vector, x)
        return x
    return x * like_features(vector, x)


@op
def counted_tokens(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """The embedding of tokens divides its gradient by how often each one is in the batch."""
    return x


@op
def spectral(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """Complex parameters: a filter on frequencies, or a complex layer among them."""
    count = features(x)
    frequencies = count // 2 + 1
    shape = [(frequencies,), (frequencies, frequencies), ()][op.option % 3]
    dtype = torch.complex128 if x.dtype == torch.float64 else torch.complex64
    weight = net.parameter(path, *shape, dtype=dtype)

    def layer(rows: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(rows if rows.dtype == torch.float64 else rows.float())
        made = F.linear(spectrum, weight) if op.option % 3 == 1 else spectrum * weight
        return torch.fft.irfft(made, n=count).to(rows.dtype)

    return on_last_axis(x, layer)


@op
def attention(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    if x.dim() != 3:
        return x
    count = features(x)
    if op.option == 1:
        heads = 2 if count % 2 == 0 else 1
        layer = net.part(path, lambda: nn.MultiheadAttention(count, heads, batch_first=True))
        return x + layer(x, x, x, need_weights=op.size % 2 == 1)[0]
    mixed = net.part(path, lambda: nn.Linear(count, 3 * count))(x)
    query, key, value = mixed.chunk(3, dim=-1)
    if op.option == 2:
        return x + F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None], is_causal=True)[:, 0]
    return x + torch.softmax(query @ key.mT / count**0.5, dim=-1) @ value
