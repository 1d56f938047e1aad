"""Tables of the README and of docs, made from stored results: run this file to write them; a test compares them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "benchmarks" / "results" / "bench.json"
LARGE_BATCH = ROOT / "benchmarks" / "results" / "large_batch.json"
EDGE = ROOT / "benchmarks" / "results" / "edge.json"
CHEAP = ROOT / "benchmarks" / "results" / "cheap_regularizers.json"
RELATIVE = ROOT / "benchmarks" / "results" / "relative_models.json"
JUDGED = ROOT / "benchmarks" / "results" / "judged" / "table.json"
MEASURE = ROOT / "benchmarks" / "results" / "measure.json"
ZOO = ROOT / "benchmarks" / "results" / "zoo.json"
ZOO_METHODS = ("auto", "gram", "double_backward", "FactoredSGD", "finite_difference")  # the stored run tried more
WRN_UPDATE = ROOT / "benchmarks" / "results" / "wrn_update.json"
RESULTS = ROOT / "docs" / "results"
OTHERS = {  # folders of docs/results beside MNIST-1D's MLP
    "mnist1d-conv": "MNIST-1D, `conv1d`",
    "cifar10-small": "CIFAR-10, 1,024 images",
    "cifar10": "CIFAR-10, 4,096 images",
    "fashion-mnist-small": "Fashion-MNIST, 784-128³-10",
    "fashion-mnist": "Fashion-MNIST, 784-4096³-10",
}
# Of the benchmarked models, those whose row is near that of the one before.
NOT_SHOWN = ("mlp-4096-b16-momentum", "mlp-4096-b64", "mlp-1024-b16", "wrn-10-1-b32-channels-last")
COLUMNS = ("naive double backward", "double_backward", "gram", "FactoredSGD", "finite_difference")
# Products per linear layer, and whether the gradient is exact.
METHODS = {
    "FactoredSGD": ("6, and the update is one more of rank 2B in place", "yes"),
    "gram": ("6 where rows are few, 9 elsewhere", "yes"),
    "double_backward": ("9", "yes"),
    "finite_difference": ("6 (9 with `central=True`)", "no"),
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
        if model["name"] in NOT_SHOWN:
            continue
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


def cheap_lines() -> str:
    """What is recommended where a batch can be divided, with its price on two models."""
    priced = json.loads(CHEAP.read_text())["threads"]["1"]
    models = {"WRN-10-1, B=256, b=16": "WRN-10-1", "GPT-2 2x256, B=32, b=2": "a small GPT-2"}
    prices = {
        step: ", ".join(f"{priced[model][step]['median']:.2f} ({name})" for model, name in models.items())
        for step in CHEAP_STEPS
    }
    sample, rows, whole = prices.values()
    return "\n".join(
        [
            "| what you add | plain steps a step (CPU, one thread) |",
            "| --- | --- |",
            f"| the penalty of one drawn micro-batch: `GradientPenalty(…, micro_batch_size=b, sampled=1)` | {sample} |",
            f"| SAM with its direction from b drawn rows: `SharpnessAware(…, sampled=b)` | {rows} |",
            f"| SAM: `SharpnessAware(…)` | {whole} |",
        ]
    )


JUDGED_TASKS = {
    "momentum-clean": "MNIST-1D, momentum",
    "momentum-noisy": "MNIST-1D, momentum, 30 % random labels",
    "adamw-clean": "MNIST-1D, AdamW",
    "adamw-noisy": "MNIST-1D, AdamW, 30 % random labels",
    "transformer": "Character transformer, AdamW (loss: lower is better)",
    "fashion-noisy": "Fashion-MNIST, momentum, 30 % random labels",
}
PENALTIES = ("whole penalty", "sampled penalty", "relative strength")


def judged() -> str:
    """A line and a table for each judged task: its verdicts on the penalties first."""
    tasks = json.loads(JUDGED.read_text())["tasks"]
    parts = []
    for name, title in JUDGED_TASKS.items():
        if name in tasks:
            parts += [*_judged_task(title, tasks[name]), ""]
    waiting = [title for name, title in JUDGED_TASKS.items() if name not in tasks]
    parts.append("\n".join(["Not judged yet:", "", *[f"- {title}" for title in waiting]]) if waiting else "")
    return "\n".join(parts)


def _judged_task(title: str, task: dict[str, Any]) -> list[str]:
    arms, digits = task["arms"], 3 if task["lower_is_better"] else 1
    said = "; ".join(f"{arm}: {arms[arm]['verdict'].replace('tie', 'ties')}" for arm in PENALTIES)
    columns = [
        "arm",
        "tuned",
        "minus plain, tuned",
        "",
        "untuned",
        "best of 1, 4, 16 or all tries",
        "plain steps a step",
    ]
    lines = [f"**{title}.** Against plain with its best rate and decay:", f"{said}.", "", _row(columns)]
    lines.append(_row(["---", *["---:"] * 2, "---", "---:", "---", "---:"]))
    for name, arm in arms.items():
        difference = "" if name == "plain" else "{:+.{d}f} ± {:.{d}f}".format(*arm["minus_plain"], d=digits)
        tries = " ".join(f"{value:.{digits}f}" for value in arm["best_of"].values())
        price = "" if arm["price"] is None else f"{arm['price']:.2f}"
        means = ["{:.{d}f} ± {:.{d}f}".format(*arm[f"{stage}_mean"], d=digits) for stage in ("tuned", "untuned")]
        cells = [name, means[0], difference.replace("-", "−"), arm.get("verdict", ""), means[1], tries, price]
        lines.append(_row(cells))
    return lines


def relative() -> str:
    """What an untuned share does on public models, from benchmarks/zoo/relative.py."""
    found = json.loads(RELATIVE.read_text())
    runs = [run for model in found["models"].values() for way, run in model.items() if way != "plain"]
    diverged = sum(run["diverged"] for run in runs)
    return (
        f"- Untuned, r = {found['ratio']}, on {len(found['models'])} public models, from the start and switched on "
        f"late: {diverged} of {len(runs)} penalised runs diverge\n  in {found['steps']} steps "
        "(`benchmarks/zoo/relative.py`)."
    )


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


def verdict_lines() -> str:
    """One line per claim: its number, and the verdict in the paper's regime and, where it was tried, without shifts."""
    lines = ["| figure | what it shows | number | with augmentation | without |", "| --- | --- | --- | --- | --- |"]
    beside = {figure["figure"]: figure["verdict"] for figure in _figures("mnist1d", "beside")}
    for figure in _figures("mnist1d"):
        id, verdict = figure["figure"], figure["verdict"]
        without = _outcome(beside[id]) if id in beside else ""
        unit = re.sub(r"= distance at equal (\S+) over that at equal", r"distance at \1 over that at", verdict["unit"])
        lines.append(_row([id, figure["title"], unit.removeprefix("= "), _outcome(verdict), without]))
    return "\n".join(lines)


