"""docs/models.md from benchmarks/results/zoo.json: run this file to write it; a test compares them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ZOO = ROOT / "benchmarks" / "results" / "zoo.json"
PAGE = ROOT / "docs" / "models.md"
METHODS = ("auto", "gram", "double_backward", "FactoredSGD", "finite_difference")
EXACT_METHODS = METHODS[:4]
FAILURES = ("wrong", "traceback", "buffers")


def page(stored: dict[str, Any]) -> str:
    """The whole page: what was tried, a summary, one table per library, and the sentences of the refusals."""
    sentences: dict[str, int] = {}
    tables = [
        f"## {library}\n\n" + table([model for model in stored["models"] if model["library"] == library], sentences)
        for library in dict.fromkeys(model["library"] for model in stored["models"])
    ]
    notes = "\n".join(f"{number}. {sentence}" for sentence, number in sentences.items())
    return "\n\n".join([introduction(stored), *tables, "## The refusals\n\n" + notes]) + "\n"


def introduction(stored: dict[str, Any]) -> str:
    models = stored["models"]
    ends = Counter(end["status"] for model in models for _, _, end in cases(model))
    without = [model["name"] for model in models if not has_exact_method(model)]
    versions = ", ".join(f"{name} {version.split('+')[0]}" for name, version in stored["versions"].items())
    apart = max(model["reference"]["agreement"] for model in models if not model["float32_inside"])
    apart_float32 = max(model["reference"]["agreement"] for model in models if model["float32_inside"])
    return f"""# Models that were tried

`make zoo` runs {len(models)} public models (random weights, small configurations, nothing downloaded; {versions}), each

- as the library makes it,
- with the first third of its parameters excluded from the norm,
- with the first two thirds of its parameters frozen,
- with inputs, or embedded tokens, that require a gradient.

Every method is compared in float64 (λ = {stored["strength"]}) with a double backward written out under the MATH
attention backend. That reference is itself compared with central differences of plain gradients, once per model: they
agree to {apart:.1g} of the penalty's part, to {apart_float32:.1g} where a model computes in float32 inside (marked ᶠ).

{ends.total():,} cases:

| | cases |
| --- | --- |
| exact | {ends["exact"]:,} |
| approximate, within three times the error that the step states, or 5 % | {ends["approximate"]:,} |
| approximate methods that did not trust themselves: an exact one took the step | {ends["exact instead"]:,} |
| refused with a sentence | {ends["refused"]:,} |
| wrong | {ends["wrong"]} |
| a raw traceback | {ends["traceback"]} |
| other buffers than a plain step leaves | {ends["buffers"]} |

Models without an exact method: {", ".join(without) or "none"}.

A cell holds what happened in all variants: **exact** (to 1e-6 of the penalty's part and 1e-9 of the plain gradient; ᶠ:
1e-3 and 1e-6), the largest error of an approximate step in percent of the penalty's part, *exact instead*, or the
number of a refusal below. `auto` names the method that it takes.

A model that detaches what depends on its parameters (DoRA's weight norm) is not here: its gradient is not the gradient
of any loss, so methods that differentiate ‖g‖² and methods that differentiate g along g rightly differ.

What was settled after results had been seen: that model, Wav2Vec2 and about ten larger vision models were left out, and
models with float32 inside got the wider bounds (ᶠ) after two of them, IA3 and prompt tuning, had counted as wrong by
0.3 to 1.5 % of a very small penalty.

{origin(stored)}"""


def origin(stored: dict[str, Any]) -> str:
    """Which run made the rows, and on which commit."""
    if not stored.get("one_run"):
        return (
            "The rows come from several runs, or their commits are not known; `benchmarks/zoo/run.py --again` makes "
            "all of them anew."
        )
    (run,) = stored["runs"]
    changed = ", with uncommitted changes" if run["dirty"] else ""
    return (
        f"All rows come from one run, {run['started']} to {run['ended']}, on commit "
        f"`{run['commit']}`{changed}. `make zoo` makes them anew."
    )


def table(models: list[dict[str, Any]], sentences: dict[str, int]) -> str:
    lines = [
        "| model | parameters | " + " | ".join(f"`{method}`" for method in METHODS) + " |",
        "| --- | --- |" + " --- |" * len(METHODS),
    ]
    for model in models:
        cells = [cell(model, method, sentences) for method in METHODS]
        mark = "ᶠ" if model["float32_inside"] else ""
        lines.append(f"| {model['name']}{mark} | {model['parameters']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(model: dict[str, Any], method: str, sentences: dict[str, int]) -> str:
    ends = [end for _, name, end in cases(model) if name == method]
    kinds = Counter(end["status"] for end in ends)
    parts = []
    if kinds["exact"]:
        parts.append("**exact**" + (f", `{model['auto']}`" if method == "auto" else ""))
    if kinds["approximate"]:
        parts.append(percent(max(end["error"] for end in ends if end["status"] == "approximate")))
    if kinds["exact instead"]:
        parts.append("*exact instead*")
    for status in FAILURES:
        if kinds[status]:
            parts.append(f"**{status.upper()}**")
    for end in ends:
        if end["status"] == "refused":
            number = sentences.setdefault(general(end["sentence"]), len(sentences) + 1)
            if f"refused ({number})" not in parts:
                parts.append(f"refused ({number})")
    return ", ".join(parts)


def cases(model: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """The stored run also tried two methods that are gone."""
    found = [(variant, method, end) for variant, ends in model["variants"].items() for method, end in ends.items()]
    return [each for each in found if each[1] in METHODS]


def has_exact_method(model: dict[str, Any]) -> bool:
    """Whether one and the same exact method works in every variant that it can be asked for."""
    return any(
        all(end["status"] == "exact" for _, name, end in cases(model) if name == method) for method in EXACT_METHODS
    )


def general(sentence: str) -> str:
    """A sentence without what differs between models: counts and shapes."""
    return re.sub(r"\d+ trainable tensor\(s\)", "trainable tensors", re.sub(r", of shape \([^)]*\)", "", sentence))


def percent(error: float) -> str:
    return "< 0.001 %" if error < 1e-5 else f"{100 * error:.2g} %"


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(ZOO.read_text())))
