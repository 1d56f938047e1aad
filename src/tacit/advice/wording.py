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
from tacit.edges import Step, largest_stable_learning_rate, stability_limit

CALIBRATED, HELD = " (calibrated)", " (held at the edge)"
LINEAR_UP_TO = 0.1  # linear scaling is called right while C_reg's two terms are a tenth apart or more


def advice_sentence(
    seen: Measurement,
    decided: bool,
    matched: Estimate,
    strength: Estimate,
    moved: tuple[float, int, float, int, int, int],
    beta: Momentum,
    kind: str,
) -> str:
    """What to do, in one sentence; `kind` is CALIBRATED, HELD or nothing: what λ is, beside a rate of first order."""
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
        f"{verb} ε' = {new_rate:.4g} and add a penalty of λ = {strength.value:.4g}{kind} on micro-batches of "
        f"{micro}{steps}"
        if strength.value > 0
        else f"at ε' = {new_rate:.4g} no penalty is stable, nor is the step without one"
        if kind == HELD
        else f"at ε' = {new_rate:.4g} no penalty is needed"
    )
    # In the recorded experiment rates beyond the edge trained on one task and failed on the other.
    if matched.value >= _largest_rate(seen, beta):
        return (
            f"{move}: {penalty}; the rate that needs none to first order, ε' = {matched.value:.4g} ({scaling}), is "
            f"beyond {_edge_words(seen, beta)} and may diverge."
        )
    return f"{move}: use ε' = {matched.value:.4g}, the first-order match ({scaling}), or {penalty}."


def undecided_note(seen: Measurement, matched: Estimate, strength: Estimate, learning_rate: float) -> str:
    assert seen.full_gradient_squared_norm is not None
    spread = max(matched.high - matched.low, strength.high - strength.low) / learning_rate
    by_width = math.ceil(seen.sample * max(spread, 1.5) ** 2) if math.isfinite(spread) else seen.sample
    by_norm = examples_needed(seen.sample, seen.train_size, seen.full_gradient_squared_norm)
    needed = min(seen.train_size, max(by_width, by_norm))
    return f"can't tell from this sample: use at least {needed} examples."


def rate_line(beta: Momentum, new_batch_size: int, matched: Estimate) -> Line:
    with_momentum = "" if beta.beta == 0 else f"; {beta}: ‖∇C‖² and noise have factors of their own"
    words = f"equal regularization to first order at B' = {new_batch_size}, no penalty"
    equation = f"ε' = ε C_reg(B)/C_reg(B'), C_reg(B) = (‖∇C‖² + (N−B)/(N−1) Γ/B)/4   (Eq. 22){with_momentum}"
    return Line("matched_learning_rate", "ε'", matched, words, equation)


def condition_lines(seen: Measurement, beta: Momentum, rate: float, stops: Estimate | None) -> list[Line]:
    """Where linear scaling stops, and how near the rate is to its edge."""
    lines, plain = [], beta.beta == 0
    if stops is not None:
        symbol = "Γ/‖∇C‖²" if plain else "ρΓ/a‖∇C‖²"
        equal = "Γ/B = ‖∇C‖²" if plain else "ρΓ/B = a‖∇C‖², a and ρ those of tacit.advice.regularizer_factors"
        lines.append(Line("linear_scaling_stops", symbol, stops, "batch size where linear scaling stops",
                          f"{equal}: both terms of C_reg are equal   (section 3)"))  # fmt: skip
    if seen.largest_eigenvalue is not None:
        found = seen.largest_eigenvalue.scaled(rate)
        limit = stability_limit(momentum=beta.beta, nesterov=beta.nesterov)
        # The series that ends at ελ = 1 is that of plain SGD; with momentum nothing as short is true.
        inside, series = ("below 1: inside the theory; ", "; log(1 − ελ): ελ < 1") if plain else ("", f"; {beta}")
        lines.append(Line("stability", "ε'·λ_max", found, f"{inside}above {limit:.3g}: unstable",
                          f"on a quadratic a step contracts for ελ < {limit:.3g}{series}"))  # fmt: skip
    return lines


def strength_lines(
    strength: Estimate,
    first: Estimate,
    factors: tuple[float, float] | None,
    edge: float | None,
    moved: tuple[float, int, float, int, int, int],
    beta: Momentum,
    kind: str,
    by_noise: float,
) -> list[Line]:
    """The advised strength, and beside it that of first order and the edge; `factors` are F at ε and at ε'."""
    old_rate, _, rate, _, micro, every = moved
    noise = "b(ε/B − ε'/B')" if beta.beta == 0 else "b(ρε_e/B − ρ'ε_e'/B')"
    to_first_order = f" = (ε C_reg(B) − ε' C_reg(B'))/C_reg(b); if noise rules, {noise} = {by_noise:.4g}   (Eq. 22)"
    part = "a part of the difference" if kind == HELD else "the difference"
    words = f"makes up {part} at ε' = {rate:g}, micro-batches of {micro}"
    if strength.value == 0:
        words = f"no penalty is {'stable' if kind == HELD else 'needed'} at ε' = {rate:g}"
    if factors is None:
        return [Line("strength", "λ", strength, words, f"λ{to_first_order}")]
    now, then = factors
    end = "; then held to three quarters of λ*" if kind == HELD else ""
    share = "Σ wᵢ f(εhᵢ), f that of Nesterov" if beta.nesterov else f"Σ wᵢ/(1 − εhᵢ/{2 * (1 + beta.beta):.3g})"
    if rate == old_rate:
        before = " before it is held" if kind == HELD else ""
        of_first = f"to first order in ε; λ is {CALIBRATION:g} (a calibration) times F = {now:.3g} times that{before}"
        how = f"λ = {CALIBRATION:g} F λ₁, F = {share}: noise at a finite rate{end}"
    else:
        of_first = "to first order in ε at both rates, without the calibration"
        how = (
            f"as λ₁, its noise terms times {CALIBRATION:g} F, F = {now:.3g} at ε and {then:.3g} at ε', {share}: noise "
            f"at a finite rate{end}"
        )
    lines = [
        Line("strength", "λ", strength, words, how),
        Line("first_order_strength", "λ₁", first, of_first, f"λ₁{to_first_order}"),
    ]
    if edge is not None:
        meets = "λ" if every == 1 else f"λ, with weight {every} on every {ordinal(every)} step,"
        limit = stability_limit(momentum=beta.beta, nesterov=beta.nesterov)
        scatter = "" if beta.beta == 0 else ", met in the mean square over minibatches that differ in h"
        one = f"ε'(h + (λ/2)(1+s²)h²) = {limit:.3g}, h = λ_max{scatter}"
        met = one if every == 1 else f"{every} steps together contract at all curvatures up to λ_max"
        lines.append(Line("largest_stable_strength", "λ*", Estimate(edge, edge, edge),
                          f"{meets} must stay below; advised: at most three quarters" if edge > 0 else
                          "the step is unstable without a penalty",
                          f"{met}, s the spread of h over micro-batches"))  # fmt: skip
    return lines


def changed_rate_note(matched: Estimate) -> str:
    return (
        f"ε' = {matched.value:.4g} is matched to first order, λ with a calibration and F at both rates, so λ is not 0 "
        "at that rate: they are two ways, not two parts of one."
    )


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
    return largest_stable_learning_rate(found.value, step=Step(momentum=beta.beta, nesterov=beta.nesterov))


def _edge_words(seen: Measurement, beta: Momentum) -> str:
    return f"{'2/λ_max' if beta.beta == 0 else 'the edge'} = {_largest_rate(seen, beta):.3g}"
