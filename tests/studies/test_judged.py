"""benchmarks/judged.py: from made rows to the best settings, the grids to extend, the files to judge and the table."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tacit.studies.describe.spec import LATER, RunSpec
from tacit.studies.describe.study import load_study

ROOT = Path(__file__).parents[2]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = __import__("judged")
    for file in (ROOT / "studies" / "judged").glob("tune-*.toml"):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(module, "STUDIES", tmp_path)
    return module


def row(run: RunSpec, accuracy: float | None) -> dict[str, Any]:
    status = "diverged" if accuracy is None else "finished"
    return {
        "run": run.hash, "spec": {**LATER, **run.model_dump()}, "status": status, "final_test_accuracy": accuracy
    }  # fmt: skip


def made(judged: Any, name: str) -> list[dict[str, Any]]:
    """Accuracies that are highest at rate 2^-6, decay 0.003 or 0.3, and rise with the own value."""
    rows = []
    for run in load_study(judged.STUDIES / f"{name}.toml").runs:
        spec = {**LATER, **run.model_dump()}
        own = judged.setting_of(spec).own
        right = (run.learning_rate == 2**-6) + (run.weight_decay in (0.003, 0.3)) + 0.1 * own
        rows.append(row(run, None if run.learning_rate > 0.05 else 0.3 + 0.1 * right + 0.001 * (run.seed % 3)))
    return rows


def test_every_arm_of_a_task_has_its_settings_on_the_same_signals(judged: Any) -> None:
    for task in judged.TASKS:
        rows = made(judged, f"tune-{task}")
        sizes = {arm: len(judged.accuracies(rows, task, arm, dataset="mnist1d")) for arm in judged.OWN}
        assert min(sizes.values()) >= 120  # a best setting at an end adds values


def test_a_best_setting_at_an_end_asks_for_the_next_value(judged: Any) -> None:
    rows = made(judged, "tune-adamw-clean")
    judged.write_second(rows)
    rows += made(judged, "second-adamw-clean")
    sam = judged.accuracies(rows, "adamw-clean", "SAM", dataset="mnist1d")
    assert judged.best(sam) == judged.Setting(2**-6, 0.3, 0.8)
    assert judged.ends(sam) == ["own 0.8 is at the end of its grid: add 1.6"]
    assert judged.ends(judged.accuracies(rows, "adamw-clean", "plain", dataset="mnist1d")) == []


def test_the_twelve_best_of_the_first_seed_and_the_untuned_settings_get_two_more(judged: Any) -> None:
    rows = made(judged, "tune-momentum-noisy")
    judged.write_second(rows)
    second = made(judged, "second-momentum-noisy")
    for arm in judged.OWN:
        scores = judged.accuracies(rows + second, "momentum-noisy", arm, dataset="mnist1d")
        complete = {setting for setting, seen in scores.items() if set(seen) == {300, 301, 302}}
        ranked = sorted(scores, key=lambda setting: -scores[setting][300])
        assert {setting for setting in ranked if scores[setting][300] > scores[ranked[12]][300]} <= complete
        assert {each for each in scores if (each.rate, each.decay) == (2**-6, 0)} <= complete
        assert len(complete) <= 16


def test_the_files_to_judge_have_new_seeds_and_signals_and_make_the_table(judged: Any) -> None:
    rows = [each for task in judged.TASKS for each in made(judged, f"tune-{task}")]
    judged.write_second(rows[1:])
    assert not (judged.STUDIES / f"second-{judged.TASKS[0]}.toml").exists()  # a run of its grid is left
    judged.write_second(rows)
    rows += [each for task in judged.TASKS for each in made(judged, f"second-{task}")]
    judged.write(rows)
    for task in judged.TASKS:
        runs = load_study(judged.STUDIES / f"judge-{task}.toml").runs
        assert len(runs) == 2 * 7 * 8
        assert {run.dataset for run in runs} == {"mnist1d_16k"}
        assert {run.seed for run in runs}.isdisjoint({300, 301, 302})
        gain = {"plain": 0.0, "SAM": 0.02, "relative strength": -0.02}
        rows += [
            row(run, 0.5 + gain.get(judged.arm_of({**LATER, **run.model_dump()}), 0.0) + 0.001 * (run.seed % (2 + at)))
            for at, run in enumerate(runs)
        ]
    tasks = judged.results(rows)
    add_verdicts = __import__("judged_table").add_verdicts
    for task in tasks.values():
        add_verdicts(task, {"SAM": 2.0, "SAM, drawn rows": 1.1})
        assert {arm: task["arms"][arm]["verdict"] for arm in ("SAM", "relative strength")} == {
            "SAM": "gains", "relative strength": "loses"
        }  # fmt: skip
        assert [task["arms"][arm]["price"] for arm in ("SAM", "SAM, 16 rows", "plain")] == [2.0, 1.1, None]
        assert min(arm["settings"] for arm in task["arms"].values()) >= 120
    assert list(tasks) == list(judged.TASKS)


def test_the_expected_best_of_one_is_the_mean_and_of_many_the_highest(judged: Any) -> None:
    assert judged.expected_best([0.1, 0.2, 0.6], 1) == pytest.approx(0.3)
    assert judged.expected_best([0.1, 0.2, 0.6], 1000) == pytest.approx(0.6)
