"""On a model that FSDP2 shards, finite differences give the penalty of the global batch; the rest is refused."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import distributed_shards
from distributed_results import Results
from distributed_workers import STRENGTH, batch, gradients, wide
from tacit import GradientPenalty
from tacit.penalty import METHODS

VARIANTS = ["", ", kinks", ", central", ", as a loss"]


def one_device(variant: str) -> dict[str, Tensor]:
    model = distributed_shards.with_kinks() if variant == ", kinks" else wide()
    penalty = GradientPenalty(model, STRENGTH, method="double_backward")
    penalty.backward(lambda x, y: F.cross_entropy(model(x), y), *batch())
    return {**gradients(model), "norm": penalty.last.gradient_squared_norm}


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_shards_have_the_penalty_of_the_global_batch(results: Results, variant: str, world: int) -> None:
    expected = one_device(variant)
    for worker in results.tensors(f"shards of {world}{variant}", world):
        for name, value in expected.items():
            # A forward difference of float64 gradients has about 8 digits, and conditioning takes some.
            torch.testing.assert_close(worker[name], value, rtol=1e-5, atol=1e-7, check_dtype=False)
        assert float(worker["error"]) < 1e-4


@pytest.mark.parametrize("world", [1, 2])
def test_parameters_come_back_bitwise(results: Results, world: int) -> None:
    for worker in results.tensors(f"shards of {world}", world):
        moved = [name.removeprefix("after ") for name in worker if name.startswith("after ")]
        assert moved
        assert all(torch.equal(worker[f"after {name}"], worker[f"weight {name}"]) for name in moved)


def test_training_is_that_of_one_device(results: Results) -> None:
    model = wide()
    penalty = GradientPenalty(model, STRENGTH, every=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        penalty.backward(lambda x, y: F.cross_entropy(model(x), y), *batch(step=step))
        optimizer.step()
    for worker in results.tensors("shards, trained"):
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(worker[name], parameter.detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "finite_difference"])
def test_other_methods_are_refused_by_name(results: Results, method: str) -> None:
    expected = rf"fully_shard \(FSDP2\).*method='{method}' needs whole.*Use method='finite_difference'"
    for found in results.messages(f"refused: shards, {method}"):
        assert re.search(expected, found), found


def test_a_penalty_of_each_workers_own_batch_is_refused(results: Results) -> None:
    for found in results.messages("refused: shards, norm_of='micro_batch'"):
        assert re.search(r"averages gradients over workers.*use norm_of='global_batch'", found), found
