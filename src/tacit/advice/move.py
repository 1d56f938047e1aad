"""`Move`: from (ε, B) to (ε', B') at a measured point, and the strengths and edges that follow for micro-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.advice.every_edge import largest_stable_strength_every
from tacit.advice.finite_rate import CALIBRATION, finite_rate_factor
from tacit.advice.momentum import regularizer_factors
from tacit.advice.optimizers import Momentum
from tacit.diagnostics.estimates import Estimate, estimate
from tacit.diagnostics.measurement import Measurement
from tacit.edges import sampling_factor


@dataclass(frozen=True)
class Term:
    """One regularizer of the equation: (1/4)(full ‖∇C‖² + noise (1/B − 1/N) V)."""

    full: float
    noise: float
    batch_size: int

    def times(self, full: float, noise: float) -> Term:
        return Term(full * self.full, noise * self.noise, self.batch_size)


def optimizer_term(seen: Measurement, rate: float, batch_size: int, beta: Momentum) -> Term:
    """What SGD regularizes at this rate and batch size."""
    batches = max(1, seen.train_size // batch_size)
    factors = regularizer_factors(rate, batches=batches, momentum=beta.beta, nesterov=beta.nesterov)
    return Term(factors.full, factors.noise, batch_size)


def penalty_term(micro: int) -> Term:
    """C_reg(b), what a penalty of strength 1 adds."""
    return Term(1.0, 1.0, micro)


def ratio(seen: Measurement, terms: Sequence[Term], below: Term) -> Estimate:
    """Σ of the terms over the one below, with the jackknife interval of the whole expression."""

    def statistic(squared_norm: np.ndarray, variance: np.ndarray) -> np.ndarray:
        def regularizer(term: Term) -> np.ndarray:
            share = 1 / term.batch_size - 1 / seen.train_size
            return term.full * squared_norm + term.noise * share * variance

        upper, lower = sum(regularizer(term) for term in terms), regularizer(below)
        # A sample too small to keep C_reg above zero says nothing about a quotient by it.
        return np.where(lower > 0, upper / np.where(lower > 0, lower, 1.0), np.nan)

    assert seen.moments is not None
    return estimate(seen.moments, statistic, confidence=seen.confidence, floor=-math.inf)


@dataclass(frozen=True)
class Move:
    """From `rates[0]` and `sizes[0]` to `rates[1]` and `sizes[1]`, with this momentum before and after."""

    seen: Measurement
    momentum: Momentum
    rates: tuple[float, float]
    sizes: tuple[int, int]

    @property
    def terms(self) -> tuple[Term, Term]:
        (rate, new_rate), (size, new_size) = self.rates, self.sizes
        seen, beta = self.seen, self.momentum
        return optimizer_term(seen, rate, size, beta), optimizer_term(seen, new_rate, new_size, beta)

    @property
    def finite_rate_factors(self) -> tuple[float, float] | None:
        """F at ε and at ε'; None where curvature was not measured."""
        spectrum, beta = self.seen.spectrum, self.momentum
        if spectrum is None or self.seen.largest_eigenvalue is None:
            return None
        old, new = (
            finite_rate_factor(spectrum, learning_rate=rate, momentum=beta.beta, nesterov=beta.nesterov)
            for rate in self.rates
        )
        return old, new

    def matched_rate(self) -> Estimate:
        """The ε' that regularizes as much at B' without a penalty, to first order."""
        unit = optimizer_term(self.seen, 1.0, self.sizes[1], self.momentum)
        return ratio(self.seen, self.terms[:1], unit).between(0.0, math.inf)

    def first_order_strength(self, micro: int) -> Estimate:
        old, new = self.terms
        return ratio(self.seen, [old, new.times(-1, -1)], penalty_term(micro))

    def strength(self, micro: int) -> Estimate:
        """λ before the edge: that of first order, noise terms times F and the calibration where curvature is known."""
        if self.finite_rate_factors is None:
            return self.first_order_strength(micro)
        (old, new), (before, now) = self.terms, self.finite_rate_factors
        terms = [old.times(1, CALIBRATION * before), new.times(-1, -CALIBRATION * now)]
        return ratio(self.seen, terms, penalty_term(micro))

    def knows_draws(self, micro: int) -> bool:
        return self.seen.spectrum is not None and micro in self.seen.spectrum.square_spreads

    def edge(self, micro: int, *, every: int, sampled: int | None = None) -> float | None:
        """λ* on every k-th step, of all micro-batches or of q drawn ones; None where it was not measured."""
        spectrum, largest = self.seen.spectrum, self.seen.largest_eigenvalue
        if spectrum is None or largest is None or not largest.value > 0:
            return None
        draws = 0.0
        if sampled is not None and self.knows_draws(micro):
            draws = sampling_factor(self.sizes[1] // micro, sampled) ** 0.5 * spectrum.square_spreads[micro]
        return largest_stable_strength_every(
            self.rates[1], largest.value, every=every, momentum=self.momentum,
            curvature_spread=spectrum.curvature_spread(micro),
            # Only momentum remembers how minibatches differ; without it the share of λ* leaves room enough.
            batch_spread=spectrum.curvature_spread(self.sizes[1]) if self.momentum.beta else 0.0,
            draw_spread=draws,
        )  # fmt: skip


def matching_batch_size(
    seen: Measurement, learning_rate: float, batch_size: int, new_rate: float, beta: Momentum
) -> int | None:
    """B' at which the new rate regularizes as much: it falls with B', so by halving. None: no B' does."""
    old = optimizer_term(seen, learning_rate, batch_size, beta).times(-1, -1)

    def excess(size: int) -> float:
        return ratio(seen, [optimizer_term(seen, new_rate, size, beta), old], penalty_term(1)).value

    low, high = 1, seen.train_size
    if excess(high) > 0:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return min((low, high), key=lambda size: abs(excess(size)))
