"""docs/models.md is what the stored zoo says, and the zoo holds no failure."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tacit.penalty import METHODS

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("models_table", ROOT / "docs" / "models_table.py")
models_table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(models_table)
LIBRARIES = {"torch.nn", "torchvision", "timm", "transformers", "peft"}
AUTO_MUST_BE_EXACT = (
    "GPT-2",
    "GPT-2, width 512",
    "Bert",
    "Llama",
    "Llama, width 512",
    "ViT",
    "Llama + LoRA",
    "Llama + LoRA, width 512, input gradients",
)


@pytest.fixture(scope="module")
def zoo() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / "zoo.json").read_text())


def test_the_page_is_made_from_the_stored_zoo(zoo: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "models.md").read_text() == models_table.page(zoo)


def test_no_model_is_wrong_and_none_ends_in_a_traceback(zoo: dict[str, Any]) -> None:
    ends = Counter(end["status"] for model in zoo["models"] for _, _, end in models_table.cases(model))
    assert [status for status in models_table.FAILURES if ends[status]] == []
    assert len(zoo["models"]) >= 60
    assert {model["library"] for model in zoo["models"]} == LIBRARIES


def test_the_stored_rows_come_from_one_run_on_a_clean_commit(zoo: dict[str, Any]) -> None:
    assert zoo["one_run"]
    (run,) = zoo["runs"]
    assert run["commit"]
    assert run["dirty"] is False
    assert {model["run"] for model in zoo["models"]} == {run["started"]}


def test_only_methods_that_there_are_count_and_a_difference_is_no_exact_one(zoo: dict[str, Any]) -> None:
    known = {"auto", "FactoredSGD", *METHODS}
    counted = [method for model in zoo["models"] for _, method, _ in models_table.cases(model)]
    assert set(counted) == known
    assert set(models_table.EXACT_METHODS) == known - {"finite_difference"}
    assert f" of {len(counted):,} cases on" in (ROOT / "README.md").read_text()


def test_at_most_three_models_have_no_exact_method(zoo: dict[str, Any]) -> None:
    assert sum(not models_table.has_exact_method(model) for model in zoo["models"]) <= 3


@pytest.mark.parametrize("name", AUTO_MUST_BE_EXACT)
def test_auto_is_exact_on_todays_language_and_vision_transformers(zoo: dict[str, Any], name: str) -> None:
    (model,) = [
        model for model in zoo["models"] if model["name"] == name and model["library"] in ("transformers", "peft")
    ]
    assert {ends["auto"]["status"] for ends in model["variants"].values()} == {"exact"}


def test_the_page_says_which_run_made_the_rows(zoo: dict[str, Any]) -> None:
    run = {"commit": "0123456789ab", "dirty": False, "started": "2026-01-01T10:00:00", "ended": "2026-01-01T10:20:00"}
    of_one = zoo | {"one_run": True, "runs": [run]}
    assert "one run, 2026-01-01T10:00:00 to 2026-01-01T10:20:00, on commit `0123456789ab`." in models_table.page(of_one)
    dirty = zoo | {"one_run": True, "runs": [run | {"dirty": True}]}
    assert "`0123456789ab`, with uncommitted changes" in models_table.page(dirty)
    assert "several runs" in models_table.page(zoo | {"one_run": False, "runs": [run, run]})


def test_a_failure_would_be_seen_on_the_page(zoo: dict[str, Any]) -> None:
    broken = json.loads(json.dumps(zoo))
    broken["models"][0]["variants"]["base"]["gram"] = {"status": "wrong", "error": 0.5}
    assert "**WRONG**" in models_table.page(broken)
    assert "**WRONG**" not in models_table.page(zoo)
