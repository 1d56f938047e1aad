"""Small random networks from a list of operations; everything that real models do, a few numbers wide.

There is no `detach` of what depends on parameters: such a gradient is not the gradient of any loss, so ‖g‖²
differentiated and g differentiated along g rightly differ.

A network is a tuple of `Op`s; the operations are in `random_layers.py` and `random_operations.py`. Features are the
last axis of vectors (B, C) and sequences (B, T, C) and the second axis of images (B, C, H, W). The first run makes the
parameters with the widths that it meets, so every list of operations is a network, and a failing list can be shortened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Op:
    """One operation: its name, a width or a choice (what it means depends on the name), and what runs inside it."""

    name: str
    size: int = 4
    option: int = 0
    inside: tuple[Op, ...] = ()

    def __repr__(self) -> str:
        extra = [repr(self.size)] if (self.size, self.option) != (4, 0) or self.inside else []
        extra += [repr(self.option)] if self.option or self.inside else []
        extra += [repr(self.inside)] if self.inside else []
        return f"Op({', '.join([repr(self.name), *extra])})"


class Network(nn.Module):
    """The operations in a row, then the mean over positions and a linear head."""

    def __init__(self, ops: tuple[Op, ...], example: Tensor, *, vocabulary: int = 5, classes: int = 3, seed: int = 0):
        super().__init__()
        self.ops, self.vocabulary, self.classes = ops, vocabulary, classes
        self.parts = nn.ModuleDict()
        self.bare = nn.ParameterDict()
        self.matrices: list[tuple[nn.Module, str]] = []  # of layers, in the order in which they were made
        self.chosen: dict[str, int] = {}  # which of them `again` uses, fixed in the first run
        self.ready, self.drops = False, True
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad(), torch.random.fork_rng():
            self(example)
            for parameter in self.parameters():
                fan_in = max(1, parameter[0].numel()) if parameter.dim() > 1 else 1
                noise = torch.randn(tuple(parameter.shape), generator=generator, dtype=parameter.dtype)
                centre = 0.5 if parameter.dim() < 2 else 0.0
                parameter.copy_(centre + noise * (0.7 / fan_in**0.5 if parameter.dim() > 1 else 0.3))
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.reset_running_stats()
        self.ready = True

    def part(self, path: str, make: Callable[[], nn.Module]) -> Any:
        if path not in self.parts:
            assert not self.ready, path
            self.parts[path] = make()
            for module in self.parts[path].modules():
                if getattr(module, "padding_idx", None) is not None:
                    continue  # a weight whose gradient is cut in one of two uses has no penalised loss to compare with
                self.matrices += [(module, name) for name, p in module.named_parameters(recurse=False) if p.dim() == 2]
        return self.parts[path]

    def parameter(self, path: str, *shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
        if path not in self.bare:
            assert not self.ready, path
            self.bare[path] = nn.Parameter(torch.zeros(shape, dtype=dtype))
            if len(shape) == 2 and dtype is None:
                self.matrices.append((self.bare, path))
        return self.bare[path]

    def earlier_matrix(self, path: str, count: int, choice: int) -> Tensor | None:
        """A matrix with an axis of that length, made before this place in the network."""
        if path not in self.chosen:
            fitting = [i for i, (owner, name) in enumerate(self.matrices) if count in getattr(owner, name).shape]
            self.chosen[path] = fitting[choice % len(fitting)] if fitting else -1
        number = self.chosen[path]
        return None if number < 0 else getattr(*self.matrices[number])

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            counted = any(op.name == "counted_tokens" for op in self.ops)
            x = self.part("embed", lambda: nn.Embedding(self.vocabulary, 4, scale_grad_by_freq=counted))(x)
        x = run(self, self.ops, "op", x)
        if x.dim() == 4:
            x = x.mean((2, 3))
        elif x.dim() == 3:
            x = x.mean(1)
        return self.part("head", lambda: nn.Linear(x.shape[-1], self.classes))(x)


def run(net: Network, ops: tuple[Op, ...], path: str, x: Tensor) -> Tensor:
    for number, op in enumerate(ops):
        x = OPS[op.name](net, f"{path}{number}", x, op)
    return x


OPS: dict[str, Callable[[Network, str, Tensor, Op], Tensor]] = {}
Apply = Callable[[Network, str, Tensor, Op], Tensor]


def op(apply: Apply) -> Apply:
    OPS[apply.__name__] = apply
    return apply


def features(x: Tensor) -> int:
    return x.shape[1] if x.dim() == 4 else x.shape[-1]


def on_last_axis(x: Tensor, apply: Callable[[Tensor], Tensor]) -> Tensor:
    """Images go through layers of the last axis as (B, H, W, C), as in ConvNeXt and Swin."""
    return apply(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if x.dim() == 4 else apply(x)


def like_features(parameter: Tensor, x: Tensor) -> Tensor:
    """A vector of one number per feature, shaped so that it multiplies x."""
    return parameter.reshape(-1, 1, 1) if x.dim() == 4 else parameter


def changeable(x: Tensor) -> Tensor:
    """A tensor that may be written to: not a leaf, and not one that the operation before it keeps for its backward.

    The answer is the same under `torch.vmap`, whose tensors hide the graph: a network has one function.
    """
    inside = x
    while torch._C._functorch.is_batchedtensor(inside):
        inside = torch._C._functorch.get_unwrapped(inside)
    made_by = inside.grad_fn
    fresh = made_by is None or type(made_by).__name__.split("Backward")[0] in _KEEP_THEIR_OUTPUT
    return x * 1.0 if fresh else x


_KEEP_THEIR_OUTPUT = {
    "Tanh", "Sigmoid", "Relu", "Softmax", "Exp", "Elu", "LeakyRelu", "Hardtanh", "Threshold", "Sqrt",
    "MaxPool2DWithIndices", "Expand", "Alias", "Unsafe", "Split", "Chunk", "UnsafeSplit",
}  # fmt: skip
