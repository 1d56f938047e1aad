"""How long a study takes: the median of what was seen here, whatever one odd study did."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from tacit.studies import estimate
from tacit.studies.describe.study import parse_study
from tacit.studies.train.packing import pack


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(estimate, "_SEEN", {})
    return tmp_path / "cache"


def test_without_a_study_there_is_no_rate(cache: Path) -> None:
    assert estimate.stored_rate(2) is None


def test_one_odd_study_does_not_change_the_rate(cache: Path) -> None:
    for rate in (100.0, 110.0, 120.0):
        estimate.store_rate(2, rate)
    before = estimate.stored_rate(2)
    estimate.store_rate(2, 1e9)
    assert before == 110.0
    assert estimate.stored_rate(2) == 115.0


def test_the_last_few_studies_count(cache: Path) -> None:
    rates = [1.0, 2.0, 3.0, 40.0, 50.0, 60.0, 70.0, 80.0]
    for rate in rates:
        estimate.store_rate(2, rate)
    assert estimate.stored_rate(2) == statistics.median(rates[-estimate.KEPT :])
    assert estimate.stored_rate(1) is None


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    estimate.store_rate(2, 100.0)
    assert estimate.stored_rate(2) == 100.0


@pytest.mark.parametrize("content,rate", [(500.0, 500.0), ("fast", None), ([], None), (["x", -1, 7.0], 7.0)])
def test_what_another_version_has_left_is_read_or_ignored(content: object, rate: float | None, cache: Path) -> None:
    cache.mkdir()
    (cache / "rates.json").write_text(json.dumps({estimate._key(2): content}))
    assert estimate.stored_rate(2) == rate


def test_the_least_memory_of_a_fleet_is_its_parameters_gradients_and_activations() -> None:
    raw = {"name": "s", "fixed": {"epochs": 1, "learning_rate": 1, "width": 2, "depth": 1, "batch_size": 4}}
    (fleet,) = pack(parse_study({**raw, "grid": {"seed": [0, 1, 2]}}).runs)
    parameters = (40 + 1) * 2 + (2 + 1) * 10
    assert estimate.memory(fleet) == 4 * 3 * (2 * parameters + 4 * (40 + 2 + 10))
