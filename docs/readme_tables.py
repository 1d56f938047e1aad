"""Tables of the README and of docs, made from stored results: run this file to write them; a test compares them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "benchmarks" / "results" / "bench.json"
ADVICE = ROOT / "benchmarks" / "results" / "advice.json"
LARGE_BATCH = ROOT / "benchmarks" / "results" / "large_batch.json"
EDGE = ROOT / "benchmarks" / "results" / "edge.json"
CHEAP = ROOT / "benchmarks" / "results" / "cheap_regularizers.json"
MEASURE = ROOT / "benchmarks" / "results" / "measure.json"
ZOO = ROOT / "benchmarks" / "results" / "zoo.json"
ZOO_METHODS = ("auto", "gram", "double_backward", "FactoredSGD", "finite_difference")  # the stored run tried more
WRN_UPDATE = ROOT / "benchmarks" / "results" / "wrn_update.json"
RESULTS = ROOT / "docs" / "results"
IMAGES = {
    "cifar10-small": "CIFAR-10, 1,024 images",
    "cifar10": "CIFAR-10, 4,096 images",
    "fashion-mnist-small": "Fashion-MNIST",
    "fashion-mnist": "Fashion-MNIST, 784-4096³-10",
}
CONVOLUTION = {"mnist1d-conv": "MNIST-1D, `conv1d`"}
COLUMNS = ("naive double backward", "double_backward", "gram", "FactoredSGD", "finite_difference")
# Products per linear layer, and whether the gradient is exact.
METHODS = {
    "FactoredSGD": ("6, and the update is one more of rank 2B in place", "yes"),
    "gram": ("6 where rows are few, 9 elsewhere", "yes"),
    "double_backward": ("9", "yes"),
    "finite_difference": ("6 (9 with `central=True`)", "no"),
}
TASKS = {"mnist1d": "MNIST-1D", "fashion": "Fashion-MNIST"}
ARMS = {
    "small": "small batch, tuned rate",
    "same": "same rate",
    "epochs": "same rate, same epochs",
    "linear": "linearly scaled rate",
    "matched": "advised rate",
    "penalty": "advised strength",
}
LARGE_BATCH_ARMS = {
    "small": "small batch, tuned rate",
    "same": "same rate",
    "scaled": "scaled rate",
    "matched": "advised rate",
    "limited": "advised strength",
    "limited-2": "advised strength, 40 more seeds",
    "advised": "advised strength, no limit",
    "searched": "searched strength",
    "every-2": "advised strength, every 2nd step",
    "every-4": "advised strength, every 4th step",
    "every-8": "advised strength, every 8th step",
    "held-4": "advised strength, every 4th step, held at the edge of one step",
    "held-8": "advised strength, every 8th step, held at the edge of one step",
    "micro-4x": "advised strength, micro-batches 4 times as large",
    "whole-batch": "advised strength, no micro-batches",
    "whole-4": "advised strength, no micro-batches, every 4th step",
    "whole-8": "advised strength, no micro-batches, every 8th step",
    "sam": "SAM, radius and rate tuned",
    "sam-4": "SAM on every 4th step",
}
WAYS = {
    "factors": "the pass for Γ",
    "measure": "all of `tacit.measure`",
    "vmap": "`vmap`",
    "opacus": "Opacus",
    "backpack": "BackPACK",
}


def costs() -> str:
    """One row per benchmarked model: time of a step, and for exact methods of ours the peak memory in brackets."""
    lines = [
        "| model | " + " | ".join(f"`{name}`" if " " not in name else name for name in COLUMNS) + " |",
        "| --- |" + " --- |" * len(COLUMNS),
    ]
    for model in json.loads(BENCH.read_text())["models"]:
        rows = {row["step"]: row for row in model["rows"]}
        cells = []
        for name in COLUMNS:
            row = rows[name]
            if row["status"] != "measured":
                cells.append("refused")
                continue
            cell = f"{row['times_plain']:.2f}"
            if name in ("gram", "FactoredSGD"):
                cell = f"{'**' if row['times_plain'] <= 1 else ''}{cell}{'**' if row['times_plain'] <= 1 else ''}"
                cell += f" ({row['peak_times_plain']:.2f})"
            cells.append(cell)
        lines.append(f"| {model['title']} | " + " | ".join(cells) + " |")
    lines += ["", "Time, (memory) as multiples of plain. The last is an approximation, the others are exact."]
    return "\n".join(lines)


CHEAP_STEPS = {  # and the same step by hand
    "penalty of one micro-batch": "penalty by hand",
    "SAM, direction from b rows": "SAM from b rows by hand",
    "SAM": "SAM by hand",
}


def cheap() -> str:
    """Prices of the penalty on one micro-batch and of SAM, in plain steps: the package, and (by hand)."""
    found = json.loads(CHEAP.read_text())
    lines = [_row(["model", *CHEAP_STEPS, "peak memory of the three"]), _row(["---"] * (len(CHEAP_STEPS) + 2))]
    for model, row in found["threads"]["1"].items():
        cells = [f"{row[step]['median']:.2f} ({row[hand]['median']:.2f})" for step, hand in CHEAP_STEPS.items()]
        memory = " · ".join(f"{found['memory'][model][step]:.2f}" for step in CHEAP_STEPS)
        lines.append(_row([model, *cells, memory]))
    return "\n".join(lines)


def methods() -> str:
    """One row per method: what it computes, and its stored peak memory on the paper's MLP."""
    (model,) = (model for model in json.loads(BENCH.read_text())["models"] if model["name"] == "mlp-4096-b16")
    peaks = {row["step"]: f"{row['peak_times_plain']:.2f}" for row in model["rows"]}
    lines = [
        "| method | products per linear layer | exact | peak memory, x plain¹ |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| `{name}` | {products} | {exact} | {peaks[name]} |" for name, (products, exact) in METHODS.items()]
    return "\n".join(lines)


