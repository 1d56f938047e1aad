"""Under DistributedDataParallel each worker moves along its own direction, and gradients are averaged over workers."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cases import batch_norm_net, spread
from distributed_results import Results
from distributed_sam import RADIUS, SEED
from distributed_workers import shard, wide
from oracles import sharpness_aware_gradient
from tacit.penalty.pieces import drawn_rows

Batch = tuple[Tensor, Tensor]
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def gradient_of(model: nn.Module, whole: Batch, part: Batch | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    def loss_of(batch: Batch) -> object:
        return lambda model: F.cross_entropy(model(batch[0]), batch[1])

    return sharpness_aware_gradient(model, loss_of(whole), loss_of(part or whole), radius=RADIUS)


def mean(found: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in found]).mean(0) for name in found[0]}


def drawn(batch: Batch, count: int, *, rank: int, call: int = 0) -> Batch:
    rows = drawn_rows(len(batch[0]), count, seed=SEED, worker=rank, call=call)
    return batch[0][rows], batch[1][rows]


@pytest.mark.parametrize(
    "name,world,sampled",
    [("sam", 1, None), ("sam", 2, None), ("sam of the bare module", 2, None), ("sam sampled", 2, 3)],
    ids=str,
)
def test_each_worker_has_its_own_direction_and_one_reduction(
    results: Results, name: str, world: int, sampled: int | None
) -> None:
    batches = [shard(rank, world) for rank in range(world)]
    parts = [batch if sampled is None else drawn(batch, sampled, rank=rank) for rank, batch in enumerate(batches)]
    model = wide()
    expected = [gradient_of(model, batch, part) for batch, part in zip(batches, parts, strict=True)]
    truth = mean([gradient for _, gradient in expected])
    for rank, found in enumerate(results.tensors(name, world)):
        for parameter, value in truth.items():
            torch.testing.assert_close(found[parameter], value, **CLOSE)
        torch.testing.assert_close(found["loss"], expected[rank][0], **CLOSE)
        assert torch.equal(found["rows"], parts[rank][0])
        assert found["back"]
        assert int(found["reductions"]) == 1


def test_the_direction_of_the_global_batch_would_be_another_one() -> None:
    """Otherwise the test above could not tell them apart."""
    model, batches = wide(), [shard(rank, 2) for rank in range(2)]
    whole = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    own = mean([gradient_of(model, batch)[1] for batch in batches])
    other = mean([gradient_of(model, batch, whole)[1] for batch in batches])
    assert (own["0.weight"] - other["0.weight"]).norm() > 1e-3 * own["0.weight"].norm()


def test_calls_without_synchronisation_accumulate_also_of_unequal_batches(results: Results) -> None:
    expected = []
    for rank in range(2):
        inputs, targets = shard(rank, 2)
        for part in (slice(3 + rank), slice(3 + rank, None)):
            expected.append(gradient_of(wide(), (inputs[part], targets[part]))[1])
    truth = mean(expected)
    for found in results.tensors("sam accumulated"):
        for name, value in truth.items():
            torch.testing.assert_close(found[name], value, **CLOSE)


def test_training_keeps_workers_together_and_each_call_draws_anew(results: Results) -> None:
    model = spread(batch_norm_net()).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        batches = [shard(rank, 2, features=3, step=step) for rank in range(2)]
        parts = [drawn(batch, 4, rank=rank, call=step) for rank, batch in enumerate(batches)]
        found = [gradient_of(copy.deepcopy(model), *pair)[1] for pair in zip(batches, parts, strict=True)]
        for name, parameter in model.named_parameters():
            parameter.grad = mean(found)[name]
        optimizer.step()
    first, second = results.tensors("sam trained")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(first[name], parameter.detach(), rtol=1e-10, atol=1e-10)
        assert torch.equal(first[name], second[name])


def test_when_one_worker_fails_all_stop(results: Results) -> None:
    other, failed = results.messages("sam, one worker fails")
    assert failed.startswith("InputError: the loss is nan; expected a finite number.")
    assert other.startswith("InputError: rank 1 raised an error in this step")


def test_a_sharded_model_is_refused(results: Results) -> None:
    for message in results.messages("sam refuses fully_shard"):
        assert message.startswith(
            "InputError: the model went through fully_shard (FSDP2), which shards it; SharpnessAware needs whole "
            "parameters."
        )
