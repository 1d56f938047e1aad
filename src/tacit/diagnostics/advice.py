"""`match`: from one learning rate and batch size to another with the same implicit regularization."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tacit._errors import InputError
from tacit.diagnostics.estimates import Estimate, estimate
from tacit.diagnostics.measurement import Measurement
from tacit.diagnostics.measuring import examples_needed

TOO_WIDE = 2.0  # an interval whose ends differ by more than this factor does not settle a choice by powers of two
UNSTABLE = 2.0  # ε λ_max from which descent on a quadratic diverges
LINEAR_UP_TO = 0.1  # linear scaling is called right while C_reg's two terms are a tenth apart or more


@dataclass(frozen=True)
class Line:
    """One number of an advice: its symbol, the estimate, what it means, and the equation it comes from."""

    name: str
    symbol: str
    found: Estimate
    words: str
    equation: str

    def __str__(self) -> str:
        return f"  {self.symbol:<10} {self.found!s:<34} {self.words}\n  {'':<10} {self.equation}"


@dataclass(frozen=True)
class Advice:
    """How to move from (ε, B) to (ε', B') without losing implicit regularization: a sentence, then the numbers.

    `matched_learning_rate` is the ε' of equal implicit regularization at B' with no explicit term; `strength` the λ
    that makes up the difference at `new_learning_rate`, on micro-batches of `micro_batch_size`.
    """

    sentence: str
    learning_rate: float
    batch_size: int
    new_learning_rate: float
    new_batch_size: int
    micro_batch_size: int
    matched_learning_rate: Estimate | None
    strength: Estimate | None
    noise_dominated_strength: float
    linear_scaling_stops: Estimate | None
    stability: Estimate | None
    decided: bool
    lines: tuple[Line, ...] = field(repr=False, default=())
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        kept = {key: value for key, value in asdict(self).items() if key != "lines"}
        kept["equations"] = {line.name: line.equation for line in self.lines}
        return json.dumps(_finite(kept), ensure_ascii=False, indent=1)

    def __str__(self) -> str:
        return "\n".join([self.sentence, *map(str, self.lines), *[f"  note: {note}" for note in self.notes]])


def match(
    seen: Measurement,
    *,
    learning_rate: float,
    batch_size: int,
    new_batch_size: int | None = None,
    new_learning_rate: float | None = None,
    micro_batch_size: int | None = None,
) -> Advice:
    """The (ε', B') of equal implicit regularization, and the explicit strength that makes up a difference.

    SGD follows C + ε C_reg(B) (Eqs. 1, 22). With a penalty of strength λ on micro-batches of b examples it follows
    C + ε' C_reg(B') + λ C_reg(b). Both regularize equally, at the point that was measured, when

        λ = (ε C_reg(B) − ε' C_reg(B')) / C_reg(b)           in general
        λ = b (ε/B − ε'/B')                                  when Γ/B, Γ/B' and Γ/b are far above ‖∇C‖²

    Give `new_batch_size`, `new_learning_rate` or both. With a new batch size alone the rate stays, and the rate that
    would match without a penalty is given beside; with a new rate alone the batch size that matches it is looked for.
    `micro_batch_size` is b, by default the old batch size (or the new one, if smaller).

    It equates the size of two regularizers at one point of training, not their gradients all along it: the experiment
    in docs/diagnostics.md shows how far that carries. Rates are compared at equal training time ε × updates, so a
    larger batch at the same rate needs as many updates, and more epochs.
    """
    _check(seen, learning_rate, batch_size, new_batch_size, new_learning_rate, micro_batch_size)
    notes: list[str] = []
    if new_batch_size is None:
        assert new_learning_rate is not None
        new_batch_size = _matching_batch_size(seen, learning_rate, batch_size, new_learning_rate)
    rate = learning_rate if new_learning_rate is None else new_learning_rate
    micro = micro_batch_size or min(batch_size, new_batch_size)
    matched = _ratio(seen, [(learning_rate, batch_size)], new_batch_size)
    strength = _ratio(seen, [(learning_rate, batch_size), (-rate, new_batch_size)], micro)
    by_noise = micro * (learning_rate / batch_size - rate / new_batch_size)
    stops = seen.noise_scale
    stability = None if seen.largest_eigenvalue is None else seen.largest_eigenvalue.scaled(rate)
    lines = [
        Line("matched_learning_rate", "ε'", matched, f"equal regularization at B' = {new_batch_size}, no penalty",
             "ε' = ε C_reg(B)/C_reg(B'), C_reg(B) = (‖∇C‖² + (N−B)/(N−1) Γ/B)/4   (Eq. 22)"),
        Line("strength", "λ", strength, f"makes up the difference at ε' = {rate:g}, micro-batches of {micro}",
             f"λ = (ε C_reg(B) − ε' C_reg(B'))/C_reg(b); if noise rules, b(ε/B − ε'/B') = {by_noise:.4g}   (Eq. 22)"),
    ]  # fmt: skip
    if stops is not None:
        lines.append(Line("linear_scaling_stops", "Γ/‖∇C‖²", stops, "batch size where linear scaling stops",
                          "Γ/B = ‖∇C‖²: both terms of C_reg are equal   (section 3)"))  # fmt: skip
    if stability is not None:
        lines.append(Line("stability", "ε'·λ_max", stability, "below 1: inside the theory; above 2: unstable",
                          "descent on a quadratic contracts for ελ < 2; log(1 − ελ) converges for ελ < 1"))  # fmt: skip
        linear = learning_rate * new_batch_size / batch_size
        rates = {"the rate": rate, "the matched rate": matched.value, "linear scaling to": linear}
        for words, value in rates.items():
            if value / rate * stability.value >= UNSTABLE:
                notes.append(
                    f"{words} ε' = {value:.4g} is beyond 2/λ_max = {_largest_rate(seen):.3g}: unstable at the "
                    "measured point; training moves to flatter places or fails."
                )
    else:
        notes.append("stability was not measured: measure with learning_rate=… or curvature=True.")
    if strength.high < 0:
        notes.append("λ is negative: (ε', B') regularizes more than (ε, B) already; lower the rate or raise the batch.")
    decided, undecided = _decided(seen, matched, strength, learning_rate)
    if undecided:
        notes.insert(0, undecided)
    sentence = _sentence(seen, decided, matched, strength, (learning_rate, batch_size, rate, new_batch_size, micro))
    return Advice(
        sentence, learning_rate, batch_size, rate, new_batch_size, micro, matched, strength, by_noise, stops, stability,
        decided, tuple(lines), tuple(notes),
    )  # fmt: skip


def _ratio(seen: Measurement, terms: list[tuple[float, int]], below: int) -> Estimate:
    """Σ rate·C_reg(size) / C_reg(below), with the jackknife interval of the whole expression."""
    size = seen.train_size

    def statistic(squared_norm: np.ndarray, variance: np.ndarray) -> np.ndarray:
        def regularizer(batch: int) -> np.ndarray:
            return squared_norm + (1 / batch - 1 / size) * variance

        upper, lower = sum(rate * regularizer(batch) for rate, batch in terms), regularizer(below)
        # A sample too small to keep C_reg above zero says nothing about a quotient by it.
        return np.where(lower > 0, upper / np.where(lower > 0, lower, 1.0), np.nan)

    assert seen.moments is not None
    found = estimate(seen.moments, statistic, confidence=seen.confidence, floor=-math.inf)
    return Estimate(found.value, -math.inf, math.inf) if math.isnan(found.low + found.high) else found


def _matching_batch_size(seen: Measurement, learning_rate: float, batch_size: int, new_rate: float) -> int:
    """B' with ε' C_reg(B') = ε C_reg(B), rounded: from N/B' = 1 + N x, x = (4 C_reg(B') − ‖∇C‖²)/V."""
    assert seen.moments is not None
    assert seen.full_gradient_squared_norm is not None
    wanted = 4 * learning_rate / new_rate * seen.regularizer(batch_size).value
    share = (wanted - seen.full_gradient_squared_norm.value) / max(seen.moments.variance, 1e-300)
    if share < 0:
        raise InputError(
            f"no batch size gives learning_rate={new_rate:g} as little regularization as ({learning_rate:g}, "
            f"B={batch_size}): even all {seen.train_size} examples have more from ‖∇C‖² alone. Use a smaller rate."
        )
    return max(1, min(seen.train_size, round(seen.train_size / (1 + seen.train_size * share))))


def _decided(seen: Measurement, matched: Estimate, strength: Estimate, learning_rate: float) -> tuple[bool, str | None]:
    """Whether the sample settles the advice: ε' within a factor of two, λ within half of ε."""
    wide = not matched.low > 0 or matched.high > TOO_WIDE * matched.low
    wide = wide or not strength.high - strength.low <= learning_rate
    if not wide:
        return True, None
    assert seen.full_gradient_squared_norm is not None
    spread = max(matched.high - matched.low, strength.high - strength.low) / learning_rate
    by_width = math.ceil(seen.sample * max(spread, 1.5) ** 2) if math.isfinite(spread) else seen.sample
    by_norm = examples_needed(seen.sample, seen.train_size, seen.full_gradient_squared_norm)
    needed = min(seen.train_size, max(by_width, by_norm))
    return False, f"can't tell from this sample: use at least {needed} examples."


def _sentence(
    seen: Measurement, decided: bool, matched: Estimate, strength: Estimate, moved: tuple[float, int, float, int, int]
) -> str:
    rate, batch, new_rate, new_batch, micro = moved
    if not decided:
        return f"From ε = {rate:g}, B = {batch} to B' = {new_batch}: can't tell from {seen.sample} examples."
    linear = rate * new_batch / batch
    near = abs(matched.value / linear - 1) <= LINEAR_UP_TO
    scaling = "linear scaling holds" if near else f"linear scaling would say {linear:.4g}"
    penalty = (
        f"keep ε' = {new_rate:.4g} and add a penalty of λ = {strength.value:.4g} on micro-batches of {micro}"
        if strength.value > 0
        else f"at ε' = {new_rate:.4g} no penalty is needed"
    )
    move = f"From ε = {rate:g}, B = {batch} to B' = {new_batch}"
    largest = _largest_rate(seen)
    if matched.value >= largest:  # in the recorded experiment such rates trained on one task and failed on the other
        return (
            f"{move}: {penalty}; the rate that needs none, ε' = {matched.value:.4g} ({scaling}), is beyond 2/λ_max = "
            f"{largest:.3g} and may diverge."
        )
    return f"{move}: use ε' = {matched.value:.4g} ({scaling}), or {penalty}."


def _largest_rate(seen: Measurement) -> float:
    """2/λ_max; infinite where λ_max was not measured, or where nothing is curved upwards."""
    found = seen.largest_eigenvalue
    return UNSTABLE / found.value if found is not None and found.value > 0 else math.inf


def _check(
    seen: Measurement,
    learning_rate: float,
    batch_size: int,
    new_batch_size: int | None,
    new_learning_rate: float | None,
    micro_batch_size: int | None,
) -> None:
    if not isinstance(seen, Measurement):
        raise InputError(f"found a {type(seen).__name__}; expected the result of tacit.measure.")
    if not seen.per_example:
        raise InputError(
            "the measured model mixes the examples of a minibatch (batch norm), so C_reg has no formula in B; expected "
            "a model without it, or one measured in evaluation mode."
        )
    if new_batch_size is None and new_learning_rate is None:
        raise InputError("there is nothing to match; expected new_batch_size, new_learning_rate or both.")
    for name, rate in (("learning_rate", learning_rate), ("new_learning_rate", new_learning_rate)):
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise InputError(f"{name}={rate}; expected a positive number.")
    sizes = (("batch_size", batch_size), ("new_batch_size", new_batch_size), ("micro_batch_size", micro_batch_size))
    for name, size in sizes:
        if size is not None and not 1 <= size <= seen.train_size:
            raise InputError(f"{name}={size} with {seen.train_size} examples; expected 1 to {seen.train_size}.")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