def verdicts(regime: str = "figures") -> str:
    """One row per figure: what the paper says, what was seen, the number with its interval, the verdict."""
    lines = ["| figure | the claim | seen here | number [95 %] | verdict |", "| --- | --- | --- | --- | --- |"]
    for figure in _figures("mnist1d", regime):
        verdict = figure["verdict"]
        outcome = f"**{verdict['outcome']}** {verdict['advice']}".strip()
        lines.append(_row([figure["figure"], verdict["claim"], verdict["seen"], _number(verdict), outcome]))
    return "\n".join(lines)


def verdict_lines() -> str:
    """One short line per claim: the verdict in the paper's regime and, where it was tried, without augmentation."""
    lines = ["| figure | what it shows | with augmentation | without |", "| --- | --- | --- | --- |"]
    beside = {figure["figure"]: figure["verdict"]["outcome"] for figure in _figures("mnist1d", "beside")}
    for figure in _figures("mnist1d"):
        id = figure["figure"]
        lines.append(_row([id, figure["title"], f"**{figure['verdict']['outcome']}**", beside.get(id, "")]))
    return "\n".join(lines)


def verdicts_without_claims(folders: dict[str, str]) -> str:
    """The same without the claims, which stand in the table above, for other data and models."""
    lines = ["| data | figure | seen here | number [95 %] | verdict |", "| --- | --- | --- | --- | --- |"]
    for folder, title in folders.items():
        for figure in _figures(folder):
            verdict = figure["verdict"]
            outcome = f"**{verdict['outcome']}** {verdict['advice']}".strip()
            lines.append(_row([title, figure["figure"], verdict["seen"], _number(verdict), outcome]))
    return "\n".join(lines)


def costs_on_images() -> str:
    """What each figure on real images rests on, and what it cost."""
    lines = [
        "| data | figure | training images | length | seeds | runs | core-hours |",
        "| --- | --- | ---: | --- | --- | ---: | ---: |",
    ]
    for folder, title in IMAGES.items():
        for figure in _figures(folder):
            cut = {name: here for name, (here, _) in figure["not_as_in_the_paper"].items()}
            cells = [cut["training examples N"], cut["length"], cut["runs per point"], str(figure["runs"])]
            lines.append(_row([title, figure["figure"], *cells, f"{figure['core_minutes'] / 60:.2f}"]))
    return "\n".join(lines)


def _figures(folder: str, regime: str = "figures") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / folder / "results.json").read_text())[regime]
    return found


