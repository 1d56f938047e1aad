"""Operations of random networks without parameters: curves, writing in place, shapes, and networks inside networks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from random_networks import Network, Op, changeable, features, op, run
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

# --- Elementwise operations, in place and not ---

_CURVES: list[Callable[[Tensor], Tensor]] = [
    torch.tanh, F.gelu, F.silu, F.softplus, torch.sigmoid, torch.sin, F.mish, F.elu, F.selu,
    F.relu, F.leaky_relu, F.hardswish, F.hardsigmoid, F.relu6, F.hardtanh, F.celu, F.logsigmoid, F.softsign,
]  # fmt: skip
_CURVES_IN_PLACE: list[Callable[[Tensor], Tensor]] = [
    lambda x: F.relu(x, inplace=True),
    lambda x: x.relu_(),
    lambda x: F.leaky_relu(x, 0.1, inplace=True),
    lambda x: F.elu(x, inplace=True),
    lambda x: x.tanh_(),
    lambda x: F.silu(x, inplace=True),
    lambda x: F.hardswish(x, inplace=True),
    lambda x: F.relu6(x, inplace=True),
]


@op
def curve(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    return _CURVES[op.option % len(_CURVES)](x)


@op
def curve_in_place(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    return _CURVES_IN_PLACE[op.option % len(_CURVES_IN_PLACE)](changeable(net, path, x))


@op
def write(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """Writing into the activations."""
    x = changeable(net, path, x)
    if op.option == 0:
        x += 0.1
    elif op.option == 1:
        x[:, 0] = 0.0
    elif op.option == 2:
        x *= 0.5
    elif op.option == 3:
        x[..., 0] = x[..., -1] * 0.5
    elif op.option == 4:
        x.clamp_(min=-2.0)
    else:
        x[:1] *= 2.0
    return x


@op
def dropout(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    if not net.drops:
        return x
    if op.option == 1:
        return F.dropout(changeable(net, path, x), 0.3, training=True, inplace=True)
    return F.dropout(x, 0.3, training=True)


@op
def draw(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """A draw that changes nothing: where a closure draws, one pass over micro-batches is not compared with a loop."""
    return x + 0 * torch.rand((), dtype=x.dtype)


class _Passes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(2))


_WRITES: list[Callable[[Tensor], object]] = [
    lambda buffer: buffer.add_(1),
    lambda buffer: torch.add(buffer, 1, out=buffer),
    lambda buffer: buffer.data.add_(1),
    lambda buffer: buffer[1:].add_(1),
    lambda buffer: [part.add_(1) for part in buffer.chunk(2)],
    lambda buffer: buffer.detach().add_(1),
    lambda buffer: torch._foreach_add_([buffer], 1),
    lambda buffer: buffer.__setitem__(0, buffer[0] + 1),
]


@op
def count_passes(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """A buffer that is written and read: the number of passes so far scales the activations."""
    buffer = net.part(path, _Passes).passes
    if net.ready and torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        _WRITES[op.option % len(_WRITES)](buffer)  # not in a checkpoint: its second run would read another number
    return x * (1 + 0.1 * buffer.sum()).to(x.dtype)


@op
def softmax(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    return torch.softmax(x, dim=1 if x.dim() == 4 or op.option else -1)


# --- Shapes ---


@op
def view(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    count = features(x)
    axis = 1 if x.dim() == 4 else -1
    if op.option == 0 and count > 1:
        first, second = x.split([count // 2, count - count // 2], dim=axis)
        return torch.cat([second, first], dim=axis)
    if op.option == 1:
        return x.flip(axis)
    if op.option == 2:
        return x.reshape(-1).reshape(x.shape)
    if op.option == 3:
        return x.narrow(axis, 0, max(1, count - 1))
    if op.option == 4:
        return torch.stack([x, x.roll(1, axis)], 0).mean(0)
    if op.option == 5 and x.dim() > 2:
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if op.option == 6:
        return x.unsqueeze(0).expand(2, *x.shape)[1]
    return x.clone()


@op
def mix_positions(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """MLP-Mixer: a linear layer along the positions."""
    if x.dim() != 3:
        return x
    return net.part(path, lambda: nn.Linear(x.shape[1], x.shape[1]))(x.transpose(1, 2)).transpose(1, 2)


@op
def flatten(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    return x.flatten(1)


@op
def unflatten(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """Vectors become sequences of length 2 (repeated and turned); images become sequences of their positions."""
    if x.dim() == 2:
        return torch.stack([x, x.flip(-1)], dim=1)
    return x.flatten(2).transpose(1, 2) if x.dim() == 4 else x


@op
def pool(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    if x.dim() != 4 or x.shape[-1] < 2:
        return x
    return F.max_pool2d(x, 2) if op.option == 1 else F.avg_pool2d(x, 2)


@op
def mix_examples(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """Examples that see each other, in ways that no module's name tells."""
    if op.option == 1:
        return x + 0.5 * x.roll(1, 0)
    if op.option == 2:
        return x - x.mean()
    if op.option == 3:
        return torch.cat([x[:1], x[1:] + 0.3 * x[:-1]])
    return x - 0.5 * x.mean(0, keepdim=True)


# --- Networks inside networks ---


@op
def residual(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    inner = run(net, op.inside, path + "_", x)
    if inner.shape != x.shape:
        return inner
    if op.option == 1:
        inner = changeable(net, path, inner)
        inner += x
        return inner
    return x + inner


@op
def branches(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    half = (len(op.inside) + 1) // 2
    first = run(net, op.inside[:half], path + "_a", x * 1.0)  # neither branch may write into the other's input
    second = run(net, op.inside[half:], path + "_b", x * 1.0)
    if op.option == 1 and first.shape == second.shape:
        return first * torch.sigmoid(second)
    if first.dim() == second.dim() and first.shape[0] == second.shape[0]:
        axis = 1 if first.dim() == 4 else -1
        others = [s for i, s in enumerate(first.shape) if i != axis % first.dim()]
        if others == [s for i, s in enumerate(second.shape) if i != axis % first.dim()]:
            return torch.cat([first, second], dim=axis)
    return first


@op
def checkpointed(net: Network, path: str, x: Tensor, op: Op) -> Tensor:
    """The inside runs again in the backward pass."""
    if not net.ready:
        return run(net, op.inside, path + "_", x)
    # A copy inside: a block that writes into its own input cannot be run again, in a plain step either.
    return checkpoint(lambda inner: run(net, op.inside, path + "_", inner * 1.0), x, use_reentrant=False)
