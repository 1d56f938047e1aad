"""Signals are shifted as a study says, drawn anew for each minibatch, from (seed, position) alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tacit.studies.data import signals
from tacit.studies.data.facts import Data
from tacit.studies.data.load import load
from tacit.studies.data.signals import Signals
from tacit.studies.describe.spec import make_run
from tacit.studies.train.packing import Fleet
from tacit.studies.train.training import Training


def training(*, seeds: tuple[int, ...] = (0,), **changed: Any) -> tuple[Training, Data]:
    """A fleet on signals that count upwards, so that a shift can be read off a row."""
    numbers = np.arange(32)[:, None] * 100 + np.arange(40)[None]
    data = Data(numbers.astype("float32"), np.arange(32) % 10, numbers.astype("float32"), np.arange(32) % 10)
    base = {"learning_rate": 0.01, "epochs": 4, "train_size": 32, "batch_size": 8, "width": 4, "evaluations": 2}
    runs = tuple(make_run({**base, **changed, "seed": seed}) for seed in seeds)
    return Training(Fleet(runs), data, dtype=torch.float64), data


def shift_of(row: torch.Tensor) -> int:
    """How far the samples moved to the right; asserts that they moved in a circle."""
    start = int(row.min() % 100), int(row.argmin())
    assert start[0] == 0
    assert torch.equal(row.roll(-start[1]) % 100, torch.arange(40, dtype=row.dtype))
    return (start[1] + 20) % 40 - 20


def test_every_row_is_a_circular_shift_of_its_signal_and_all_shifts_are_drawn() -> None:
    made, _ = training(augmentation="shift", augmentation_amount=3)
    seen = []
    for position in range(16):
        inputs, labels = made._batch(position)
        assert torch.equal((inputs[:, 0] // 100).long() % 10, labels)
        seen += [shift_of(row) for row in inputs]
    assert set(seen) == set(range(-3, 4))


def test_a_shift_moves_samples_by_its_number_less_the_largest_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.arange(5)[None])
    shifted = signals.shifts(Signals(torch.arange(10.0)[None]), [0], batch_size=5, batches=1, most=2)
    moved = shifted(torch.zeros(5, dtype=torch.long), 0)
    assert torch.equal(moved, torch.stack([torch.arange(10.0).roll(by) for by in (-2, -1, 0, 1, 2)]))


def test_a_minibatch_is_the_same_when_it_is_asked_for_again_and_another_in_the_next_epoch() -> None:
    made, _ = training(augmentation="shift", order="fixed")
    first, later = made._batch(1)[0], made._batch(5)[0]
    assert torch.equal(first, made._batch(1)[0])
    assert not torch.equal(first, later)


def test_a_member_of_a_fleet_sees_what_it_would_see_alone() -> None:
    together, _ = training(augmentation="shift", seeds=(3, 4))
    alone, _ = training(augmentation="shift", seeds=(4,))
    assert torch.equal(together._batch(2)[0][8:], alone._batch(2)[0])


def test_what_is_judged_is_not_augmented() -> None:
    made, data = training(augmentation="shift")
    assert np.array_equal(made.test.inputs.between(0, 32).numpy(), data.test_inputs)
    assert np.array_equal(made.train.inputs.between(0, 32).numpy(), data.train_inputs)


def test_a_resumed_run_with_shifts_ends_where_an_uninterrupted_one_does() -> None:
    whole, _ = training(augmentation="shift", seeds=(0, 1))
    whole.advance()
    first, _ = training(augmentation="shift", seeds=(0, 1))
    first.advance(until=7)
    second, _ = training(augmentation="shift", seeds=(0, 1))
    second.restore(first.checkpoint())
    second.advance()
    assert whole.rows() == second.rows()


def test_the_large_test_set_has_the_published_training_signals_and_none_of_the_published_test_signals() -> None:
    small, large = load("mnist1d"), load("mnist1d_16k")
    assert np.array_equal(small.train_inputs, large.train_inputs)
    assert np.array_equal(small.train_targets, large.train_targets)
    assert large.test_inputs.shape == (16_000, 40)
    assert np.bincount(large.test_targets).tolist() == [1600] * 10
    rows = {row.tobytes() for row in np.concatenate([small.train_inputs, small.test_inputs])}
    assert not rows & {row.tobytes() for row in large.test_inputs}
    # The same law: mean 0 and deviation 1 up to the scatter of 4,000 and 16,000 signals.
    assert abs(large.test_inputs.mean()) < 0.02
    assert abs(large.test_inputs.std() - 1) < 0.02
