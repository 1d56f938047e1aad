"""benchmarks/judged_search.py: the same search for every arm, each run trained once, the table of its rows."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return __import__("judged_search")


def bowl(judged: Any, *, rate: float) -> Any:
    """A loss whose lowest value is at this rate, own value 0.4, dropout 0.2 and decay 1."""

    def loss(setting: Any) -> float:
        decay = math.log10(setting.decay) if setting.decay else -2.0
        return (
            math.log2(setting.rate / rate) ** 2
            + math.log2(setting.own / 0.4) ** 2
            + (10 * setting.dropout - 2) ** 2
            + decay**2
        )

    return loss


def searched(judged: Any, evaluate: Any) -> tuple[Any, dict[Any, float]]:
    task, seen = judged.TASKS["transformer"], {}

    def note(setting: Any) -> float:
        assert setting not in seen
        seen[setting] = evaluate(setting)
        return seen[setting]

    return judged.search(task, replace(task.start, own=0.1), task.axes, note), seen


def test_the_search_ends_at_the_best_of_its_runs_with_a_worse_rate_on_either_side(judged: Any) -> None:
    best, seen = searched(judged, bowl(judged, rate=8e-3))
    assert 12 <= len(seen) <= 14  # twelve, and rates around the best one
    assert not judged.rate_is_open(seen, best)
    assert seen[best] == min(seen.values())
    assert best.rate == 8e-3


def test_a_best_rate_at_the_end_of_the_tried_rates_is_followed_further(judged: Any) -> None:
    best, seen = searched(judged, lambda setting: -setting.rate if setting.rate < 1 else 0.0)
    assert len(seen) > 12
    assert best.rate == pytest.approx(4e-3 * 2**7)
    assert not judged.rate_is_open(seen, best)
    _, seen = searched(judged, lambda setting: -setting.rate)
    assert len(seen) == judged.MOST_RUNS


def test_an_arm_without_an_own_value_is_searched_over_the_other_axes_alone(judged: Any) -> None:
    task, seen = judged.TASKS["transformer"], []
    judged.search(task, task.start, ("rate", "dropout", "decay"), lambda setting: seen.append(setting) or setting.rate)
    assert {setting.own for setting in seen} == {0.0}


def test_a_run_that_has_a_row_is_not_trained_again(
    judged: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = judged.TASKS["transformer"]()
    monkeypatch.setattr(type(task), "steps", 3)
    setting = judged.Setting(1e-3, 0.0, 0.0)
    score = judged.Rows(tmp_path, task, "plain").run(setting, 1, "validation", "search")
    (row,) = judged.read(judged.path_of(tmp_path, "transformer", "plain"))
    assert row["setting"] == asdict(setting)
    assert row["score"] == score < 5.0
    monkeypatch.setattr(judged, "Loop", None)  # a second training would call it
    assert judged.Rows(tmp_path, task, "plain").run(setting, 1, "validation", "search") == score


@pytest.mark.parametrize("arm", ["label smoothing", "SAM, drawn rows", "whole penalty", "relative strength"])
def test_every_kind_of_arm_trains(judged: Any, arm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = judged.TASKS["transformer"]()
    monkeypatch.setattr(type(task), "steps", 3)
    one = judged.arms("transformer")[arm]
    loop = judged.Loop(task, one, replace(task.usual, own=one.own), 0)
    before = [parameter.clone() for parameter in loop.model.parameters()]
    loop.train()
    assert all((old != new).any() for old, new in zip(before, loop.model.parameters(), strict=True))


def test_the_table_pairs_seeds_and_knows_which_way_is_better(judged: Any, tmp_path: Path) -> None:
    for arm in judged.arms("transformer"):
        assert judged.results(tmp_path) == {}  # a task is in the table when all its arms are judged
        lower = 0.1 if arm == "SAM" else -0.1 if arm == "label smoothing" else 0.0
        setting = asdict(judged.Setting(1e-3, 0.0, 0.0))
        rows = [{"stage": "search", "seed": 400, "score": 1.5, "setting": setting}]
        for seed in judged.JUDGED_SEEDS:
            score = 1.0 + 0.01 * (seed % 5) - lower + (0.001 * (seed % 2) if arm != "plain" else 0.0)
            rows += [
                {"stage": "tuned", "seed": seed, "score": score, "setting": setting},
                {"stage": "untuned", "seed": seed, "score": None, "setting": setting},
            ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        judged.path_of(tmp_path, "transformer", arm).write_text(text)
    task = judged.results(tmp_path)["transformer"]
    __import__("judged_table").add_verdicts(task, {})
    arms = task["arms"]
    assert (arms["SAM"]["verdict"], arms["label smoothing"]["verdict"]) == ("gains", "loses")
    assert arms["SAM"]["minus_plain"][0] == pytest.approx(-0.0996)
    assert arms["plain"]["untuned_mean"] == [pytest.approx(math.log(103)), 0.0]  # every untuned run diverged
