"""The scatter of runs in a two-way layout: what point and seed leave unexplained, and how alike it is over points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from tacit._util.errors import InputError
from tacit.report.numbers import Array


@dataclass(frozen=True)
class Cell:
    """The values of one grid point's runs and the seed of each: points are compared seed by seed, not by position."""

    seeds: tuple[int, ...]
    values: Array

    def __post_init__(self) -> None:
        twice = [seed for seed in dict.fromkeys(self.seeds) if self.seeds.count(seed) > 1]
        if twice:
            raise InputError(f"the seed {twice[0]} appears twice at one grid point; expected each seed once.")

    def __len__(self) -> int:
        return len(self.seeds)


def prior_freedom(variances: Sequence[float], freedoms: Sequence[int]) -> float:
    """How many degrees of freedom the common variance is worth beside each point's own; infinite if they look alike.

    The logarithm of a variance known to d degrees of freedom scatters by ψ₁(d/2); what its values scatter beyond that,
    by ψ₁(d₀/2), is real difference. ψ₁ is the trigamma function.
    """
    logs = [
        math.log(max(variance, 1e-300)) - float(digamma(d / 2)) + math.log(d / 2)
        for variance, d in zip(variances, freedoms, strict=True)
    ]
    beyond = float(np.var(logs, ddof=1)) - float(np.mean([polygamma(1, d / 2) for d in freedoms]))
    if beyond <= 0:
        return math.inf
    return 2 * float(brentq(lambda half: float(polygamma(1, half)) - beyond, 1e-6, 1e9))


def design(cells: Sequence[Cell]) -> Array:
    """One row per run, with a 1 for its point and a 1 for its seed."""
    seeds = sorted({seed for cell in cells for seed in cell.seeds})
    made = np.zeros((sum(map(len, cells)), len(cells) + len(seeds)))
    places = [(index, seed) for index, cell in enumerate(cells) for seed in cell.seeds]
    for row, (index, seed) in enumerate(places):
        made[row, index] = made[row, len(cells) + seeds.index(seed)] = 1.0
    return made


def residual_variance(cells: Sequence[Cell]) -> tuple[float, int]:
    """Variance of what point and seed do not explain, and its degrees of freedom: (points − 1)(seeds − 1) if complete.

    A single point has no others to tell the seeds' effects from; its plain variance has seeds − 1.
    """
    if len(cells) > 1 and all(cell.seeds == cells[0].seeds for cell in cells):  # complete: means instead of a solver
        table = np.array([cell.values for cell in cells])
        left = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
        freedom = (len(cells) - 1) * (len(cells[0]) - 1)
    else:
        matrix = design(cells) if len(cells) > 1 else np.ones((len(cells[0]), 1))
        runs = np.concatenate([cell.values for cell in cells])
        left = runs - matrix @ np.linalg.lstsq(matrix, runs, rcond=None)[0]
        freedom = len(runs) - int(np.linalg.matrix_rank(matrix))
    return (float((left**2).sum()) / freedom, freedom) if freedom > 0 else (math.nan, 0)
