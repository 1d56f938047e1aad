"""docs/models.md from benchmarks/results/zoo.json: run this file to write it; a test compares them."""

from __future__ import annotations

import json
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
    """The whole page: the result, what was tried, the models by library, and every case that did not work."""
    return (
        "\n\n".join([introduction(stored), table(stored["models"]), exceptions(stored["models"]), origin(stored)])
        + "\n"
    )


def introduction(stored: dict[str, Any]) -> str:
    models = stored["models"]
    ends = Counter(end["status"] for model in models for _, _, end in cases(model))
    without = [model["name"] for model in models if not has_exact_method(model)]
    bad = "; ".join(f"{ends[status]:,}" for status in ("refused", "wrong", "traceback", "buffers"))
    versions = ", ".join(f"{name} {version.split('+')[0]}" for name, version in stored["versions"].items())
    apart = max(model["reference"]["agreement"] for model in models if not model["float32_inside"])
    apart_float32 = max(model["reference"]["agreement"] for model in models if model["float32_inside"])
    return f"""# Models that were tried

**{ends["wrong"]} of {ends.total():,} cases on {len(models)} public models are wrong.** Models without an exact
method: {", ".join(without) or "none"}.

| outcome | cases |
| --- | --- |
| exact | {ends["exact"]:,} |
| approximate, within three times the error that the step states, or 5 % | {ends["approximate"]:,} |
| an approximate method distrusted itself, an exact one took the step | {ends["exact instead"]:,} |
| refused; wrong; a traceback; other buffers than a plain step leaves | {bad} |

`make zoo` runs each model (random weights, small, nothing downloaded; {versions}) as the library makes it; with a third
of its parameters excluded from the norm; with two thirds frozen; with inputs that require a gradient.

- *Reference*: double backward in float64 under the MATH attention backend, λ = {stored["strength"]}. Central
  differences of plain gradients agree with it to {apart:.1g} of the penalty's part, where a model computes in float32
  inside (ᶠ) to {apart_float32:.1g}.
- *Exact*: to 1e-6 of the penalty's part and 1e-9 of the plain gradient; ᶠ: 1e-3 and 1e-6. ᶠ got these wider bounds
  after two such models, IA3 and prompt tuning, had counted as wrong by 0.3 to 1.5 % of a very small penalty.
- *Left out* after results had been seen: Wav2Vec2, about ten larger vision models, and DoRA, whose gradient is not that
  of any loss because it detaches a norm of its parameters."""


def table(models: list[dict[str, Any]]) -> str:
    """One row per library: its models, and for which of them `auto` takes `gram`."""
    lines = [
        "| library | models (bold: `auto` takes `gram`, else `double_backward`) | `finite_difference`: error |",
        "| --- | --- | --- |",
    ]
    for library in dict.fromkeys(model["library"] for model in models):
        own = [model for model in models if model["library"] == library]
        names = [f"**{named(model)}**" if model["auto"] == "gram" else named(model) for model in own]
        errors = [end["error"] for model in own for _, _, end in cases(model) if end["status"] == "approximate"]
        lines.append(f"| {library} | {'; '.join(names)} | {percent(max(errors))} |")
    return "\n".join(lines)


def named(model: dict[str, Any]) -> str:
    return model["name"] + ("ᶠ" if model["float32_inside"] else "")


def exceptions(models: list[dict[str, Any]]) -> str:
    """Every case that is wrong or refused, by name; the page says so when there is none."""
    lines = []
    for model in models:
        for variant, method, end in cases(model):
            if end["status"] in FAILURES:
                lines.append(f"- {model['library']} {named(model)}, {variant}, `{method}`: **{end['status'].upper()}**")
            elif end["status"] == "refused":
                lines.append(f"- {model['library']} {named(model)}, {variant}, `{method}`: refused: {end['sentence']}")
    return (
        "\n".join(["Cases that failed or were refused:", "", *lines])
        if lines
        else "No case failed, and none was refused."
    )


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


def cases(model: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """The stored run also tried two methods that are gone."""
    found = [(variant, method, end) for variant, ends in model["variants"].items() for method, end in ends.items()]
    return [each for each in found if each[1] in METHODS]


def has_exact_method(model: dict[str, Any]) -> bool:
    """Whether one and the same exact method works in every variant that it can be asked for."""
    return any(
        all(end["status"] == "exact" for _, name, end in cases(model) if name == method) for method in EXACT_METHODS
    )


def percent(error: float) -> str:
    return "< 0.001 %" if error < 1e-5 else f"{100 * error:.2g} %"


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(ZOO.read_text())))
