"""The sentences and lines of an advice."""

from __future__ import annotations

import math

from tacit._counted import ordinal
from tacit.advice.advice import Line
from tacit.advice.finite_rate import CALIBRATION
from tacit.advice.optimizers import Momentum
from tacit.diagnostics.estimates import Estimate
from tacit.diagnostics.measurement import Measurement
from tacit.diagnostics.measuring import examples_needed
from tacit.edges import largest_stable_learning_rate, stability_limit

LINEAR_UP_TO = 0.1  # linear scaling is called right while C_reg's two terms are a tenth apart or more


def advice_sentence(
    seen: Measurement,
    decided: bool,
    matched: Estimate,
    strength: Estimate,
    moved: tuple[float, int, float, int, int, int],
    beta: Momentum,
) -> str:
    """What to do, in one sentence."""
    rate, batch, new_rate, new_batch, micro, every = moved
    move = f"From ε = {rate:g}, B = {batch} to B' = {new_batch}"
    if not decided:
        return f"{move}: can't tell from {seen.sample} examples."
    linear = rate * new_batch / batch
    near = abs(matched.value / linear - 1) <= LINEAR_UP_TO
    scaling = "linear scaling holds" if near else f"linear scaling would say {linear:.4g}"
    verb = "keep" if new_rate == rate else "set"
    steps = "" if every == 1 else f" on every {ordinal(every)} step"
    penalty = (
        f"{verb} ε' = {new_rate:.4g} and add a penalty of λ = {strength.value:.4g} on micro-batches of {micro}{steps}"
        if strength.value > 0
        else f"at ε' = {new_rate:.4g} no penalty is needed"
    )
    if matched.value >= _largest_rate(
        seen, beta
    ):  # in the recorded experiment such rates trained on one task and failed on the other
        return (
            f"{move}: {penalty}; the rate that needs none, ε' = {matched.value:.4g} ({scaling}), is beyond "
            f"{_edge_words(seen, beta)} and may diverge."
        )
    return f"{move}: use ε' = {matched.value:.4g} ({scaling}), or {penalty}."


def undecided_note(seen: Measurement, matched: Estimate, strength: Estimate, learning_rate: float) -> str:
    assert seen.full_gradient_squared_norm is not None
    spread = max(matched.high - matched.low, strength.high - strength.low) / learning_rate
    by_width = math.ceil(seen.sample * max(spread, 1.5) ** 2) if math.isfinite(spread) else seen.sample
    by_norm = examples_needed(seen.sample, seen.train_size, seen.full_gradient_squared_norm)
    needed = min(seen.train_size, max(by_width, by_norm))
    return f"can't tell from this sample: use at least {needed} examples."


def advice_lines(
    seen: Measurement,
    beta: Momentum,
    rate: float,
    new_batch_size: int,
    micro: int,
    matched: Estimate,
    strength: Estimate,
    by_noise: float,
) -> list[Line]:
    with_momentum = "" if beta.beta == 0 else f"; {beta}: ‖∇C‖² and noise have factors of their own"
    lines = [
        Line("matched_learning_rate", "ε'", matched, f"equal regularization at B' = {new_batch_size}, no penalty",
             f"ε' = ε C_reg(B)/C_reg(B'), C_reg(B) = (‖∇C‖² + (N−B)/(N−1) Γ/B)/4   (Eq. 22){with_momentum}"),
        Line("strength", "λ", strength, f"makes up the difference at ε' = {rate:g}, micro-batches of {micro}",
             f"λ = (ε C_reg(B) − ε' C_reg(B'))/C_reg(b); if noise rules, b(ε/B − ε'/B') = {by_noise:.4g}   (Eq. 22)"),
    ]  # fmt: skip
    if seen.noise_scale is not None:
        lines.append(Line("linear_scaling_stops", "Γ/‖∇C‖²", seen.noise_scale, "batch size where linear scaling stops",
                          "Γ/B = ‖∇C‖²: both terms of C_reg are equal   (section 3)"))  # fmt: skip
    if seen.largest_eigenvalue is not None:
        found = seen.largest_eigenvalue.scaled(rate)
        limit = stability_limit(momentum=beta.beta, nesterov=beta.nesterov)
        lines.append(Line("stability", "ε'·λ_max", found, f"below 1: inside the theory; above {limit:.3g}: unstable",
                          f"on a quadratic a step contracts for ελ < {limit:.3g}; log(1 − ελ): ελ < 1"))  # fmt: skip
    return lines


def strength_lines(first: Estimate, factor: float | None, edge: float | None, every: int) -> list[Line]:
    """The first-order strength and the edge, beside the advised strength."""
    lines = []
    if factor is not None:
        words = f"to first order in ε; λ is {CALIBRATION:g} (a calibration) times F = {factor:.3g} times that"
        lines.append(Line("first_order_strength", "λ₁", first, words,
                          "F = Σ wᵢ/(1 − εhᵢ/l), l = 2 or that of the momentum: noise at a finite rate"))  # fmt: skip
    if edge is not None:
        meets = "λ" if every == 1 else f"λ, with weight {every} on every {ordinal(every)} step,"
        lines.append(Line("largest_stable_strength", "λ*", Estimate(edge, edge, edge),
                          f"{meets} must stay below; advised: at most three quarters",
                          "ε'(h + (λ/2)(1+s²)h²) = l, h = λ_max, s the spread of h over micro-batches"))  # fmt: skip
    return lines


def stability_notes(seen: Measurement, beta: Momentum, rate: float, matched: Estimate, linear: float) -> list[str]:
    if seen.largest_eigenvalue is None:
        return ["stability was not measured: measure with learning_rate=… or curvature=True."]
    largest = _largest_rate(seen, beta)
    rates = {"the rate": rate, "the matched rate": matched.value, "linear scaling to": linear}
    return [
        f"{words} ε' = {value:.4g} is beyond {_edge_words(seen, beta)}: unstable at the measured point; training moves "
        "to flatter places or fails."
        for words, value in rates.items()
        if value >= largest
    ]


def _largest_rate(seen: Measurement, beta: Momentum) -> float:
    """2/λ_max without momentum; infinite where λ_max was not measured, or where nothing is curved upwards."""
    found = seen.largest_eigenvalue
    if found is None or not found.value > 0:
        return math.inf
    return largest_stable_learning_rate(found.value, momentum=beta.beta, nesterov=beta.nesterov)


def _edge_words(seen: Measurement, beta: Momentum) -> str:
    return f"{'2/λ_max' if beta.beta == 0 else 'the edge'} = {_largest_rate(seen, beta):.3g}"
