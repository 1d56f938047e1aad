"""How long a study takes: the median of what was seen here, whatever one odd study did."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from in_process import InProcess, Listener, study
from tacit.studies import estimate, runner
from tacit.studies.data.facts import Data
from tacit.studies.describe.spec import make_run
from tacit.studies.describe.study import parse_study
from tacit.studies.execute import worker
from tacit.studies.execute.executor import FleetTask, MessageHandler
from tacit.studies.execute.wire import Message
from tacit.studies.plan import make_plan
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.train.packing import Fleet, pack


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(estimate, "_SEEN", {})
    return tmp_path / "cache"


def test_without_a_study_there_is_no_rate(cache: Path) -> None:
    assert estimate.stored_rate(2, "mlp") is None


def test_one_odd_study_does_not_change_the_rate(cache: Path) -> None:
    for rate in (100.0, 110.0, 120.0):
        estimate.store_rate(2, "mlp", rate)
    before = estimate.stored_rate(2, "mlp")
    estimate.store_rate(2, "mlp", 1e6)
    assert before == 110.0
    assert estimate.stored_rate(2, "mlp") == 115.0


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e9, float("inf"), float("nan")])
def test_a_rate_that_no_core_has_is_neither_stored_nor_read(rate: float, cache: Path) -> None:
    estimate.store_rate(2, "mlp", rate)
    assert estimate.stored_rate(2, "mlp") is None
    cache.mkdir(exist_ok=True)
    (cache / "rates.json").write_text(json.dumps({estimate._key(2, "mlp"): [1e9, 120.0]}))  # of an earlier version
    assert estimate.stored_rate(2, "mlp") == 120.0


def test_the_rate_of_another_model_is_not_used(cache: Path) -> None:
    estimate.store_rate(2, "wide_resnet", 140_000.0)
    assert estimate.stored_rate(2, "mlp") is None
    assert estimate.stored_rate(2, "wide_resnet") == 140_000.0


def test_a_plan_takes_the_rate_of_its_own_model(cache: Path, tmp_path: Path) -> None:
    raw = {"name": "s", "fixed": {"epochs": 1, "learning_rate": 0.1, "width": 8, "depth": 1, "batch_size": 16}}
    study, folder = parse_study(raw), tmp_path / "runs"
    guessed = make_plan(study, folder, workers=2)
    estimate.store_rate(2, "wide_resnet", 2 * estimate.DEFAULT_RATE)
    assert make_plan(study, folder, workers=2).seconds == guessed.seconds
    estimate.store_rate(2, "mlp", 2 * estimate.DEFAULT_RATE)
    assert make_plan(study, folder, workers=2).seconds == pytest.approx(guessed.seconds / 2)


@pytest.mark.parametrize("models,kept", [(["mlp"], "mlp"), (["conv1d"], "conv1d"), (["mlp", "conv1d"], None)])
def test_a_rate_is_kept_for_the_one_model_that_was_trained(
    models: list[str], kept: str | None, cache: Path, tmp_path: Path, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = {"updates": 2, "learning_rate": 0.1, "train_size": 64, "batch_size": 16, "evaluations": 1, "depth": 2}
    mixed = parse_study({"name": "s", "fixed": {**fixed, "width": 4}, "grid": {"model": models}})
    found: list[Any] = []
    monkeypatch.setattr(runner, "train", lambda *arguments, keep_rate, **options: found.append(keep_rate))
    runner.run(mixed, tmp_path / "runs", executor=InProcess(data))
    (keep_rate,) = found
    for model in ("mlp", "conv1d"):
        monkeypatch.setattr(estimate, "_SEEN", {})
        (cache / "rates.json").unlink(missing_ok=True)
        if keep_rate is not None:
            keep_rate(123.0)
        assert (estimate.stored_rate(2, model) == 123.0) is (model == kept)


def test_the_first_guess_for_images_is_faster_than_for_signals() -> None:
    assert estimate.default_rate("wide_resnet") > 3 * estimate.default_rate("mlp")
    assert estimate.default_rate("my_module:make") == estimate.default_rate("mlp")


class Clock:
    """Each look at it takes an eighth of a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.125
        return self.now


@pytest.mark.parametrize("minibatches", [1, 5, 40])
def test_a_tiny_fleet_has_the_rate_of_the_minibatches_that_it_trained(
    minibatches: int, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = {"updates": minibatches, "learning_rate": 0.1, "train_size": 64, "batch_size": 16, "evaluations": 1}
    (run,) = parse_study({"name": "s", "fixed": {**fixed, "width": 4, "depth": 1}}).runs
    monkeypatch.setattr(worker, "time", Clock())
    rate = worker.calibrate([run.model_dump()], lambda _: data)
    cost = Fleet((run,)).cost
    # Up to five minibatches: from one look at the clock to the next. Later: five minibatches a look, until 0.5 s.
    expected = {1: cost / 0.125, 5: cost / 0.125, 40: cost * 20 / 40 / 0.625}[minibatches]
    assert rate == pytest.approx(expected)


def test_fleets_that_diverge_at_once_do_not_count_for_the_rate(tmp_path: Path, data: Data) -> None:
    class Slow(InProcess):
        def run(self, tasks: Sequence[FleetTask], watch: MessageHandler) -> None:
            def say(fleet: Fleet, message: Message) -> None:
                slow = {**message.facts, "seconds": 10.0} if message.kind == "rows" else message.facts
                watch(fleet, Message(message.kind, slow, message.content))

            super().run(tasks, say)

    folder, kept = ResultsFolder(tmp_path), []
    runs = [make_run({**run.model_dump(), "strength": 0.0}) for run in study(epochs=2).runs]
    right, diverging = (tuple(run for run in runs if (run.learning_rate < 1) is small) for small in (True, False))
    fleets = [Fleet(tuple(dict.fromkeys(each))) for each in (right, diverging)]
    with folder.locked():
        runner.train(folder, fleets, Slow(data), watcher=Listener(), keep_rate=kept.append)
    assert kept == [fleets[0].cost / 10.0]


def test_the_last_few_studies_count(cache: Path) -> None:
    rates = [1.0, 2.0, 3.0, 40.0, 50.0, 60.0, 70.0, 80.0]
    for rate in rates:
        estimate.store_rate(2, "mlp", rate)
    assert estimate.stored_rate(2, "mlp") == statistics.median(rates[-estimate.KEPT :])
    assert estimate.stored_rate(1, "mlp") is None


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    estimate.store_rate(2, "mlp", 100.0)
    assert estimate.stored_rate(2, "mlp") == 100.0


@pytest.mark.parametrize("content,rate", [(500.0, 500.0), ("fast", None), ([], None), (["x", -1, 7.0], 7.0)])
def test_what_another_version_has_left_is_read_or_ignored(content: object, rate: float | None, cache: Path) -> None:
    cache.mkdir()
    (cache / "rates.json").write_text(json.dumps({estimate._key(2, "mlp"): content}))
    assert estimate.stored_rate(2, "mlp") == rate


def test_the_least_memory_of_a_fleet_is_its_parameters_gradients_and_activations() -> None:
    raw = {"name": "s", "fixed": {"epochs": 1, "learning_rate": 1, "width": 2, "depth": 1, "batch_size": 4}}
    (fleet,) = pack(parse_study({**raw, "grid": {"seed": [0, 1, 2]}}).runs)
    parameters = (40 + 1) * 2 + (2 + 1) * 10
    assert estimate.memory(fleet) == 4 * 3 * (2 * parameters + 4 * (40 + 2 + 10))