def verdicts_elsewhere() -> str:
    """A line per figure, a column per other model and data; below them what the columns rest on."""
    columns = [{figure["figure"]: figure["verdict"] for figure in _figures(folder)} for folder in OTHERS]
    stored = [json.loads((RESULTS / folder / "results.json").read_text()) for folder in OTHERS]
    lines = [_row(["figure", *OTHERS.values()]), _row(["---"] * (len(OTHERS) + 1))]
    for id in sorted(set().union(*columns)):
        lines.append(_row([id, *(_outcome(column[id]) if id in column else "" for column in columns)]))
    lines.append(_row(["runs", *(f"{each['runs']:,}" for each in stored)]))
    minutes = [float(each["environment"]["training"].removesuffix(" core-minutes")) for each in stored]
    lines.append(_row(["core-hours", *(f"{each / 60:.1f}" for each in minutes)]))
    return "\n".join(lines)


def _outcome(verdict: dict[str, Any]) -> str:
    return f"**{verdict['outcome']}** {_number(verdict)}".strip()


def _figures(folder: str, regime: str = "figures") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / folder / "results.json").read_text())[regime]
    return found


def _number(verdict: dict[str, Any]) -> str:
    if verdict["number"] is None:
        return ""
    value, low, high = verdict["number"]
    if value is None:
        return "no number"
    if low is None and high is None:
        return f"{value:.2f} (no bounded interval)"
    return f"{value:.2f} [{'−∞' if low is None else f'{low:.2f}'}, {'∞' if high is None else f'{high:.2f}'}]"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def large_batch_lines() -> str:
    """One line per task, a column per way: what each does with the same number of updates, and what a step costs."""
    ways = {"small": "small batch", "same": "same rate", "scaled": "rate scaled with B", "limited": "advised strength",
            "sam": "SAM, tuned"}  # fmt: skip
    lines = [
        f"| task | {' | '.join(ways.values())} |",
        f"|{' --- |' * (1 + len(ways))}",
    ]
    for name, found in _large_batch().items():
        arms = dict(found["arms"])
        cells = [name]
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


