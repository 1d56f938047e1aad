"""`match`: from one learning rate and batch size to another with the same implicit regularization."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit._arguments import whole_number
from tacit._errors import InputError
from tacit.advice.advice import Advice
from tacit.advice.checks import check_match, check_measurement
from tacit.advice.every_edge import largest_stable_strength_every
from tacit.advice.finite_rate import CALIBRATION, finite_rate_factor
from tacit.advice.momentum import RegularizerFactors, regularizer_factors
from tacit.advice.optimizers import Momentum, optimizer_settings
from tacit.advice.price import EVERY, Alternative
from tacit.advice.wording import (
    CALIBRATED,
    HELD,
    advice_sentence,
    changed_rate_note,
    condition_lines,
    rate_line,
    stability_notes,
    strength_lines,
    undecided_note,
)
from tacit.diagnostics.estimates import Estimate, estimate
from tacit.diagnostics.measurement import Measurement

TOO_WIDE = 2.0  # an interval whose ends differ by more than this factor does not settle a choice by powers of two
SHARE_OF_EDGE = 0.75  # of the largest stable strength: more is never advised


@dataclass(frozen=True)
class Term:
    """One regularizer of the equation: (1/4)(full ‖∇C‖² + noise (1/B − 1/N) V), with the factors of its optimizer."""

    factors: RegularizerFactors
    batch_size: int

    def scaled_noise(self, factor: float) -> Term:
        return Term(RegularizerFactors(self.factors.full, factor * self.factors.noise), self.batch_size)

    def minus(self) -> Term:
        return Term(RegularizerFactors(-self.factors.full, -self.factors.noise), self.batch_size)


def match(
    seen: Measurement,
    *,
    learning_rate: float | None = None,
    batch_size: int,
    new_batch_size: int | None = None,
    new_learning_rate: float | None = None,
    micro_batch_size: int | None = None,
    momentum: float | None = None,
    nesterov: bool = False,
    optimizer: Any = None,
    every: int = 1,
) -> Advice:
    """The (ε', B') of equal implicit regularization, and the explicit strength that makes up a difference.

    SGD follows C + ε C_reg(B) (Eqs. 1, 22). With a penalty of strength λ on micro-batches of b examples it follows
    C + ε' C_reg(B') + λ C_reg(b). Both regularize equally, at the point that was measured, when

        λ = (ε C_reg(B) − ε' C_reg(B')) / C_reg(b)           in general
        λ = b (ε/B − ε'/B')                                  when Γ/B, Γ/B' and Γ/b are far above ‖∇C‖²

    With `momentum` β (torch.optim.SGD's, with or without `nesterov`; or give the `optimizer` itself) the two terms of
    ε C_reg have factors of their own, `tacit.advice.regularizer_factors`, and λ is about 1/(1−β) times as large. Adam
    and its kin are not covered.

    Where curvature was measured (`measure(…, learning_rate=…)`) the noise terms are multiplied by the finite-rate
    factor (`tacit.advice.finite_rate_factor`) and by 2, a calibration on pilots, and λ is held to three quarters of the
    largest stable strength λ*; with `every=k` λ* is that of k − 1 plain steps and one with kλ. Without curvature λ is
    the first-order number. The matched rate always is: with curvature, λ at that rate is not 0.

    Give `new_batch_size`, `new_learning_rate` or both. With a new batch size alone the rate stays, and the rate that
    would match without a penalty is given beside; with a new rate alone the batch size that matches it is looked for.
    `micro_batch_size` is b, by default the old batch size (or the new one, if smaller).

    It equates the size of two regularizers at one point of training, not their gradients all along it: the experiment
    in docs/large-batch.md shows how far that carries. Rates are compared at equal training time ε × updates, so a
    larger batch at the same rate needs as many updates, and more epochs.
    """
    own = optimizer_settings(optimizer, momentum, nesterov)
    beta = own.momentum
    learning_rate = own.learning_rate if learning_rate is None else learning_rate
    every = whole_number("every", every, at_least=1)
    check_match(seen.train_size if isinstance(seen, Measurement) else None, learning_rate, batch_size, new_batch_size,
                new_learning_rate, micro_batch_size)  # fmt: skip
    check_measurement(seen)
    assert learning_rate is not None
    learning_rate, batch_size = float(learning_rate), int(batch_size)  # numpy's numbers have no JSON
    if new_batch_size is None:
        assert new_learning_rate is not None
        new_batch_size = _matching_batch_size(seen, learning_rate, batch_size, new_learning_rate, beta)
    rate = learning_rate if new_learning_rate is None else float(new_learning_rate)
    new_batch_size = int(new_batch_size)
    micro = int(micro_batch_size or min(batch_size, new_batch_size))
    old, unit, new = (
        Term(_factors(seen, some, size, beta), size)
        for some, size in ((learning_rate, batch_size), (1.0, new_batch_size), (rate, new_batch_size))
    )
    penalty = Term(RegularizerFactors(1.0, 1.0), micro)
    matched = _ratio(seen, [old], unit).between(0.0, math.inf)
    first = _ratio(seen, [old, new.minus()], penalty)
    asked, factors, edge, notes = _strength(seen, old, new, penalty, (learning_rate, rate, beta), first, every)
    strength = asked.between(0.0, math.inf)  # below 0 the move regularizes more than it has to; no λ takes that back
    kind = "" if factors is None else CALIBRATED if not notes else HELD
    by_noise = micro * (old.factors.noise / batch_size - new.factors.noise / new_batch_size)
    moved = (learning_rate, batch_size, rate, new_batch_size, micro, every)
    stops = None if seen.noise_scale is None else seen.noise_scale.scaled(new.factors.noise / new.factors.full)
    lines = [
        rate_line(beta, new_batch_size, matched),
        *strength_lines(strength, first.between(0.0, math.inf), factors, edge, moved, beta, kind, by_noise),
        *condition_lines(seen, beta, rate, stops),
    ]
    if factors is not None and rate != learning_rate and not math.isnan(matched.value):
        notes.append(changed_rate_note(matched))
    if own.strength:
        notes.append(f"the optimizer's own penalty of strength {own.strength:g} is no part of what is matched.")
    notes += stability_notes(seen, beta, rate, matched, learning_rate * new_batch_size / batch_size)
    if asked.high < 0:
        notes.append(
            f"λ would be {asked.value:.3g}: (ε', B') regularizes more than (ε, B) already; lower the rate or raise the "
            "batch."
        )
    decided = _decided(matched, first, old.factors.noise)
    if not decided:
        notes.insert(0, undecided_note(seen, matched, first, learning_rate))
    shown: dict[str, Estimate | None] = {
        "matched_learning_rate": matched, "strength": strength, "first_order_strength": first.between(0.0, math.inf),
        "linear_scaling_stops": stops,
        "stability": None if seen.largest_eigenvalue is None else seen.largest_eigenvalue.scaled(rate),
    }  # fmt: skip
    intervals = {name: (found.low, found.high) for name, found in shown.items() if found is not None}
    values: dict[str, Any] = {name: None if found is None else found.value for name, found in shown.items()}
    return Advice(
        advice_sentence(seen, decided, matched, strength, moved, beta, kind),
        learning_rate, batch_size, rate, new_batch_size, micro, **values, noise_dominated_strength=by_noise,
        intervals=intervals, decided=decided, lines=tuple(lines), notes=tuple(notes), momentum=beta,
        weight_decay=own.weight_decay, every=every, finite_rate_factor=None if factors is None else factors[0],
        largest_stable_strength=edge,
        alternatives=_alternatives(seen, old, new, micro, (learning_rate, rate, beta), every),
    )  # fmt: skip


def _factors(seen: Measurement, rate: float, batch_size: int, beta: Momentum) -> RegularizerFactors:
    batches = max(1, seen.train_size // batch_size)
    return regularizer_factors(rate, batches=batches, momentum=beta.beta, nesterov=beta.nesterov)


def _strength(
    seen: Measurement,
    old: Term,
    new: Term,
    penalty: Term,
    rates: tuple[float, float, Momentum],
    first: Estimate,
    every: int,
) -> tuple[Estimate, tuple[float, float] | None, float | None, list[str]]:
    """(λ, F at both rates, λ*, notes): λ₁, raised for the finite rate and held below the edge, where known."""
    raised, factors = _raised_strength(seen, old, new, penalty, rates, first)
    if factors is None:
        return first, None, None, ["the edge was not measured: measure with learning_rate=… or curvature=True."]
    edge = _edge(seen, rates[1], rates[2], (penalty.batch_size, new.batch_size), every)
    if edge is None:
        return raised, factors, None, []
    most = SHARE_OF_EDGE * edge
    held = raised.between(-math.inf, most)
    if not raised.value > most:
        return held, factors, edge, []
    asked = f"matching asks for {raised.value:.3g}"
    if edge == 0:
        return held, factors, edge, [f"{asked}, but no λ is stable: the step is unstable without a penalty; lower ε'."]
    cut = f"λ is held to {SHARE_OF_EDGE:g} λ* = {most:.3g}; "
    return held, factors, edge, [f"{cut}{asked}, so a part of the regularization is not made up."]


def _raised_strength(
    seen: Measurement, old: Term, new: Term, penalty: Term, rates: tuple[float, float, Momentum], first: Estimate
) -> tuple[Estimate, tuple[float, float] | None]:
    """(λ, F at both rates) before the edge: noise terms times F and the calibration, where curvature was measured."""
    rate, new_rate, beta = rates
    if seen.spectrum is None or seen.largest_eigenvalue is None:
        return first, None
    factor = finite_rate_factor(seen.spectrum, learning_rate=rate, momentum=beta.beta, nesterov=beta.nesterov)
    at_new = finite_rate_factor(seen.spectrum, learning_rate=new_rate, momentum=beta.beta, nesterov=beta.nesterov)
    noise = [old.scaled_noise(CALIBRATION * factor), new.scaled_noise(CALIBRATION * at_new).minus()]
    return _ratio(seen, noise, penalty), (factor, at_new)


def _edge(seen: Measurement, rate: float, beta: Momentum, sizes: tuple[int, int], every: int) -> float | None:
    """λ* on every k-th step, micro-batches and minibatches of these sizes; None where curvature was not measured."""
    if seen.spectrum is None or seen.largest_eigenvalue is None or not seen.largest_eigenvalue.value > 0:
        return None
    micro, batch = sizes
    return largest_stable_strength_every(
        rate, seen.largest_eigenvalue.value, every=every, momentum=beta,
        curvature_spread=seen.spectrum.curvature_spread(micro),
        # Only momentum remembers how minibatches differ; without it SHARE_OF_EDGE leaves room enough.
        batch_spread=seen.spectrum.curvature_spread(batch) if beta.beta else 0.0,
    )  # fmt: skip


def _alternatives(
    seen: Measurement, old: Term, new: Term, micro: int, rates: tuple[float, float, Momentum], every: int
) -> tuple[Alternative, ...]:
    """The strengths of equal expected regularization on micro-batches of b, 4b, 16b … up to the whole batch."""
    sizes, found = [micro], []
    while sizes[-1] < new.batch_size:
        sizes.append(min(4 * sizes[-1], new.batch_size))
    for size in sizes:
        penalty = Term(RegularizerFactors(1.0, 1.0), size)
        first = _ratio(seen, [old, new.minus()], penalty)
        strength, _ = _raised_strength(seen, old, new, penalty, rates, first)
        edges = {k: _edge(seen, rates[1], rates[2], (size, new.batch_size), k) for k in {*EVERY, every}}
        most = {k: math.inf if edge is None else SHARE_OF_EDGE * edge for k, edge in edges.items()}
        found.append(Alternative(size, strength.between(0.0, math.inf).value, most))
    return tuple(found)


def _ratio(seen: Measurement, terms: list[Term], below: Term) -> Estimate:
    """Σ of the terms over the one below, with the jackknife interval of the whole expression."""
    size = seen.train_size

    def statistic(squared_norm: np.ndarray, variance: np.ndarray) -> np.ndarray:
        def regularizer(term: Term) -> np.ndarray:
            share = 1 / term.batch_size - 1 / size
            return term.factors.full * squared_norm + term.factors.noise * share * variance

        upper, lower = sum(regularizer(term) for term in terms), regularizer(below)
        # A sample too small to keep C_reg above zero says nothing about a quotient by it.
        return np.where(lower > 0, upper / np.where(lower > 0, lower, 1.0), np.nan)

    assert seen.moments is not None
    return estimate(seen.moments, statistic, confidence=seen.confidence, floor=-math.inf)


def _matching_batch_size(
    seen: Measurement, learning_rate: float, batch_size: int, new_rate: float, beta: Momentum
) -> int:
    """B' at which the new rate regularizes as much: the regularizer falls with B', so by halving."""

    def excess(size: int) -> float:
        old, new = _factors(seen, learning_rate, batch_size, beta), _factors(seen, new_rate, size, beta)
        return _ratio(seen, [Term(new, size), Term(old, batch_size).minus()], Term(RegularizerFactors(1, 1), 1)).value

    low, high = 1, seen.train_size
    if excess(high) > 0:
        raise InputError(
            f"no batch size gives learning_rate={new_rate:g} as little regularization as ({learning_rate:g}, "
            f"B={batch_size}): even all {seen.train_size} examples have more from ‖∇C‖² alone. Use a smaller rate."
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return min((low, high), key=lambda size: abs(excess(size)))


def _decided(matched: Estimate, strength: Estimate, effective_rate: float) -> bool:
    """Whether the sample settles the advice: ε' within a factor of two, λ within half of the rate that it replaces."""
    wide = not matched.low > 0 or matched.high > TOO_WIDE * matched.low
    return not (wide or not strength.high - strength.low <= effective_rate)
