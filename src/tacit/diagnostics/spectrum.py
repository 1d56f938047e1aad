"""Curvature as minibatch noise meets it: where along the spectrum of ∇²C the noise lies, and how minibatches differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tacit._util.lanczos import krylov_decomposition
from tacit._util.random_generators import generator
from tacit.diagnostics.curvature import full_gradient, hessian_product
from tacit.problem import Problem

STARTS = 4  # minibatch gradients from which Lanczos starts
STEPS = 12  # Hessian products for each: extreme curvatures come first
GROUPS = 16  # of examples whose Hessians are compared along the sharpest direction
FEWEST, MOST = 8, 64  # micro-batches of one size whose squares are compared: fewer say little about a variance


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of ∇²C as minibatch noise sees it.

    - `values`, `weights`: curvatures hᵢ and the share of the noise δ = ∇Ĉ − ∇C along them, Σ wᵢ = 1, by Lanczos
      iterations from minibatch gradients: Σ wᵢ F(hᵢ) ≈ E⟨δ, F(∇²C) δ⟩/E‖δ‖².
    - `example_variance`: Σⱼ‖(∇²Cⱼ − ∇²C)v‖²/(N−1) along the sharpest direction v: what makes minibatches sharper.
    - `square_spreads[b]`: the standard deviation of ‖∇²Ĉₖ v‖² over micro-batches of b examples, divided by their mean:
      what scatters when a penalty is sampled. Only sizes of which there were enough.
    """

    values: tuple[float, ...]
    weights: tuple[float, ...]
    largest: float
    example_variance: float
    train_size: int
    square_spreads: dict[int, float] = field(default_factory=dict)

    def curvature_spread(self, batch_size: int) -> float:
        """s(b), with which E‖∇²Ĉ v‖² = (1 + s²) λ_max² over minibatches of b examples: what `tacit.edges` takes.

        s² λ_max² = (1/b − 1/N) · example_variance, as for any mean of examples drawn without replacement (Eq. 32).
        """
        if not self.largest > 0:
            return 0.0
        return math.sqrt(max(0.0, 1 / batch_size - 1 / self.train_size) * self.example_variance) / self.largest


def noise_spectrum(
    problem: Problem,
    examples: Tensor,
    *,
    batch_sizes: Sequence[int],
    largest: float,
    direction: np.ndarray,
    train_size: int,
    chunk_size: int,
    seed: int,
) -> Spectrum:
    """`Spectrum` from the given examples; `largest` and `direction` are the largest eigenvalue and its eigenvector.

    Noise is that of minibatches of the smallest size; squares are compared for every size.
    """
    size = min(*batch_sizes, max(1, len(examples) // 2))
    full = full_gradient(problem, examples, chunk_size=chunk_size)

    def product(vector: np.ndarray) -> np.ndarray:
        along = torch.from_numpy(np.ascontiguousarray(vector))
        return hessian_product(problem, examples, along, chunk_size=chunk_size).numpy()

    values, weights = [], []
    shuffled = examples[torch.randperm(len(examples), generator=generator(seed, "probe"))]
    for batch in shuffled.split(size)[:STARTS]:
        noise = (full_gradient(problem, batch, chunk_size=chunk_size) - full).numpy()
        ritz, _, components = krylov_decomposition(product, noise, steps=STEPS)
        values += ritz.tolist()
        weights += np.square(components).tolist()
    total = sum(weights) or 1.0
    variance = _example_variance(problem, shuffled, direction, chunk_size)
    spreads = _square_spreads(problem, shuffled, direction, batch_sizes, chunk_size)
    return Spectrum(tuple(values), tuple(weight / total for weight in weights), largest, variance, train_size, spreads)


def _example_variance(problem: Problem, examples: Tensor, direction: np.ndarray, chunk_size: int) -> float:
    """The variance of ∇²Cⱼ v over examples, from groups: a group of n has a mean with 1/n of it."""
    groups = examples.tensor_split(min(GROUPS, len(examples)))
    along = torch.from_numpy(np.ascontiguousarray(direction))
    products = np.stack([hessian_product(problem, group, along, chunk_size=chunk_size).numpy() for group in groups])
    if len(groups) < 2:
        return 0.0
    return len(examples) / len(groups) * float(np.square(products - products.mean(0)).sum()) / (len(groups) - 1)


def _square_spreads(
    problem: Problem, shuffled: Tensor, direction: np.ndarray, sizes: Sequence[int], chunk_size: int
) -> dict[int, float]:
    along = torch.from_numpy(np.ascontiguousarray(direction))
    found = {}
    for size in sizes:
        pieces = shuffled[: len(shuffled) // size * size].split(size)[:MOST]
        if len(pieces) < FEWEST:
            continue
        products = [hessian_product(problem, piece, along, chunk_size=chunk_size) for piece in pieces]
        squares = np.array([float(each.square().sum()) for each in products])
        if squares.mean() > 0:
            found[size] = float(squares.std() / squares.mean())
    return found