def edge() -> str:
    """Where the predicted edge errs, from benchmarks/edge.py: unstable where λ is advised, stable where it is not."""
    from tacit.advice.matching import SHARE_OF_EDGE

    lines = [
        "| task | β | predicted and seen agree | farther than 1.5 from the edge | "
        f"unstable at λ ≤ {SHARE_OF_EDGE:g} λ\\*, as advised | stable at λ > λ\\* |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, task in json.loads(EDGE.read_text())["tasks"].items():
        found = task["agreement"]
        agree = [f"{100 * found['all']:.0f} % of {found['settings']}",
                 f"{100 * found['clear']:.0f} % of {found['clear_settings']}"]  # fmt: skip
        for beta in sorted({row["momentum"] for row in task["rows"]}):
            rows = [(row["strength"] / row["largest_stable_strength"], row["seen_unstable"]) for row in task["rows"]
                    if row["momentum"] == beta]  # fmt: skip
            slack = 1e-9  # the grid has the share itself, up to rounding
            below = [unstable for share, unstable in rows if share <= SHARE_OF_EDGE + slack]
            above = [not unstable for share, unstable in rows if share > 1 + slack]
            cells = [f"{sum(below)} of {len(below)}", f"{sum(above)} of {len(above)}"]
            lines.append(_row([name if agree[0] else "", f"{beta:g}", *agree, *cells]))
            agree = ["", ""]  # over both β
    return "\n".join(lines)


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
    """README's sentence with numbers: what the penalty gains untuned and tuned beside SAM, and what both cost."""
    tasks = json.loads(JUDGED.read_text())["tasks"]
    arms = tasks["momentum-noisy"]["arms"]
    priced = json.loads(CHEAP.read_text())["threads"]["1"]["WRN-10-1, B=256, b=16"]
    fresh, tuned = (
        {arm: f"{arms[arm][f'{stage}_mean'][0]:.1f}" for arm in arms} for stage in ("untuned", "tuned")
    )  # fmt: skip
    penalty, rows, whole = (priced[step]["median"] for step in CHEAP_STEPS)
    here = ", ".join(f"{arms[arm]['price']:.2f}" for arm in ("sampled penalty", "SAM", "SAM, 16 rows"))
    return (
        f"MNIST-1D with 30 % random labels, momentum at its usual rate, no weight decay: plain {fresh['plain']} % test "
        f"accuracy,\nwith the penalty of one drawn micro-batch {fresh['sampled penalty']}, with SAM {fresh['SAM']}, "
        f"SAM of 16 drawn rows {fresh['SAM, 16 rows']}. Rate and decay tuned\nfor each: {tuned['plain']}, "
        f"{tuned['sampled penalty']}, {tuned['SAM']}, {tuned['SAM, 16 rows']} "
        f"([{len(tasks)} of {len(JUDGED_TASKS)} tasks judged]"
        f"(docs/results.md#the-judged-table)). They cost\n{penalty:.2f}, {whole:.2f} and {rows:.2f} plain steps a step "
        f"on a WRN-10-1, {here} on this small MLP (CPU; GPU not measured)."
    )


def rivals() -> str:
    """Where README sends a reader elsewhere, with the stored results that say so."""
    found = [task["arms"] for task in _large_batch().values() if {"sam", "limited"} <= set(task["arms"])]
    ahead = sum(arms["sam"]["equal_updates"][0] >= arms["limited"]["equal_updates"][0] for arms in found)
    (price,) = {arms["sam"]["price"] for arms in found}
    scaled, advised = (_large_batch()["mnist1d, sgd"]["arms"][name] for name in ("scaled", "limited"))
    arms = json.loads(JUDGED.read_text())["tasks"]["momentum-noisy"]["arms"]
    rows, plain = arms["SAM, 16 rows"], arms["plain"]
    return "\n".join(
        [
            f"- SAM will do: from 16 drawn rows it ends at {rows['tuned_mean'][0]:.1f} % above and costs least; whole, "
            f"at {price:.0f} plain steps, it ends\n  at least as high as the whole penalty on {ahead} of {len(found)} "
            "large-batch tasks;",
            "- your rate is not tuned: on MNIST-1D with SGD, scaling it with the batch reaches "
            f"{_accuracy(scaled)} %, the penalty {_accuracy(advised)} %;",
            "- your weight decay is not tuned: with the rate it takes plain training from "
            f"{plain['untuned_mean'][0]:.1f} to {plain['tuned_mean'][0]:.1f} % above.",
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
        "judged": judged,
        "claims": verdict_lines,
        "elsewhere": verdicts_elsewhere,
        "large-batch-lines": large_batch_lines,
        "edge": edge,
    },
    "docs/choosing-a-method.md": {"methods": methods, "costs": costs, "cheap": cheap},
    "docs/large-batch.md": {"cheap-lines": cheap_lines, "relative": relative},
    "docs/diagnostics.md": {"measuring": measuring},
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
