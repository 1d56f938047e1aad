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
from dataclasses import asdict
from pathlib import Path

import torch

from tacit._files import write_atomically
from tacit._provenance import provenance
from tacit.theory import Landscape, compare_flows, figures, gradient_descent, problems

RESULT = Path(__file__).parent / "results" / "principal_flow.json"
RATES, DISPLACEMENTS, STEPS = (1.2, 1.5, 1.8, 1.9), (0.02, 0.05, 0.1), 50
FLOWS = ("gradient flow", "C̃_GD", "principal flow", "principal flow, third derivatives")


def start(displacement: float) -> tuple[Landscape, torch.Tensor, float]:
    scape = Landscape(problems.tanh_mlp(batches=1, batch_size=16))
    w = gradient_descent(scape, learning_rate=0.05, steps=200)[-1]
    w = w + displacement * torch.linalg.eigh(torch.func.hessian(scape.loss)(w)).eigenvectors[:, -1]
    return scape, w, torch.linalg.eigvalsh(torch.func.hessian(scape.loss)(w))[-1].item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, help="only draw εh = 0.5, 1.5 and 1.9 over time into this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.figure is not None:
        scape, w, sharpness = start(0.05)
        seen = [compare_flows(scape, learning_rate=x / sharpness, steps=STEPS, start=w) for x in (0.5, 1.5, 1.9)]
        print(f"wrote {figures.draw_flow_comparison(seen, options.figure)}")
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
