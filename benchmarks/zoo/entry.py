"""What the zoo knows about a model: its name, its library, and how to make it small, with one minibatch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES, BATCH = 10, 4


@dataclass(frozen=True)
class Case:
    """A model in float64 and a loss of its outputs; `inputs` are what may require a gradient.

    `call(*inputs)` runs the model and gives the mean loss. Token models take no gradient for their inputs; there the
    output of their first embedding is made to require one, as `enable_input_require_grads` does.
    """

    model: nn.Module
    call: Callable[..., Tensor]
    inputs: tuple[Tensor, ...] = ()
    frozen: tuple[str, ...] = ()  # parameters that the library itself freezes, such as those below LoRA


@dataclass(frozen=True)
class Entry:
    name: str
    library: str
    make: Callable[[], Case] = field(repr=False)


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole_numbers(high: int, *shape: int, seed: int = 2) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """The model with weights that do not depend on what ran before, in float64 and training mode."""
    torch.manual_seed(seed)
    return make().double().train()


def images(make: Callable[[], nn.Module], *, size: int = 32, batch: int = BATCH, classes: int = CLASSES) -> Case:
    """An image classifier under cross-entropy."""
    model = seeded(make)
    targets = whole_numbers(classes, batch)

    def call(pixels: Tensor) -> Tensor:
        return F.cross_entropy(logits(model(pixels)), targets)

    return Case(model, call, (numbers(batch, 3, size, size),))


def logits(outputs: Any) -> Tensor:
    """The class scores in whatever a library returns: a tensor, a tuple with auxiliary heads, or a ModelOutput."""
    if isinstance(outputs, Tensor):
        return outputs
    found = getattr(outputs, "logits", None)
    return found if isinstance(found, Tensor) else logits(outputs[0])


def import_torchvision() -> Any:
    """torchvision, also where its compiled operations do not load (a CUDA build beside torch for CPUs).

    Its models use none of them, but importing it registers two by name: they get a declaration here.
    """
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            _DECLARED.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision


_DECLARED = torch.library.Library("torchvision", "FRAGMENT")
