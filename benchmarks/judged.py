"""The judged table of docs/judged-plan.md from rows: best settings, ends of grids, study files to judge, the table.

    python benchmarks/judged.py runs/judged              # best setting of every arm, and which grids to extend
    python benchmarks/judged.py runs/judged --write      # studies/judged/judge-TASK.toml, once no best is at an end
    python benchmarks/judged.py runs/judged --table      # the table, from the rows of both

It trains nothing: `tacit run studies/judged/NAME.toml --into runs/judged` does, and goes on where it stopped.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tacit.report.numbers import student
from tacit.studies.describe.study import load_study
from tacit.studies.store.folder import read_rows

STUDIES = Path(__file__).parents[1] / "studies" / "judged"
TASKS = ("momentum-clean", "momentum-noisy", "adamw-clean", "adamw-noisy")
OWN = {  # of every arm the key of its own value; rivals first
    "plain": None,
    "label smoothing": "label_smoothing",
    "SAM": "sam_radius",
    "SAM, 16 rows": "sam_radius",
    "whole penalty": "strength",
    "sampled penalty": "strength",
    "relative strength": "relative",
}
USUAL_RATE = {"momentum": 2.0**-6, "adamw": 2.0**-10}
CHANCE = 0.1  # the accuracy of a run that diverged
JUDGED_SEEDS = "310:318"
Row = dict[str, Any]


def arm_of(spec: dict[str, Any]) -> str:
    if spec["sam_radius"]:
        return "SAM, 16 rows" if spec["sam_rows"] else "SAM"
    if spec["relative"]:
        return "relative strength"
    if spec["strength"]:
        return "sampled penalty" if spec["sampled"] else "whole penalty"
    return "label smoothing" if spec["label_smoothing"] else "plain"


def task_of(spec: dict[str, Any]) -> str:
    return f"{spec['optimizer']}-{'noisy' if spec['label_noise'] else 'clean'}"


@dataclass(frozen=True, order=True)
class Setting:
    rate: float
    decay: float
    own: float


def setting_of(spec: dict[str, Any]) -> Setting:
    key = OWN[arm_of(spec)]
    return Setting(spec["learning_rate"], spec["weight_decay"], spec[key] if key else 0.0)


def accuracies(rows: Iterable[Row], task: str, arm: str, *, dataset: str) -> dict[Setting, dict[int, float]]:
    """Accuracy at the end by setting and seed: validation signals with `mnist1d`, judged ones with `mnist1d_16k`."""
    found: dict[Setting, dict[int, float]] = {}
    for row in rows:
        spec = row["spec"]
        if (task_of(spec), arm_of(spec), spec["dataset"]) == (task, arm, dataset):
            score = row["final_test_accuracy"] if row["status"] == "finished" else CHANCE
            found.setdefault(setting_of(spec), {})[spec["seed"]] = score
    return found


def best(scores: dict[Setting, dict[int, float]]) -> Setting:
    """The highest mean; of equal ones the smallest rate, decay and own value."""
    return max(sorted(scores), key=lambda setting: fmean(scores[setting].values()))


def ends(scores: dict[Setting, dict[int, float]]) -> list[str]:
    """What to add to the grid: the axes at whose end the best setting lies. Decay 0 is no end."""
    chosen, wanted = best(scores), []
    for name in ("rate", "decay", "own"):
        values = sorted({getattr(setting, name) for setting in scores})
        here = getattr(chosen, name)
        if len(values) < 2 or here not in (values[0], values[-1]) or here == 0:
            continue
        other = values[1] if here == values[0] else values[-2]
        wanted.append(f"{name} {here:g} is at the end of its grid: add {here * here / other if other else 2 * here:g}")
    return wanted


def common(scores: dict[Setting, dict[int, float]], rates: Sequence[float], decays: Sequence[float]) -> list[float]:
    """Mean accuracies over the rates and decays that all arms have, at the own value with the highest mean of them."""
    by_own: dict[float, list[float]] = {}
    for setting, seen in scores.items():
        if setting.rate in rates and setting.decay in decays:
            by_own.setdefault(setting.own, []).append(fmean(seen.values()))
    return max(by_own.values(), key=fmean)


def expected_best(values: Sequence[float], k: int) -> float:
    """The mean of the highest of k values drawn with repetition (Dodge et al., 2019).

    >>> expected_best([0.0, 1.0], 2)
    0.75
    """
    n, ordered = len(values), sorted(values)
    return sum(value * ((at / n) ** k - ((at - 1) / n) ** k) for at, value in enumerate(ordered, start=1))


def untuned(scores: dict[Setting, dict[int, float]], rate: float) -> Setting:
    """Decay 0 and the usual rate, with the best own value there."""
    return best({setting: seen for setting, seen in scores.items() if (setting.rate, setting.decay) == (rate, 0.0)})


def show_best(rows: list[Row]) -> None:
    for task in TASKS:
        for arm in OWN:
            scores = accuracies(rows, task, arm, dataset="mnist1d")
            if scores:
                chosen = best(scores)
                found = f"{100 * fmean(scores[chosen].values()):.1f} at rate {chosen.rate:g}, decay {chosen.decay:g}"
                print(f"{task}, {arm}: {found}, own {chosen.own:g}, of {len(scores)}", *ends(scores), sep="; ")


def write(rows: list[Row]) -> None:
    """One study per task: the tuned and the untuned setting of every arm, eight new seeds, the judged signals."""
    for task in TASKS:
        tuning = load_study(STUDIES / f"tune-{task}.toml")
        fixed = {**tuning.fixed, "dataset": "mnist1d_16k"}
        lines = [
            f"# Written by benchmarks/judged.py from the rows of tune-{task}: each arm tuned and untuned.",
            f'name = "judge-{task}"', f'question = "Which arm has the highest test accuracy on {task}?"', "", "[fixed]",
            *[f"{key} = {_toml(value)}" for key, value in fixed.items()], "",
            "[summary]", 'score = "final_test_accuracy"',
        ]  # fmt: skip
        for arm in OWN:
            scores = accuracies(rows, task, arm, dataset="mnist1d")
            specs = {setting_of(row["spec"]): row["spec"] for row in rows if _is(row, task, arm)}
            for what, setting in (
                ("tuned", best(scores)),
                ("untuned", untuned(scores, USUAL_RATE[task.split("-")[0]])),
            ):
                keys = ("learning_rate", "weight_decay", "label_smoothing", "strength", "relative", "sam_radius")
                keys += ("micro_batch_size", "sampled", "sam_rows")
                given = {key: specs[setting][key] for key in keys if specs[setting][key]}
                lines += ["", f"[[grid]]  # {arm}, {what}", *[f"{key} = [{_toml(v)}]" for key, v in given.items()]]
                lines.append(f'seeds = "{JUDGED_SEEDS}"')
        (STUDIES / f"judge-{task}.toml").write_text("\n".join(lines) + "\n")


def _is(row: Row, task: str, arm: str) -> bool:
    return (task_of(row["spec"]), arm_of(row["spec"]), row["spec"]["dataset"]) == (task, arm, "mnist1d")


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def table(rows: list[Row]) -> str:
    """Per cent; "gains" and "loses" by the 95 % interval of tuned − plain, paired by seed."""
    lines = []
    for task in TASKS:
        rate = USUAL_RATE[task.split("-")[0]]
        tuning = {arm: accuracies(rows, task, arm, dataset="mnist1d") for arm in OWN}
        judged = {arm: accuracies(rows, task, arm, dataset="mnist1d_16k") for arm in OWN}
        if not all(tuning.values()) or not all(judged.values()):
            continue
        rates = set.intersection(*[{setting.rate for setting in scores} for scores in tuning.values()])
        decays = set.intersection(*[{setting.decay for setting in scores} for scores in tuning.values()])
        base = judged["plain"][best(tuning["plain"])]
        lines += ["", f"**{task}**", "", "| arm | tuned | − plain | | untuned | best of 1, 4, 16 |", "|" + " --- |" * 6]
        for arm, scores in tuning.items():
            tuned, fresh = judged[arm][best(scores)], judged[arm][untuned(scores, rate)]
            curve = [expected_best(common(scores, sorted(rates), sorted(decays)), k) for k in (1, 4, 16)]
            difference = [100 * (tuned[seed] - base[seed]) for seed in sorted(base)]
            cells = [arm, _mean(tuned), *_verdict(difference), _mean(fresh), " ".join(f"{100 * x:.1f}" for x in curve)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(scores: dict[int, float]) -> str:
    values = [100 * score for score in scores.values()]
    return f"{fmean(values):.1f} ± {stdev(values) / math.sqrt(len(values)):.1f}"


def _verdict(differences: Sequence[float]) -> tuple[str, str]:
    if not any(differences):
        return "", ""
    middle = fmean(differences)
    half = student(0.95, len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    word = "gains" if middle > half else "loses" if middle < -half else "tie"
    return f"{middle:+.1f} ± {half:.1f}", word


def check_grids(rows: list[Row]) -> None:
    """Refuses to choose settings before every tuning run of the committed files has a row."""
    have = {row["run"] for row in rows}
    for task in TASKS:
        runs = load_study(STUDIES / f"tune-{task}.toml").runs
        left = sum(run.hash not in have for run in runs)
        if left:
            raise SystemExit(f"tune-{task} has {left} of {len(runs)} runs left; run it first.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    rows = read_rows(given.folder)
    if given.table:
        print(table(rows))
    elif given.write:
        check_grids(rows)
        write(rows)
    else:
        show_best(rows)


if __name__ == "__main__":
    main()
