"""Epochs use each example once, in every order that is promised, and only the randomness that is named."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.batching import ORDERS, BatchSampler, all_orders, batches_per_epoch, epoch_batches

PARTITIONS = [order for order in ORDERS if order != "with_replacement"]


def epoch(train_size: int, batch_size: int, **choices) -> list[list[int]]:
    return [batch.tolist() for batch in epoch_batches(train_size, batch_size, **choices)]


sizes = st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(size=sizes, order=st.sampled_from(PARTITIONS), seed=st.integers(0, 5), at=st.integers(0, 5))
@settings(derandomize=True, max_examples=200)
def test_keeping_the_remainder_uses_every_example_exactly_once(size, order, seed, at) -> None:
    train_size, batch_size = size
    batches = epoch(train_size, batch_size, order=order, seed=seed, epoch=at, remainder="keep")
    assert sorted(itertools.chain(*batches)) == list(range(train_size))
    assert len(batches) == batches_per_epoch(train_size, batch_size, remainder="keep") == -(-train_size // batch_size)


@given(size=sizes, order=st.sampled_from(PARTITIONS), seed=st.integers(0, 5), at=st.integers(0, 5))
@settings(derandomize=True, max_examples=200)
def test_dropping_the_remainder_leaves_equal_batches_of_distinct_examples(size, order, seed, at) -> None:
    train_size, batch_size = size
    batches = epoch(train_size, batch_size, order=order, seed=seed, epoch=at, remainder="drop")
    used = list(itertools.chain(*batches))
    assert {len(batch) for batch in batches} == {batch_size}
    assert len(set(used)) == len(used) == train_size - train_size % batch_size


@pytest.mark.parametrize("order", ORDERS)
def test_an_epoch_is_a_pure_function_of_its_arguments(order: str) -> None:
    before = torch.get_rng_state()
    first, second = (epoch(12, 3, order=order, seed=5, epoch=2) for _ in range(2))
    assert first == second
    assert torch.equal(before, torch.get_rng_state())


def test_fixed_is_the_order_of_the_dataset_in_every_epoch() -> None:
    assert epoch(6, 2, order="fixed", seed=3, epoch=9) == [[0, 1], [2, 3], [4, 5]]


def test_shuffled_draws_anew_in_every_epoch_and_for_every_seed() -> None:
    seen = {str(epoch(12, 3, order="shuffled", seed=seed, epoch=at)) for seed in range(5) for at in range(5)}
    assert len(seen) == 25


def test_shuffle_once_repeats_one_random_epoch() -> None:
    seen = [epoch(12, 3, order="shuffle_once", seed=1, epoch=at) for at in range(4)]
    assert all(later == seen[0] for later in seen)
    assert seen[0] != epoch(12, 3, order="fixed")


@pytest.mark.parametrize("remainder", ["drop", "keep"])
def test_mirrored_walks_the_same_batches_there_and_back(remainder) -> None:
    walk = [epoch(11, 3, order="mirrored", seed=1, epoch=at, remainder=remainder) for at in range(4)]
    assert walk[1] == walk[0][::-1]
    assert walk[3] == walk[2][::-1]
    assert sorted(map(sorted, walk[2])) != sorted(map(sorted, walk[0])), "a new partition every second epoch"


def chi_square(counts: Counter, outcomes: int) -> float:
    expected = sum(counts.values()) / outcomes
    seen = list(counts.values()) + [0] * (outcomes - len(counts))
    return sum((count - expected) ** 2 / expected for count in seen)


def test_shuffled_makes_every_permutation_equally_often() -> None:
    # Plan: 4800 epochs, 24 outcomes. P(χ²₂₃ > 70) is below 2e-6, and the seeds are fixed.
    counts = Counter(str(epoch(4, 1, order="shuffled", seed=0, epoch=at)) for at in range(4800))
    assert len(counts) == 24
    assert chi_square(counts, 24) < 70


def test_with_replacement_draws_every_pair_of_batches_equally_often() -> None:
    # Plan: 7200 epochs of two batches of two from four: 6 · 6 = 36 outcomes, so batches are independent and uniform
    # over subsets. P(χ²₃₅ > 90) is below 1e-6.
    counts = Counter(
        str([sorted(batch) for batch in epoch(4, 2, order="with_replacement", seed=0, epoch=at)]) for at in range(7200)
    )
    assert len(counts) == 36, "overlapping batches happen, repeated examples inside one batch do not"
    assert chi_square(counts, 36) < 90


@pytest.mark.parametrize("batches", range(1, 6))
def test_all_orders_are_all_permutations_each_once(batches: int) -> None:
    orders = list(all_orders(batches))
    assert len(orders) == len(set(orders)) == math.factorial(batches)
    assert all(sorted(order) == list(range(batches)) for order in orders)


@pytest.mark.parametrize("order", ORDERS)
def test_a_data_loader_sees_the_epochs_one_after_another(order: str) -> None:
    sampler = BatchSampler(8, 2, order=order, seed=4)
    loader = torch.utils.data.DataLoader(list(range(8)), batch_sampler=sampler)
    for at in range(3):
        assert [batch.tolist() for batch in loader] == epoch(8, 2, order=order, seed=4, epoch=at)
    assert len(loader) == 4


def test_a_sampler_resumes_at_a_given_epoch() -> None:
    through, resumed = BatchSampler(8, 2, seed=4), BatchSampler(8, 2, seed=4)
    walked = [list(through) for _ in range(5)]
    resumed.set_epoch(3)
    assert [list(resumed), list(resumed)] == walked[3:]


def test_a_look_at_the_first_minibatch_does_not_use_up_an_epoch() -> None:
    sampler = BatchSampler(8, 2, order="mirrored", seed=4)
    loader = torch.utils.data.DataLoader(list(range(8)), batch_sampler=sampler)
    next(iter(loader))
    there, back = list(loader), list(loader)
    assert [batch.tolist() for batch in there] == epoch(8, 2, order="mirrored", seed=4, epoch=0)
    assert [batch.tolist() for batch in back] == [batch.tolist() for batch in there[::-1]]


def test_an_epoch_is_over_with_its_last_minibatch_even_if_no_more_is_asked_for() -> None:
    sampler = BatchSampler(8, 2, seed=4)
    for at in range(3):
        assert list(itertools.islice(sampler, 4)) == epoch(8, 2, order="shuffled", seed=4, epoch=at)
