"""Which flow follows gradient descent past εh = 1? Distances after 50 steps, at four rates and three displacements.

    python benchmarks/principal_flow.py                       # writes results/principal_flow.json, some minutes
    python benchmarks/principal_flow.py --figure docs/principal-flow.png

A tanh network of 13 parameters, trained for 200 steps, then displaced along its sharpest direction: after training
alone gradient descent no longer moves along it, and every flow is good. Distances are those in the stable directions
|εh| < 2, which here are all.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from tacit._util.files import write_atomically
from tacit._util.provenance import provenance
from tacit.theory import FlowComparison, Landscape, compare_flows, gradient_descent, problems

RESULT = Path(__file__).parent / "results" / "principal_flow.json"
RATES, DISPLACEMENTS, STEPS = (1.2, 1.5, 1.8, 1.9), (0.02, 0.05, 0.1), 50
FLOWS = ("gradient flow", "C̃_GD", "principal flow", "principal flow, third derivatives")
# The colours of theory.figures: the flow of C, that of a modified loss, what SGD follows.
COLOURS = {
    "gradient flow": "#7a7a7a",
    "C̃_GD": "#0b6e99",
    "C̃_GD with f₂": "#6aa9c4",
    "principal flow": "#8a6d3b",
    "principal flow, third derivatives": "#c4471c",
}
STYLES = {"C̃_GD with f₂": "--", "principal flow": "--"}


def start(displacement: float) -> tuple[Landscape, torch.Tensor, float]:
    scape = Landscape(problems.tanh_mlp(batches=1, batch_size=16))
    w = gradient_descent(scape, learning_rate=0.05, steps=200)[-1]
    w = w + displacement * torch.linalg.eigh(torch.func.hessian(scape.loss)(w)).eigenvectors[:, -1]
    return scape, w, torch.linalg.eigvalsh(torch.func.hessian(scape.loss)(w))[-1].item()


def draw(comparisons: Sequence[FlowComparison], path: Path) -> Path:
    """Distance from gradient descent over time, one panel per learning rate, one colour per flow."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(comparisons), figsize=(4.6 * len(comparisons), 3.9), sharey=True, squeeze=False)
    for axis, seen in zip(axes[0], comparisons, strict=True):
        for name, far in seen.distances.items():
            axis.semilogy(seen.steps[1:], far[1:], STYLES.get(name, "-"), color=COLOURS.get(name), label=name)
        first, last = seen.sharpness[0], seen.sharpness[-1]
        axis.set_title(f"εh = {first:.2f} at the start, {last:.2f} at the end", fontsize=10)
        axis.set_xlabel("steps of gradient descent")
    axes[0][0].set_ylabel("distance from gradient descent")
    axes[0][-1].legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=140)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, help="only draw εh = 0.5, 1.5 and 1.9 over time into this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.figure is not None:
        scape, w, sharpness = start(0.05)
        seen = [compare_flows(scape, learning_rate=x / sharpness, steps=STEPS, start=w) for x in (0.5, 1.5, 1.9)]
        print(f"wrote {draw(seen, options.figure)}")
        return
    rows = []
    for displacement in DISPLACEMENTS:
        scape, w, sharpness = start(displacement)
        for x in RATES:
            found = compare_flows(scape, learning_rate=x / sharpness, steps=STEPS, start=w, flows=FLOWS)
            ratio, without = found.ratio("C̃_GD"), found.ratio("principal flow")
            ratio, without = found.ratio("C̃_GD"), found.ratio("principal flow")
            rows.append({"scaled_curvature": x, "displacement": displacement, "ratio": ratio, **asdict(found)})
            print(f"εh = {x}, displaced by {displacement}: beside the principal flow with third derivatives C̃_GD is")
            print(f"    {ratio:.1f} times as far, and the principal flow without them {without:.1f} times", flush=True)
    write_atomically(RESULT, json.dumps({"provenance": provenance(), "rows": rows}, indent=1) + "\n")
    print(f"wrote {RESULT.name}")


if __name__ == "__main__":
    main()
