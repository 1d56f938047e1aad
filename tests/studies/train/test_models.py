"""The paper's Wide-ResNet: SkipInit at the start, and the number of parameters that its architecture has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._util.random_generators import generator
from tacit.studies.train import operations
from tacit.studies.train.models import SkipInitBlock, WideResNet, mlp, wide_resnet


def without_branches(model: WideResNet, images: Tensor) -> Tensor:
    """The same network when every residual branch is cut off: stem, projections, ReLU, mean, head."""
    hidden = model.stem(images)
    for block in model.blocks:
        assert isinstance(block, SkipInitBlock)
        if block.projection is not None:
            hidden = block.projection(F.relu(hidden))
    return model.head(F.relu(hidden).mean((2, 3)))


@pytest.mark.parametrize("depth,width", [(10, 1), (16, 2)])
def test_a_new_network_is_itself_without_its_branches(depth: int, width: int) -> None:
    model = wide_resnet(depth, width, generator=generator(0, "init"))
    images = torch.randn(3, 3, 16, 16, generator=generator(0, "probe"))
    with torch.no_grad():
        assert torch.equal(model(images), without_branches(model, images))
        for block in model.blocks:
            block.scalar.fill_(0.5)  # type: ignore[union-attr, operator]
        assert not torch.allclose(model(images), without_branches(model, images), atol=0.01)


def by_hand(blocks: int, k: int) -> int:
    """WRN written out: a 3x3 stem of 16 channels, three groups, a linear head; every convolution has biases."""
    stem = 3 * 16 * 9 + 16
    groups = 0
    for before, after in ((16, 16 * k), (16 * k, 32 * k), (32 * k, 64 * k)):
        first = 9 * before * after + after + 9 * after * after + after + 1
        # Where the channels or the resolution change there is a 1x1 projection; group one keeps both when k = 1.
        projection = 0 if before == after else before * after + after
        groups += first + projection + (blocks - 1) * (2 * (9 * after * after + after) + 1)
    return stem + groups + 64 * k * 10 + 10


@pytest.mark.parametrize("depth,width,expected", [(10, 1, 77_709), (16, 4, 2_747_536), (28, 2, None)])
def test_the_parameters_are_those_of_the_architecture(depth: int, width: int, expected: int | None) -> None:
    found = sum(parameter.numel() for parameter in wide_resnet(depth, width).parameters())
    assert found == by_hand((depth - 4) // 6, width)
    assert expected is None or found == expected
    assert operations.wide_resnet(depth, width).parameters == found


def counted(model: nn.Module, example: Tensor) -> tuple[int, int]:
    """Multiply-adds and layers of a forward pass, from the shapes that really pass through."""
    seen = []

    def look(module: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d | nn.Linear)
        seen.append(module.weight[0].numel() * output[0].numel())

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(look)
    model(example)
    return sum(seen), len(seen)


@pytest.mark.parametrize("depth,width,size", [(10, 1, 32), (10, 1, 16), (16, 2, 8)])
def test_multiply_adds_of_a_wide_resnet_are_those_that_happen(depth: int, width: int, size: int) -> None:
    found = operations.wide_resnet(depth, width, size=size)
    assert (found.multiply_adds, found.layers) == counted(wide_resnet(depth, width), torch.zeros(1, 3, size, size))


def test_multiply_adds_of_an_mlp_are_those_that_happen() -> None:
    found = operations.mlp([40, 8, 8, 10])
    assert (found.multiply_adds, found.layers) == counted(mlp([40, 8, 8, 10]), torch.zeros(1, 40))
    assert found.parameters == sum(parameter.numel() for parameter in mlp([40, 8, 8, 10]).parameters())
