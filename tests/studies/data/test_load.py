"""Datasets: standardised by the training set, cached, and drawn without touching anybody's generator."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tacit.studies.data import datasets, mnist1d
from tacit.studies.data.datasets import FACTS
from tacit.studies.data.facts import Data
from tacit.studies.data.load import load


def test_mnist1d_has_the_size_its_facts_say(data: Data) -> None:
    facts = FACTS["mnist1d"]
    assert data.train_inputs.shape == (facts.train_size, facts.features)
    assert data.test_inputs.shape == (facts.test_size, facts.features)
    assert set(data.train_targets.tolist()) == set(data.test_targets.tolist()) == set(range(facts.classes))
    assert (data.train_inputs.dtype, data.train_targets.dtype) == (np.float32, np.int64)


def test_training_inputs_have_mean_zero_and_deviation_one(data: Data) -> None:
    assert abs(data.train_inputs.mean(dtype=np.float64)) < 1e-6  # float32 rounding of 160,000 entries
    assert abs(data.train_inputs.std(dtype=np.float64) - 1) < 1e-6


def test_the_test_set_has_no_say_in_the_standardisation() -> None:
    train = np.array([[1.0, 3.0]])
    assert mnist1d.standardise(train, np.array([[2.0]]))[1] == 0
    assert (mnist1d.standardise(train, np.array([[1e9]]))[0] == [[-1, 1]]).all()


def test_making_the_data_leaves_the_global_generators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from mnist1d.data import get_dataset_args

    few = get_dataset_args()
    few.num_samples = 50
    monkeypatch.setattr("mnist1d.data.get_dataset_args", lambda: few)
    before = (np.random.get_state()[1].tolist(), random.getstate())
    mnist1d.make_mnist1d()
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before


def counted(monkeypatch: pytest.MonkeyPatch, data: Data, cache: Path) -> list[int]:
    calls: list[int] = []
    monkeypatch.setenv("TACIT_CACHE", str(cache))
    counting = replace(mnist1d.MNIST1D, decode=lambda _: calls.append(1) or data)
    monkeypatch.setitem(datasets.DATASETS, "mnist1d", counting)
    return calls


def test_the_second_load_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch, data: Data, tmp_path: Path) -> None:
    calls = counted(monkeypatch, data, tmp_path)
    load("mnist1d")
    again = load("mnist1d")
    assert len(calls) == 1
    assert (again.train_inputs == data.train_inputs).all()


def test_a_damaged_cache_is_made_again(monkeypatch: pytest.MonkeyPatch, data: Data, tmp_path: Path) -> None:
    calls = counted(monkeypatch, data, tmp_path)
    load("mnist1d")
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    for damaged in (bytes(content), content[:1000], b""):
        path.write_bytes(damaged)
        assert (load("mnist1d").test_targets == data.test_targets).all()
    assert len(calls) == 4


def test_an_unusable_cache_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, data: Data, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    calls = counted(monkeypatch, data, tmp_path / "file" / "cache")
    load("mnist1d")
    assert len(calls) == 1