def _number(verdict: dict[str, Any]) -> str:
    if verdict["number"] is None:
        return ""
    if verdict["number"][0] is None:
        return "no number"
    value, low, high = verdict["number"]
    if low is None and high is None:
        ends = "(no bounded interval)"
    else:
        ends = f"[{'−∞' if low is None else f'{low:.2f}'}, {'∞' if high is None else f'{high:.2f}'}]"
    return f"{value:.2f} {ends} {verdict['unit']}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def advice_in_full(task: str) -> str:
    """One task: also updates, the best test accuracy seen on the way, and training accuracy."""
    found = _advice()[task]
    lines = [
        "| way | B | ε | λ | updates | at the end | best seen | minus small | training | diverged |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for arm, entry in found["arms"].items():
        difference = "" if arm == "small" else _points(entry["final_minus_small"])
        cells = [ARMS[arm], *_settings(entry), str(entry["updates"]), _percent(entry["final_test_accuracy"])]
        cells += [_percent(entry["best_test_accuracy"]), difference, f"{100 * entry['final_train_accuracy'][0]:.1f}"]
        lines.append("| " + " | ".join([*cells, _diverged(entry, found)]) + " |")
    return "\n".join(lines)


def _advice() -> dict[str, Any]:
    return json.loads(ADVICE.read_text())


def _settings(entry: dict[str, Any]) -> list[str]:
    return [str(entry["batch_size"]), f"{entry['learning_rate']:.4g}", f"{entry['strength'] or 0:.4g}"]


def _percent(found: list[float]) -> str:
    mean, low, high = (100 * min(max(number, 0.0), 1.0) for number in found)  # Student's intervals know no bounds
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _points(found: list[float]) -> str:
    mean, low, high = (f"{100 * number:.1f}".replace("-", "−") for number in found)
    return f"{mean} [{low}, {high}]"


def _diverged(entry: dict[str, Any], found: dict[str, Any]) -> str:
    return f"{entry['diverged']} of {len(found['seeds'])}"


def large_batch() -> str:
    """Every task and optimizer of benchmarks/advice.py: one row per way, what was lost above it."""
    if not LARGE_BATCH.exists():
        return "Not recorded yet: `python benchmarks/advice.py --task mnist1d`."
    parts = []
    for name, found in _large_batch().items():
        seeds = len(found["seeds"])
        parts += [f"**{name}**, {seeds} seeds; lost {_points(found['lost'])} points.", ""]
        parts += [
            "| way | B | ε | λ or ρ | equal updates | equal epochs | equal time | price | won back | diverged |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for arm, words in LARGE_BATCH_ARMS.items():
            if arm in found["arms"]:
                parts.append(_large_batch_row(_way(words, found), found["arms"][arm]))
        parts.append("")
    return "\n".join(parts).rstrip()


def large_batch_lines() -> str:
    """One line per task, a column per way: what each does with the same number of updates, and what a step costs."""
    ways = {"small": "small batch", "same": "same rate", "scaled": "rate scaled with B", "limited": "advised strength",
            "sam": "SAM, tuned"}  # fmt: skip
    lines = [
        f"| task | updates | epochs | {' | '.join(ways.values())} |",
        f"|{' --- |' * (3 + len(ways))}",
    ]
    for name, found in _large_batch().items():
        arms = dict(found["arms"])
        small, large = arms["small"], arms["same"]
        cells = [
            f"{name}, B {small['batch_size']} → {large['batch_size']}",
            f"{large['updates']:,}",
            f"{small['epochs']:.0f} → {large['epochs']:.0f}",
        ]
        for way in ways:
            entry = arms.get("searched") if way == "limited" and way not in arms else arms.get(way)
            price = "" if entry is None or way == "small" or entry["price"] is None else f" ({entry['price']:.1f})"
            searched = " searched" if way == "limited" and way not in arms else ""
            cells.append("" if entry is None else f"{_accuracy(entry)}{searched}{price}")
        lines.append(_row(cells))
    return "\n".join(lines)


def _accuracy(entry: dict[str, Any]) -> str:
    lost = f", {entry['diverged']} of {entry['seeds']} diverge" if entry["diverged"] else ""
    return f"{100 * entry['equal_updates'][0]:.1f}{lost}"


def _large_batch() -> dict[str, Any]:
    return {name: found for name, found in json.loads(LARGE_BATCH.read_text()).items() if name != "provenance"}


def _way(words: str, found: dict[str, Any]) -> str:
    """Where no strength is advised (AdamW), the rows of cheaper settings have the searched one."""
    return words if "advised" in found["arms"] else words.replace("advised strength", "searched strength")


def _large_batch_row(words: str, entry: dict[str, Any]) -> str:
    amount = entry["strength"] or entry["radius"] or 0
    cells = [words, str(entry["batch_size"]), f"{entry['learning_rate']:.4g}", f"{amount:.3g}"]
    times = [entry.get(key) for key in ("equal_updates", "equal_epochs", "equal_time")]
    cells += ["" if found is None else _percent(found) for found in times]
    cells.append("" if entry["price"] is None else f"{entry['price']:.2f}")
    verdict = entry.get("verdict")
    share = f"{100 * entry['won_back']:.0f} %, " if "won_back" in entry else ""
    kept = f"; keeps {100 * entry['kept']:.0f} % of the gain" if "kept" in entry else ""
    cells.append("" if verdict is None else f"{share}{verdict['claim']}: {verdict['outcome']}{kept}")
    return _row([*cells, f"{entry['diverged']} of {entry['seeds']}"])


def edge() -> str:
    """Agreement of the predicted edge with what was seen, from benchmarks/edge.py."""
    lines = [
        "| task | λ_max | scatter s | settings | prediction and sight agree | farther than 1.5 from the edge | agree |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, task in json.loads(EDGE.read_text())["tasks"].items():
        found = task["agreement"]
        cells = [name, f"{task['largest_eigenvalue']:.3g}", f"{task['curvature_spread']:.2f}", str(found["settings"])]
        cells += [f"{100 * found['all']:.0f} %", str(found["clear_settings"]), f"{100 * found['clear']:.0f} %"]
        lines.append(_row(cells))
    return "\n".join([*lines, "", *_edge_errors()])


def _edge_errors() -> list[str]:
    """In which direction the edge errs: unstable where a strength would be advised, stable where it would not."""
    from tacit.advice.matching import SHARE_OF_EDGE

    lines = [
        f"| task | β | λ at most {SHARE_OF_EDGE:g} λ\\*, as advised: seen unstable | λ above λ\\*: seen stable |",
        "| --- | --- | --- | --- |",
    ]
    for name, task in json.loads(EDGE.read_text())["tasks"].items():
        for beta in sorted({row["momentum"] for row in task["rows"]}):
            rows = [(row["strength"] / row["largest_stable_strength"], row["seen_unstable"]) for row in task["rows"]
                    if row["momentum"] == beta]  # fmt: skip
            slack = 1e-9  # the grid has the share itself, up to rounding
            below = [unstable for share, unstable in rows if share <= SHARE_OF_EDGE + slack]
            above = [not unstable for share, unstable in rows if share > 1 + slack]
            lines.append(_row([name, f"{beta:g}", f"{sum(below)} of {len(below)}", f"{sum(above)} of {len(above)}"]))
    return lines


def measuring() -> str:
    """What per-example norms cost, from benchmarks/measure.py: time and memory in plain gradient passes."""
    if not MEASURE.exists():
        return "Not recorded yet: `python benchmarks/measure.py --json benchmarks/results/measure.json`."
    stored = json.loads(MEASURE.read_text())
    lines = [
        "| model and data | promised | " + " | ".join(WAYS.values()) + " |",
        "| --- | --- |" + " --- |" * len(WAYS),
    ]
    for case in stored["cases"].values():
        plain = case["ways"]["plain"]["peak_bytes"]
        cells = [f"{case['title']}, {case['data'].split(':')[0]}, {case['examples']} examples", f"{case['limit']:g}"]
        for way in WAYS:
            entry = case["ways"].get(way)
            absent = "not installed" if case["left_out"].get(way, "").startswith("not installed") else "refuses"
            cells.append(absent if entry is None else f"{entry['ratio']:.2f} ({entry['peak_bytes'] / plain:.1f})")
        lines.append("| " + " | ".join(cells) + " |")
    threads = stored["threads"]
    threads = f"{threads} thread" if threads == 1 else f"{threads} threads"
    rounds = max(case["rounds"] for case in stored["cases"].values())
    taken = "one round" if rounds == 1 else f"medians of {rounds} rounds"
    lines += ["", f"Time, (peak memory) as multiples of a plain gradient pass in the same run: {threads}, {taken}."]
    return "\n".join(lines)


def wrn_updates() -> str:
    """Milliseconds of an update of WRN-10-1 by image size, from benchmarks/wrn_update.py, and as multiples of plain."""
    found = json.loads(WRN_UPDATE.read_text())["milliseconds"]
    lines = [
        "| one update | " + " | ".join(f"{size}x{size}" for size in found) + " |",
        "| --- |" + " ---: |" * len(found),
    ]
    for way in next(iter(found.values())):
        cells = [f"{taken[way]:.1f} ms ({taken[way] / taken['plain']:.2f})" for taken in found.values()]
        lines.append(_row([way, *cells]))
    return "\n".join(lines)


def wrn_processes() -> str:
    """Updates per second of two cores on 16x16 images, by the way they are used."""
    found = json.loads(WRN_UPDATE.read_text())["updates_per_second"]
    ways = list(next(iter(found.values())))
    lines = ["| updates per second | " + " | ".join(ways) + " |", "| --- |" + " ---: |" * len(ways)]
    lines += [_row([kind, *(f"{counts[way]:.0f}" for way in ways)]) for kind, counts in found.items()]
    return "\n".join(lines)


def benefit() -> str:
    """README's sentence with a number, and what it costs."""
    arms = _large_batch()["mnist1d, momentum"]["arms"]
    small, same, advised = (arms[name] for name in ("small", "same", "limited"))
    sampled = json.loads(CHEAP.read_text())["threads"]["1"]["WRN-10-1, B=256, b=16"][next(iter(CHEAP_STEPS))]["median"]
    return (
        f"On MNIST-1D with momentum, batches of {same['batch_size']} instead of {small['batch_size']} for as many "
        f"updates lower test accuracy from {_accuracy(small)}\nto {_accuracy(same)} %; the advised penalty brings it "
        f"to {_accuracy(advised)} %, at {advised['price']:.1f} plain steps a step. Of one drawn micro-batch\n"
        f"(`micro_batch_size=16, sampled=1`) it costs {sampled:.2f} on a WRN-10-1 (CPU; accuracy not judged yet)."
    )


def rivals() -> str:
    """Where README sends a reader elsewhere, with the stored results that say so."""
    found = [task["arms"] for task in _large_batch().values() if {"sam", "limited"} <= set(task["arms"])]
    ahead = sum(arms["sam"]["equal_updates"][0] >= arms["limited"]["equal_updates"][0] for arms in found)
    (price,) = {arms["sam"]["price"] for arms in found}
    scaled, advised = (_large_batch()["mnist1d, sgd"]["arms"][name] for name in ("scaled", "limited"))
    costs = [arms["limited"]["price"] for arms in found]
    return "\n".join(
        [
            f"- SAM will do: tuned, it ends at least as high on {ahead} of {len(found)} tasks, at {price:.0f} plain "
            f"steps a step; the penalty costs {min(costs):.1f} to {max(costs):.1f} there;",
            "- your rate is not tuned: on MNIST-1D with SGD, scaling it with the batch reaches "
            f"{_accuracy(scaled)} %, the penalty {_accuracy(advised)} %;",
            "- your weight decay is not tuned: it is free. No result stored here compares it with the penalty.",
        ]
    )


def exact() -> str:
    models = json.loads(ZOO.read_text())["models"]
    variants = [variant for model in models for variant in model["variants"].values()]
    ends = [end["status"] for variant in variants for method, end in variant.items() if method in ZOO_METHODS]
    wrong = sum(end == "wrong" for end in ends)
    return (
        f"Exact on attention, LoRA, checkpointing and micro-batches: {wrong} of {len(ends):,} cases on "
        f"[{len(models)} public models](docs/models.md)\nare wrong."
    )


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"benefit": benefit, "rivals": rivals, "exact": exact},
    "docs/results.md": {
        "claims": verdict_lines,
        "verdicts": verdicts,
        "interpolating": lambda: verdicts("beside"),
        "convolution": lambda: verdicts_without_claims(CONVOLUTION),
        "images": lambda: verdicts_without_claims(IMAGES),
        "image-costs": costs_on_images,
    },
    "docs/choosing-a-method.md": {"methods": methods, "costs": costs, "cheap": cheap},
    "docs/diagnostics.md": {
        "measuring": measuring,
        "advice-mnist1d": lambda: advice_in_full("mnist1d"),
        "advice-fashion": lambda: advice_in_full("fashion"),
    },
    "docs/large-batch.md": {"large-batch-lines": large_batch_lines, "large-batch": large_batch, "edge": edge},
    "studies/cifar10/README.md": {"wrn-updates": wrn_updates, "wrn-processes": wrn_processes},
}


def filled(text: str, tables: dict[str, Callable[[], str]]) -> str:
    """A page with every table put between its markers; a marker that is not there is an error."""
    for marker, make in tables.items():
        table = make()
        pattern = rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)"
        text, count = re.subn(
            pattern, lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL
        )  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"found {count} places marked {marker}; expected one")
    return text


if __name__ == "__main__":
    for name, tables in PAGES.items():
        page = ROOT / name
        page.write_text(filled(page.read_text(), tables))
