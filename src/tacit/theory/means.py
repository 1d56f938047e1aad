"""The mean iterate of SGD over the orders of its minibatches, with its spread."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.problem import Problem
from tacit.theory.iterates import sgd_rule, walk
from tacit.theory.landscape import Landscape, Parameters, view
from tacit.theory.orders import orders_of, sequences_with_replacement, steps_of


@dataclass(frozen=True)
class MeanIterate:
    """E(ω) after the walk and Cov(ω) over orders; `standard_error` is per coordinate, zero when all were enumerated."""

    mean: Tensor
    covariance: Tensor
    standard_error: Tensor
    orders: str

    @property
    def exact(self) -> bool:
        return self.orders.startswith("all ")

    def __str__(self) -> str:
        spread = math.sqrt(self.covariance.trace().item())
        error = "exact" if self.exact else f"standard error at most {self.standard_error.max().item():.1e}"
        return f"mean over {self.orders} ({error}); spread over orders {spread:.3e}"


def mean_iterate(
    problem: Problem | Landscape,
    parameters: Parameters = None,
    *,
    learning_rate: float,
    inner_steps: int = 1,
    mirrored: bool = False,
    samples: int = 400,
    seed: int = 0,
) -> MeanIterate:
    """E(ω_m) and Cov(ω_m) after one epoch, over the orders of fixed minibatches (Eq. 18).

    All m! orders for small m; beyond that sampled ones, and a warning says so. With `mirrored`, after two epochs,
    there and back.

    >>> from tacit.theory import problems
    >>> str(mean_iterate(problems.quadratic(batches=3), learning_rate=0.01))[:20]
    'mean over all 6 orde'
    """
    scape, w = view(problem, parameters)
    orders = orders_of(scape.batches_per_epoch, samples=samples, seed=seed)
    rows = torch.cat([orders.rows, orders.rows.flip(1)], dim=1) if mirrored else orders.rows
    ends = _ends(scape, w, learning_rate, rows, inner_steps)
    if orders.exact:
        error = torch.zeros_like(w)
    else:
        pairs = ends.reshape(-1, 2, scape.size).mean(1)  # a pair is one independent draw
        error = pairs.std(0) / math.sqrt(len(pairs))
    return MeanIterate(ends.mean(0), _population_covariance(ends), error, str(orders))


def mean_iterate_with_replacement(
    problem: Problem | Landscape, parameters: Parameters = None, *, learning_rate: float, inner_steps: int = 1
) -> MeanIterate:
    """The same when every minibatch is drawn independently: all m^m sequences of m draws."""
    scape, w = view(problem, parameters)
    batches = scape.batches_per_epoch
    rows = sequences_with_replacement(batches, length=batches)
    ends = _ends(scape, w, learning_rate, rows, inner_steps)
    return MeanIterate(ends.mean(0), _population_covariance(ends), torch.zeros_like(w), f"all {len(rows)} sequences")


def _ends(scape: Landscape, w: Tensor, learning_rate: float, rows: Tensor, inner_steps: int) -> Tensor:
    rates = torch.tensor([learning_rate], dtype=torch.float64)
    rule = sgd_rule(scape, inner_steps=inner_steps)
    return walk(scape, rule, w.unsqueeze(0), rates, steps_of(scape, rows))[0]


def _population_covariance(ends: Tensor) -> Tensor:
    away = ends - ends.mean(0)
    return away.T @ away / len(ends)
