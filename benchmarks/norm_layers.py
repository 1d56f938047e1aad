"""Does the noise scale of the norm layers follow that of all parameters? A small transformer, measured on the way.

    python benchmarks/norm_layers.py                           # writes results/norm_layers.json, about a minute

MNIST-1D signals as ten tokens of four samples; two pre-norm blocks of width 32, AdamW, batches of 32. At 12 points of
training, at the parameters of that moment: the exact noise scale of all parameters (`tacit.measure`, all examples), and
the `Recorder`'s with layers="norms" from a window of 16 minibatches, with its interval. The ratio and the correlation
of their logarithms say how good a stand-in it is; the exact noise scale of the norm parameters alone says what part of
a difference is sampling.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import tacit
from tacit._util.files import write_atomically
from tacit._util.provenance import provenance
from tacit.diagnostics.norm_layers import NormLayerGradients, step_moments
from tacit.studies.data.load import load

RESULT = Path(__file__).parent / "results" / "norm_layers.json"
SEEDS = (0, 1)
TRAIN_SIZE, BATCH_SIZE, WINDOW, STEPS, RATE = 2048, 32, 16, 1600, 1e-3
POINTS = (25, 50, 100, 200, 300, 400, 600, 800, 1000, 1200, 1400, 1600)
TOKENS, SAMPLES, WIDTH = 10, 4, 32


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(SAMPLES, WIDTH)
        self.positions = nn.Parameter(0.1 * torch.randn(TOKENS, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, signals: Tensor) -> Tensor:
        rows = self.embed(signals.reshape(-1, TOKENS, SAMPLES)) + self.positions
        for block in self.blocks:
            rows = block(rows)
        return self.out(self.norm(rows).mean(1))


def window_at_rest(model: nn.Module, inputs: Tensor, targets: Tensor, draws: torch.Generator) -> dict[str, Any]:
    """The recorder's row at fixed parameters: what it says about this moment, whatever training does next."""
    recorder = tacit.Recorder(
        model, batch_size=BATCH_SIZE, train_size=TRAIN_SIZE, every=10**9, window=WINDOW, layers="norms"
    )
    for chosen in torch.randperm(TRAIN_SIZE, generator=draws)[: WINDOW * BATCH_SIZE].split(BATCH_SIZE):
        model.zero_grad()
        cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
        recorder.after_backward()
    model.zero_grad()
    return recorder.rows[0]


def exact_of_norms(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Γ/‖∇C‖² of the norm layers' parameters, from all examples at once."""
    watched = NormLayerGradients(model)
    watched.open()
    cross_entropy(model(inputs), targets).backward()
    squared_norm, variance = step_moments(watched.take(TRAIN_SIZE), train_size=TRAIN_SIZE)
    watched.close()
    model.zero_grad()
    return (TRAIN_SIZE - 1) / TRAIN_SIZE * variance / squared_norm


def run(seed: int) -> list[dict[str, Any]]:
    found = load("mnist1d_16k")
    inputs, targets = (torch.from_numpy(part[:TRAIN_SIZE].copy()) for part in (found.train_inputs, found.train_targets))
    torch.manual_seed(seed)
    model, draws = Transformer(), torch.Generator().manual_seed(seed)
    optimizer, rows = torch.optim.AdamW(model.parameters(), lr=RATE), []
    for step in range(1, STEPS + 1):
        chosen = torch.randperm(TRAIN_SIZE, generator=draws)[:BATCH_SIZE]
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs[chosen]), targets[chosen])
        loss.backward()
        optimizer.step()
        if step in POINTS:
            seen = tacit.measure(model, cross_entropy, (inputs, targets), batch_size=BATCH_SIZE)
            assert seen.noise_scale is not None
            window = window_at_rest(model, inputs, targets, draws)
            row = {"seed": seed, "step": step, "loss": loss.item(), "all_parameters": seen.noise_scale.value}
            row |= {"norm_layers_exact": exact_of_norms(model, inputs, targets)}
            row |= {key: window[key] for key in ("noise_scale", "noise_scale_low", "noise_scale_high")}
            rows.append(row)
            print(row, flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    whole, norms = (np.array([row[key] for row in rows]) for key in ("all_parameters", "norm_layers_exact"))
    ratios = norms / whole
    inside = [row["noise_scale_low"] <= row["norm_layers_exact"] <= (row["noise_scale_high"] or np.inf) for row in rows]
    return {
        "points": len(rows),
        "range_of_all_parameters": [float(whole.min()), float(whole.max())],
        "ratio_median": float(np.median(ratios)),
        "ratio_range": [float(ratios.min()), float(ratios.max())],
        "correlation_of_logarithms": float(np.corrcoef(np.log(whole), np.log(norms))[0, 1]),
        "window_intervals_that_cover_the_exact_number": sum(inside) / len(inside),
    }


def main() -> None:
    torch.set_num_threads(1)
    rows = [row for seed in SEEDS for row in run(seed)]
    found = {"provenance": provenance(), "window": WINDOW, "batch_size": BATCH_SIZE, **summary(rows), "rows": rows}
    write_atomically(RESULT, json.dumps(found, indent=1) + "\n")
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
