"""The page of the collapse: which rows it takes, and that its distances are those of the report."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chromium import evaluate
from tacit._util.errors import InputError
from tacit.explore import collapse_page
from tacit.explore.collapse import as_json, collapse_sweeps
from tacit.report import build_report, read_parts

STORED = Path(__file__).parents[2] / "docs" / "results"


def row(batch_size: int, rate: float, seed: int, accuracy: float | None, **spec: Any) -> dict[str, Any]:
    own = {"dataset": "made up", "model": "mlp", "train_size": 512, "epochs": 3, "updates": None, "method": "gram"}
    varied = {"batch_size": batch_size, "learning_rate": rate, "seed": seed, "strength": 0.0, "inner_steps": 1}
    status = "diverged" if accuracy is None else "finished"
    whole = {**own, **varied, **spec}
    return {
        "spec": whole, "run": str(sorted(whole.items())), "best_test_accuracy": accuracy, "status": status,
        "final_train_accuracy": None if accuracy is None else 1.0,
    }  # fmt: skip


def height(k: float, size: int, seed: int) -> float:
    """Depends on 2^k/B, a little on B, and on noise from sines, so no two numbers are equal."""
    noise = 0.003 * math.sin(7 * size + 3 * k + seed) + 0.002 * math.sin(11 * seed + size)
    return float(0.8 - 0.01 * (k - np.log2(size) + 9) ** 2 + 0.004 * np.log2(size) + noise)


GRID = [(size, k) for size, ks in ((8, range(-9, -3)), (16, range(-8, -2)), (64, range(-7, -1))) for k in ks]


def rates() -> list[dict[str, Any]]:
    return [row(size, 2.0**k, seed, height(k, size, seed)) for size, k in GRID for seed in range(3)]


def strengths() -> list[dict[str, Any]]:
    """At one rate and a fixed number of updates, which the specs give in epochs."""
    return [
        row(size, 2.0**-9, seed, height(k, size, seed + 50), strength=2.0**k, epochs=size // 8)
        for size, k in GRID
        for seed in range(3)
    ]


def test_the_distances_between_curves_are_the_report_s(tmp_path: Path) -> None:
    rows = [*rates(), *strengths()]
    sweeps = collapse_sweeps(rows)
    assert [sweep.question.x.symbol for sweep in sweeps] == ["ε/B", "λ/B"]
    script = "DATA.sweeps.map(({ points }) => [gap(points, 1), gap(points, 0), scoredPoints(points).length])"
    found = evaluate(collapse_page(rows), script, tmp_path)
    for sweep, (near, far, count) in zip(sweeps, found, strict=True):
        expected = sweep.question.judged(sweep.points)
        assert expected.gap > 1e-4, "the test would compare zeros"
        # Sums of a dozen products of numbers of order one, in another order.
        assert near == pytest.approx(expected.gap, abs=1e-12)
        assert far == pytest.approx(expected.rival_gap, abs=1e-12)
        assert count == expected.points


def test_stored_rows_give_the_numbers_of_the_report_s_figures(tmp_path: Path) -> None:
    stored = STORED / "fashion-mnist-small"
    if not list(stored.glob("studies/*.json")):
        pytest.skip("docs/results/fashion-mnist-small holds no study")
    parts = read_parts([stored])
    report = build_report(parts, only=["6b", "6c"])
    seen = {figure.id: figure.verdict for figure in report.figures if figure.verdict}
    page = json.loads(as_json(collapse_sweeps([row for part in parts for row in part.rows])))
    script = "DATA.sweeps.map(({ points }) => [gap(points, 1), gap(points, 0)])"
    drawn = evaluate(collapse_page([row for part in parts for row in part.rows]), script, tmp_path)
    for id, sweep, (near, far) in zip(("6b", "6c"), page["sweeps"], drawn, strict=True):
        assert seen[id].number_text.startswith(sweep["report"]["ratio"])
        assert near == pytest.approx(sweep["report"]["gap"], abs=1e-12)
        assert far == pytest.approx(sweep["report"]["rivalGap"], abs=1e-12)


def test_only_runs_that_differ_in_rate_batch_size_and_seed_are_compared() -> None:
    wanted = rates()
    others = [
        *[row(8, 2.0**k, 0, 0.5, strength=0.1) for k in (-9, -8, -7)],
        *[row(8, 2.0**k, 0, 0.5, inner_steps=4) for k in (-9, -8, -7)],
        *[row(size, 2.0**k, 0, 0.5, epochs=50) for size in (8, 16) for k in (-9, -8, -7)],
    ]
    (sweep,) = collapse_sweeps([*others, *wanted])
    assert sweep.rows == wanted


def test_a_run_of_two_studies_counts_once() -> None:
    (sweep,) = collapse_sweeps([*rates(), *rates()])
    assert sweep.rows == rates()


def test_runs_without_an_accuracy_are_counted_in_the_text_and_not_drawn() -> None:
    (sweep,) = json.loads(as_json(collapse_sweeps([*rates(), row(8, 2.0**-3, 0, None)])))["sweeps"]
    assert "1 diverged before they were first evaluated" in sweep["facts"]
    assert sum(len(point["runs"]) for point in sweep["points"]) == len(rates())
    assert not any(point["counts"] for point in sweep["points"] if not point["runs"])


def test_one_seed_and_few_points_still_make_a_page(tmp_path: Path) -> None:
    few = [row(size, 2.0**k, 0, 0.5 + 0.01 * k) for size, k in ((8, -9), (8, -8), (16, -8), (16, -7))]
    script = "[sweep.report.ratio, gap(points, 1), document.getElementById('reading').textContent]"
    ratio, near, reading = evaluate(collapse_page(few), script, tmp_path)
    assert ratio is None
    assert near == pytest.approx(0.01)
    assert "points count" in reading


def test_one_batch_size_is_refused() -> None:
    with pytest.raises(InputError, match="fewer than two batch sizes"):
        collapse_page([one for one in rates() if one["spec"]["batch_size"] == 8])


def test_a_name_cannot_end_the_script() -> None:
    page = collapse_page([row(size, 2.0**k, 0, 0.5, dataset="</script><b>") for size in (8, 16) for k in (-9, -8)])
    assert "</script><b>" not in page


def test_the_two_axes_are_chosen_by_buttons(tmp_path: Path) -> None:
    script = """[...document.getElementById("sweeps").children].map((button) => {
      button.click();
      return [button.ariaPressed, $("to-ratio").textContent, $("reading").textContent];
    })"""
    found = evaluate(collapse_page([*rates(), *strengths()]), script, tmp_path)
    assert [each[:2] for each in found] == [["true", "ε/B"], ["true", "λ/B"]]
    assert found[0][2] != found[1][2]
