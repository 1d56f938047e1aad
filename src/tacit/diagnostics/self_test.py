"""Does the model treat its examples one by one? Two checks, one exact and one statistical.

Exact: the gradient of a minibatch is the mean of the gradients of its two halves.
Statistical: the mean of ‖∇Ĉₖ‖²/4 over real minibatches agrees with C_reg(B) = (‖∇C‖² + (N−B)/(N−1) Γ/B)/4.

Batch norm in training mode fails both: the loss of an example then depends on its company, Γ is not defined, and only a
measurement with real minibatches has a meaning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from tacit._util import tree
from tacit._util.random_generators import generator
from tacit._util.rounding import CoarsestUnit
from tacit.diagnostics.estimates import Estimate
from tacit.problem import Problem

MOST_BATCHES = 32
# A healthy model fires the statistical check once in ten thousand measurements.
FALSE_ALARMS = 1e-4


@dataclass(frozen=True)
class SelfTest:
    """`halves` is the relative difference between a minibatch's gradient and its halves'; the rest is C_reg(B)."""

    batch_size: int
    batches: int
    halves: float
    halves_tolerance: float
    measured: Estimate
    formula: float | None
    distance: float | None
    largest_distance: float

    @property
    def passed(self) -> bool:
        near = self.distance is None or abs(self.distance) <= self.largest_distance
        return self.halves <= self.halves_tolerance and near

    def __str__(self) -> str:
        if self.halves > self.halves_tolerance:
            return (
                f"self-test failed: a minibatch's loss or gradient differs by {self.halves:.2g} of its size from the "
                "mean over its parts. The model or the loss mixes the examples of a minibatch (batch norm in training "
                "mode, class weights, ignored labels, targets that are broadcast against outputs): no example has a "
                "gradient of its own, and Γ is not defined."
            )
        if not self.passed:
            return (
                f"self-test failed: C_reg({self.batch_size}) is {self.measured} over {self.batches} minibatches and "
                f"{self.formula:.4g} by the formula. The model mixes the examples of a minibatch."
            )
        if self.formula is None:
            return "self-test: halves of a minibatch agree with it"
        return (
            f"self-test passed: C_reg({self.batch_size}) over {self.batches} real minibatches is {self.measured}, "
            f"by the formula {self.formula:.4g} on the same examples"
        )


def halves_differ(problem: Problem, examples: Tensor) -> tuple[float, float]:
    """(relative difference between ∇Ĉ and ½(∇Ĉ₁ + ∇Ĉ₂) over equal halves, what rounding explains)."""
    count = len(examples) // 2 * 2
    with CoarsestUnit() as precision:
        whole = problem.gradient(examples[:count])
    halves = [problem.gradient(half) for half in examples[:count].split(count // 2)]
    mean = tree.scale(tree.add(*halves), 0.5)
    size = math.sqrt(float(tree.squared_norm(whole)) + float(tree.squared_norm(mean))) or 1.0
    difference = math.sqrt(float(tree.squared_norm(tree.add(whole, mean, scale=-1.0)))) / size
    # 1e4 units in the last place: deep networks in float32 show 1e-5, batch norm 1e-2 and more. A model in float64 that
    # computes a norm in float32, as transformers do, rounds like float32.
    return difference, 1e4 * max(precision.unit, float(torch.finfo(next(iter(whole.values())).dtype).eps))


def minibatch_squared_norms(problem: Problem, examples: Tensor, *, batch_size: int, seed: int) -> np.ndarray:
    """‖∇Ĉₖ‖² of up to 32 disjoint random minibatches of the given examples."""
    shuffled = examples[torch.randperm(len(examples), generator=generator(seed, "probe", 1))]
    batches = shuffled[: len(examples) // batch_size * batch_size].split(batch_size)[:MOST_BATCHES]
    return np.array([float(tree.squared_norm(problem.gradient(batch))) for batch in batches])


def self_test(
    problem: Problem,
    examples: Tensor,
    *,
    batch_size: int,
    halves: tuple[float, float],
    in_sample: tuple[float, float] | None,
    confidence: float = 0.95,
    seed: int = 0,
) -> SelfTest:
    """`in_sample` is (‖ḡ‖², V) of just these examples; for them the formula has no error but rounding.

    The only chance left is how they fall into minibatches, and the spread between minibatches tells its size.
    """
    norms = minibatch_squared_norms(problem, examples, batch_size=batch_size, seed=seed) / 4
    count, mean = len(norms), float(norms.mean())
    error = float(norms.std(ddof=1) / math.sqrt(count)) if count > 1 else math.inf
    half = float(stats.t.ppf(0.5 + confidence / 2, max(1, count - 1))) * error
    measured = Estimate(mean, max(0.0, mean - half), mean + half)
    formula = distance = None
    if in_sample is not None:
        squared_norm, variance = in_sample
        formula = (squared_norm + (1 / batch_size - 1 / len(examples)) * variance) / 4
        # Equal minibatches have no spread: then rounding is the yardstick.
        distance = (mean - formula) / max(error, 1e-3 * abs(formula), 1e-300)
    largest = float(stats.t.ppf(1 - FALSE_ALARMS / 2, max(1, count - 1)))
    return SelfTest(batch_size, count, *halves, measured, formula, distance, largest)
