"""How often 95 % intervals contain the exact value: 1,000 samples of 512 from 2,048 examples, on two problems.

    python benchmarks/coverage_of_intervals.py --json benchmarks/results/coverage.json

Linear: softmax regression on MNIST-1D at zero. MLP: 40-64-64-64-10 after three epochs of SGD (B = 16, ε = 1/8).
Beside them, as limits of the method: the linear model after three epochs, where ‖∇C‖² is far below Γ, and samples of
128.
All example gradients are made once; each resample uses the estimators of `tacit.diagnostics` on a subset of them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from tacit._util.provenance import provenance
from tacit._util.random_generators import generator
from tacit.batching import epoch_batches
from tacit.diagnostics import estimates
from tacit.diagnostics.estimates import Estimate, SampleMoments, estimate, inverse
from tacit.studies.data.load import load
from tacit.studies.train.models import mlp

TRAIN_SIZE, SAMPLE, FEW, SEED = 2048, 512, 128, 1


def gradients(name: str) -> np.ndarray:
    """∇Cⱼ as rows."""
    data = load("mnist1d")
    inputs = torch.from_numpy(data.train_inputs[:TRAIN_SIZE].copy())
    targets = torch.from_numpy(data.train_targets[:TRAIN_SIZE].copy())
    model: nn.Module = mlp([40, 64, 64, 64, 10], generator(SEED, "init"))
    if name != "mlp":
        model = nn.Linear(40, 10)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    if name != "linear":
        optimizer = torch.optim.SGD(model.parameters(), lr=2**-3)
        for epoch in range(3):
            for batch in epoch_batches(TRAIN_SIZE, 16, order="shuffled", seed=SEED, epoch=epoch):
                optimizer.zero_grad()
                cross_entropy(model(inputs[batch]), targets[batch]).backward()
                optimizer.step()
    values = {key: value.detach() for key, value in model.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(functional_call(model, parameters, (x.unsqueeze(0),)), y.unsqueeze(0))

    each = vmap(grad(loss), in_dims=(None, 0, 0))(values, inputs, targets)
    return torch.cat([part.flatten(1) for part in each.values()], 1).double().numpy()


def all_estimates(moments: SampleMoments) -> dict[str, Estimate]:
    """As `measure` makes them."""
    found = {
        "full_gradient_squared_norm": estimate(moments, estimates.gradient_squared_norm),
        "gradient_covariance_trace": estimate(moments, estimates.covariance_statistic(TRAIN_SIZE), logarithmic=True),
        "noise_scale": inverse(estimate(moments, estimates.signal_statistic(TRAIN_SIZE))),
    }
    for size in (16, 256):
        statistic = estimates.regularizer_statistic(size, TRAIN_SIZE)
        found[f"implicit_regularizer/{size}"] = estimate(moments, statistic, logarithmic=True)
    return found


def coverage(name: str, *, resamples: int, sample: int = SAMPLE) -> dict[str, float]:
    """The share of intervals that contain the exact value, for each quantity."""
    rows = gradients(name)
    gram = rows @ rows.T

    def moments(chosen: np.ndarray) -> SampleMoments:
        part = gram[np.ix_(chosen, chosen)]
        along, squares = part.mean(1), np.diag(part)
        mean = float(along.mean())
        spreads = squares - 2 * along + mean
        return SampleMoments(len(chosen), TRAIN_SIZE, mean, spreads.sum() / (len(chosen) - 1), spreads, along - mean)

    exact = {key: found.value for key, found in all_estimates(moments(np.arange(TRAIN_SIZE))).items()}
    draws = np.random.default_rng(SEED)
    inside = dict.fromkeys(exact, 0)
    for _ in range(resamples):
        for key, found in all_estimates(moments(draws.permutation(TRAIN_SIZE)[:sample])).items():
            inside[key] += found.low <= exact[key] <= found.high
    return {key: count / resamples for key, count in inside.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--resamples", type=int, default=1000)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    names = ("linear", "linear_trained", "mlp")
    found = {name: coverage(name, resamples=chosen.resamples) for name in names}
    few = {name: coverage(name, resamples=chosen.resamples, sample=FEW) for name in names}
    settings = {"train_size": TRAIN_SIZE, "sample": SAMPLE, "resamples": chosen.resamples, "confidence": 0.95}
    text = json.dumps({**settings, "coverage": found, f"coverage_at_{FEW}": few, **provenance()}, indent=1)
    print(text)
    if chosen.json is not None:
        temporary = chosen.json.with_suffix(".writing")
        temporary.write_text(text + "\n")
        temporary.replace(chosen.json)


if __name__ == "__main__":
    main()
