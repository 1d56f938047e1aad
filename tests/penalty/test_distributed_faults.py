"""Under DistributedDataParallel what cannot work is refused on every rank; one that fails leaves nobody waiting."""

from __future__ import annotations

import re

import pytest

from distributed_results import Results
from distributed_workers import EXAMPLES

REFUSALS = {
    "refused: unused parameters": "parameter 'unused' got no gradient.*find_unused_parameters=True",
    "refused: uneven batches given": "batches of 8, 7 examples.*drop_last=True.*check_ranks=False",
    "refused: uneven global batches": "batches of 8, 7 examples",
    "refused: uneven accumulation": "batches of 16, 15 examples",
    "refused: different strengths": "strength 0.1, 0.2; expected one value",
    "refused: different coins of a global batch": "strength (0.2, 0.0|0.0, 0.2); expected one value",
    "refused: join": r"join\(\) context.*drop_last",
    "refused: static graph in no_sync": r"static_graph in no_sync\(\)",
    "refused: mixed_precision": "mixed_precision.*autocast",
    "refused: communication hook and global batch": "communication hook",
    "refused: optimizer in backward": "an optimizer inside backward",
    "refused: sync batch norm": "layer '1' is a SyncBatchNorm",
    "refused: global batch without ddp": "called no DistributedDataParallel",
    "refused: fsdp2": r"fully_shard \(FSDP2\).*method='double_backward' needs.*Use method='finite_difference'",
    "refused: fsdp1": r"FullyShardedDataParallel \(FSDP\).*Use DistributedDataParallel",
    "refused: replicate": r"went through replicate.*Use DistributedDataParallel",
    "refused: tensor parallel": "'0.weight' is a DTensor.*Use DistributedDataParallel",
    "refused: backward inside the forward pass of DDP": r"inside the forward pass.*Use penalty.loss\(closure\)",
    "refused: factored, wrapped": "FactoredSGD never forms",
    "refused: factored, closure wrapped": "FactoredSGD never forms",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_every_rank_refuses_with_the_same_sentence(results: Results, name: str) -> None:
    found = results.messages(name)
    assert len(set(found)) == 1
    assert re.search(REFUSALS[name], found[0]), found[0]
    assert found[0].startswith("InputError")


@pytest.mark.parametrize("world", [2, 4])
def test_uneven_batches_are_refused_on_every_rank_and_leave_no_gradient(results: Results, world: int) -> None:
    size = EXAMPLES // world
    for found in results.messages("refused: uneven batches", world):
        assert f"batches of {', '.join([str(size)] * (world - 1) + [str(size - 1)])} examples" in found
        assert found.endswith("clean: True")


def test_uneven_batches_pass_when_the_check_is_off(results: Results) -> None:
    assert results.messages("uneven batches unchecked") == ["nothing was raised clean: True"] * 2


@pytest.mark.parametrize(
    "name,world,own",
    [
        ("fails before the model", 2, "KeyError: 'data'"),
        ("fails before the model", 4, "KeyError: 'data'"),
        ("fails after the model", 2, "InputError: the loss is nan"),
        ("fails before the global batch", 2, "InputError: the loss is nan|KeyError: 'data'"),
    ],
)
def test_a_rank_that_fails_stops_the_others_and_a_next_step_works(
    results: Results, name: str, world: int, own: str
) -> None:
    *others, failed = results.messages(name, world)
    assert any(failed.startswith(start) for start in own.split("|"))
    for other in others:
        assert other.startswith(f"InputError: rank {world - 1} raised an error in this step")
    assert len({found.rpartition("again: ")[2] for found in [*others, failed]}) == 1


def test_a_rank_that_fails_in_no_sync_stops_the_others_at_the_reduction(results: Results) -> None:
    first, second = results.messages("fails in no_sync")
    assert first.startswith("InputError: rank 1 raised an error")
    assert second.startswith("InputError: the loss is nan")
