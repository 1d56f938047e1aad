"""The page of the collapse: which rows it takes, and that its distances are those of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import evaluate

from tacit._errors import InputError
from tacit.explore import collapse_page
from tacit.explore.collapse import collapse_runs
from tacit.report.collapse_score import other_curves


def row(batch_size: int, rate: float, seed: int, accuracy: float | None, **spec: Any) -> dict[str, Any]:
    own = {"dataset": "made up", "model": "mlp", "train_size": 512, "epochs": 3, "updates": None, "method": "gram"}
    varied = {"batch_size": batch_size, "learning_rate": rate, "seed": seed, "strength": 0.0, "inner_steps": 1}
    status = "diverged" if accuracy is None else "finished"
    whole = {**own, **varied, **spec}
    return {"spec": whole, "run": str(sorted(whole.items())), "best_test_accuracy": accuracy, "status": status}


def made_up() -> list[dict[str, Any]]:
    """Curves that depend on ε/B up to a little noise from a sine, so no two numbers are equal."""
    return [
        row(size, 2.0**k, seed, 0.8 - 0.01 * (k - np.log2(size) + 9) ** 2 + 0.003 * np.sin(7 * size + 3 * k + seed))
        for size, ks in ((8, range(-9, -3)), (16, range(-8, -2)), (64, range(-7, -1)))
        for k in ks
        for seed in range(3)
    ]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_distance_between_curves_is_the_report_s(share: float, tmp_path: Path) -> None:
    rows = made_up()
    found = evaluate(collapse_page(rows), f"[gap(points, {share}), scoredPoints(points).length]", tmp_path)
    keys = sorted({(one["spec"]["batch_size"], one["spec"]["learning_rate"]) for one in rows})
    means = np.array(
        [
            np.mean(
                [
                    one["best_test_accuracy"]
                    for one in rows
                    if (one["spec"]["batch_size"], one["spec"]["learning_rate"]) == key
                ]
            )
            for key in keys
        ]
    )
    sizes = [size for size, _ in keys]
    weights, reached = other_curves(sizes, [rate / size**share for size, rate in keys])
    _, reached_there = other_curves(sizes, [rate / size ** (1 - share) for size, rate in keys])
    scored = reached & reached_there
    expected = np.sqrt(np.mean((means - weights @ means)[scored] ** 2))
    assert found[0] == pytest.approx(expected, abs=1e-12)  # the same few products in another order
    assert found[1] == scored.sum()


def test_only_runs_that_differ_in_rate_batch_size_and_seed_are_compared() -> None:
    wanted = made_up()
    others = [
        *[row(8, 2.0**k, 0, 0.5, strength=0.1) for k in (-9, -8, -7)],
        *[row(8, 2.0**k, 0, 0.5, inner_steps=4) for k in (-9, -8, -7)],
        *[row(size, 2.0**k, 0, 0.5, epochs=50) for size in (8, 16) for k in (-9, -8, -7)],
    ]
    assert collapse_runs([*others, *wanted]) == wanted


def test_a_run_of_two_studies_counts_once() -> None:
    assert collapse_runs([*made_up(), *made_up()]) == made_up()


def test_runs_without_an_accuracy_are_counted_in_the_text_and_not_drawn(tmp_path: Path) -> None:
    page = collapse_page([*made_up(), row(8, 2.0**-3, 0, None)])
    assert "1 diverged before they were first evaluated" in page
    assert evaluate(page, "DATA.runs.length", tmp_path) == len(made_up())


def test_one_batch_size_is_refused() -> None:
    with pytest.raises(InputError, match="fewer than two batch sizes"):
        collapse_page([one for one in made_up() if one["spec"]["batch_size"] == 8])


def test_a_name_cannot_end_the_script() -> None:
    page = collapse_page([row(size, 2.0**k, 0, 0.5, dataset="</script><b>") for size in (8, 16) for k in (-9, -8)])
    assert "</script><b>" not in page
