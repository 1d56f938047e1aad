"""`tacit.Relative(0.4)` on ten public models, nothing tuned: does a run diverge, and how far does λ move?

    .venv-zoo/bin/python benchmarks/zoo/relative.py --json benchmarks/results/relative_models.json

Each model trains STEPS steps of AdamW at its default rate 0.001 in float32 on one minibatch (random inputs and targets,
which it learns by heart): plain, with the penalty from the first step, and with the penalty from the half on. The rule,
fixed before the run: a run diverges when its loss is not finite, or ends above its first loss.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing may be fetched

import text_models
import torch_models
import vision_models

import tacit
from tacit._util.provenance import provenance

STEPS, RATIO, SAMPLE = 150, 0.4, 15  # λ and loss are stored every SAMPLE steps
ENTRIES = {entry.name: entry for module in (torch_models, vision_models, text_models) for entry in module.ENTRIES}
MODELS = (
    "Conv2d + BatchNorm2d", "TransformerEncoder", "LSTM, 2 layers, dropout", "resnet18", "mobilenet_v2",
    "VisionTransformer", "convnext_atto", "GPT-2", "Bert", "Llama + LoRA",
)  # fmt: skip


def late(step: int) -> float:
    return RATIO if step >= STEPS // 2 else 0.0


WAYS: dict[str, float | Callable[[int], float] | None] = {"plain": None, "penalty": RATIO, "late penalty": late}


def run(name: str, ratio: float | Callable[[int], float] | None) -> dict[str, Any]:
    case = ENTRIES[name].make()
    model, inputs = case.model.float(), [each.float() if each.is_floating_point() else each for each in case.inputs]
    torch.manual_seed(7)  # dropout
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
    strength = 0.0 if ratio is None else tacit.Relative(ratio)
    penalty = tacit.GradientPenalty(model, strength)
    losses, strengths, shares = [], [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        try:
            loss = float(penalty.backward(lambda: case.call(*inputs)))
        except tacit.TacitError:  # a penalty refuses a loss that is not finite
            loss = math.nan
        losses.append(loss)
        if not math.isfinite(loss):
            break
        optimizer.step()
        record = penalty.last
        if record is None or record.strength == 0:
            continue
        strengths.append(record.strength)
        if record.penalty_gradient_norm is not None:
            shares.append(float(record.penalty_gradient_norm) / math.sqrt(float(record.gradient_squared_norm)))
    found: dict[str, Any] = {
        "losses": [round(each, 6) for each in [*losses[::SAMPLE], losses[-1]]],
        "diverged": not math.isfinite(losses[-1]) or losses[-1] > losses[0],
    }
    if strengths:
        found["strengths"] = [float(f"{each:.4g}") for each in [*strengths[::SAMPLE], strengths[-1]]]
    if shares:
        settled = shares[len(shares) // 2 :]
        found["share_of_the_gradient_later_half"] = [round(min(settled), 4), round(max(settled), 4)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("tacit").setLevel(logging.ERROR)
    facts = {"steps": STEPS, "ratio": RATIO, "stored_every": SAMPLE, **provenance()}
    models = {}
    for name in MODELS:
        models[name] = {way: run(name, ratio) for way, ratio in WAYS.items()}
        ends = "  ".join(
            f"{way} {found['losses'][0]:.3f} -> {found['losses'][-1]:.3f}" for way, found in models[name].items()
        )
        strengths = models[name]["penalty"].get("strengths", [math.nan])
        print(f"{name:26} {ends}  λ {min(strengths):.2g} to {max(strengths):.2g}", flush=True)
    options.json.write_text(json.dumps({**facts, "models": models}, indent=1, ensure_ascii=False) + "\n")
    lost = [f"{name}, {way}" for name, ways in models.items() for way, found in ways.items() if found["diverged"]]
    print(f"{len(lost)} of {len(MODELS) * len(WAYS)} runs diverged", *lost, sep="\n  ")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
