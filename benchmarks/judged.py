"""Task 1 of docs/judged-plan.md from rows: best settings, ends of grids, study files to judge.

    python benchmarks/judged.py runs/judged --second     # studies/judged/second-TASK.toml: more seeds for the best
    python benchmarks/judged.py runs/judged              # best setting of every arm, and which grids to extend
    python benchmarks/judged.py runs/judged --write      # studies/judged/judge-TASK.toml, once no best is at an end

It trains nothing: `tacit run studies/judged/NAME.toml --into runs/judged` does, and goes on where it stopped.
`judged_table.py` makes the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

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
FIRST_SEED, SECOND_SEEDS, JUDGED_SEEDS = 300, "301:303", "310:318"
TUNING_SEEDS = {300, 301, 302}
FINALISTS = 12  # settings of an arm that get the second seeds: a tenth of its grid
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
    """The highest mean of those with all tuning seeds; of equal ones the smallest rate, decay and own value."""
    complete = [setting for setting, seen in sorted(scores.items()) if seen.keys() >= TUNING_SEEDS]
    return max(complete, key=lambda setting: fmean(scores[setting].values()))


def finalists(scores: dict[Setting, dict[int, float]], usual_rate: float) -> list[Setting]:
    """The twelve best on the first seed, and those at decay 0 and the usual rate, of which one is "untuned"."""
    ranked = sorted(sorted(scores), key=lambda setting: scores[setting][FIRST_SEED], reverse=True)
    chosen = ranked[:FINALISTS]
    return chosen + [each for each in ranked[FINALISTS:] if (each.rate, each.decay) == (usual_rate, 0.0)]


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
    """Accuracies of the first seed at rates and decays that all arms have, at the own value with the highest mean."""
    by_own: dict[float, list[float]] = {}
    for setting, seen in scores.items():
        if setting.rate in rates and setting.decay in decays:
            by_own.setdefault(setting.own, []).append(seen[FIRST_SEED])
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
            if any(seen.keys() >= TUNING_SEEDS for seen in scores.values()):
                chosen = best(scores)
                found = f"{100 * fmean(scores[chosen].values()):.1f} at rate {chosen.rate:g}, decay {chosen.decay:g}"
                print(f"{task}, {arm}: {found}, own {chosen.own:g}, of {len(scores)}", *ends(scores), sep="; ")


def write_second(rows: list[Row]) -> None:
    """One study per task: the finalists of every arm on the second seeds."""
    for task in _ready(rows, "tune"):
        rate = USUAL_RATE[task.split("-")[0]]
        chosen = {arm: finalists(accuracies(rows, task, arm, dataset="mnist1d"), rate) for arm in OWN}
        grids = [(arm, setting, arm) for arm, settings in chosen.items() for setting in settings]
        _write_study(
            rows, task, "second", "mnist1d", grids, SECOND_SEEDS,
            question="Which of the settings that were best on one seed are best on three?",
        )  # fmt: skip


def write(rows: list[Row]) -> None:
    """One study per task: the tuned and the untuned setting of every arm, eight new seeds, the judged signals."""
    for task in _ready(rows, "tune", "second"):
        rate = USUAL_RATE[task.split("-")[0]]
        grids = []
        for arm in OWN:
            scores = accuracies(rows, task, arm, dataset="mnist1d")
            grids += [(arm, best(scores), f"{arm}, tuned"), (arm, untuned(scores, rate), f"{arm}, untuned")]
        _write_study(
            rows, task, "judge", "mnist1d_16k", grids, JUDGED_SEEDS,
            question=f"Which arm has the highest test accuracy on {task}?",
        )  # fmt: skip


def _write_study(
    rows: list[Row],
    task: str,
    part: str,
    dataset: str,
    grids: list[tuple[str, Setting, str]],
    seeds: str,
    *,
    question: str,
) -> None:
    fixed = {**load_study(STUDIES / f"tune-{task}.toml").fixed, "dataset": dataset}
    lines = [
        f"# Written by benchmarks/judged.py from the rows of {task}.",
        f'name = "{part}-{task}"', f'question = "{question}"', "", "[fixed]",
        *[f"{key} = {_toml(value)}" for key, value in fixed.items()], "",
        "[summary]", 'score = "final_test_accuracy"',
    ]  # fmt: skip
    keys = ("learning_rate", "weight_decay", "label_smoothing", "strength", "relative", "sam_radius")
    keys += ("micro_batch_size", "sampled", "sam_rows")
    specs = {
        (arm_of(row["spec"]), setting_of(row["spec"])): row["spec"] for row in rows if task_of(row["spec"]) == task
    }
    for arm, setting, comment in grids:
        spec = specs[arm, setting]
        lines += ["", f"[[grid]]  # {comment}", *[f"{key} = [{_toml(spec[key])}]" for key in keys if spec[key]]]
        lines.append(f'seeds = "{seeds}"')
    (STUDIES / f"{part}-{task}.toml").write_text("\n".join(lines) + "\n")


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def results(rows: list[Row]) -> dict[str, Any]:
    """Of every judged task and arm: accuracies in per cent, tuned and untuned, and the expected best of k settings."""
    tasks: dict[str, Any] = {}
    for task in TASKS:
        rate = USUAL_RATE[task.split("-")[0]]
        tuning = {arm: accuracies(rows, task, arm, dataset="mnist1d") for arm in OWN}
        judged = {arm: accuracies(rows, task, arm, dataset="mnist1d_16k") for arm in OWN}
        if not all(judged.values()):
            continue
        rates = set.intersection(*[{setting.rate for setting in scores} for scores in tuning.values()])
        decays = set.intersection(*[{setting.decay for setting in scores} for scores in tuning.values()])
        arms = {}
        for arm, scores in tuning.items():
            chosen, usual = best(scores), untuned(scores, rate)
            arms[arm] = {
                "setting": asdict(chosen), "settings": len(scores), "tuned": _by_seed(judged[arm][chosen]),
                "usual": asdict(usual), "untuned": _by_seed(judged[arm][usual]),
                "best_of": {
                    str(k): 100 * expected_best(common(scores, sorted(rates), sorted(decays)), k) for k in (1, 4, 16)
                },
            }  # fmt: skip
        tasks[task] = {"score": "accuracy, %", "lower_is_better": False, "arms": arms}
    return tasks


def _by_seed(scores: dict[int, float]) -> dict[str, float]:
    return {str(seed): 100 * scores[seed] for seed in sorted(scores)}


def _ready(rows: list[Row], *parts: str) -> Iterator[str]:
    """The tasks of whose committed files every run has a row; says what is left of the others."""
    have = {row["run"] for row in rows}
    for task in TASKS:
        left = {}
        for part in parts:
            file = STUDIES / f"{part}-{task}.toml"
            left[part] = sum(run.hash not in have for run in load_study(file).runs) if file.exists() else -1
        if not any(left.values()):
            yield task
        for part, runs in left.items():
            if runs:
                print(f"{part}-{task}: " + ("no file yet" if runs < 0 else f"{runs} runs left") + "; left out")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--second", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = read_rows(given.folder)
    if given.second:
        write_second(rows)
    elif given.write:
        write(rows)
    else:
        show_best(rows)


if __name__ == "__main__":
    main()
