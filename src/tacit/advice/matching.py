"""`match`: from one learning rate and batch size to another with the same implicit regularization."""

from __future__ import annotations

import math
from typing import Any

from tacit._util.arguments import whole_number
from tacit._util.errors import InputError
from tacit.advice.advice import Advice
from tacit.advice.checks import check_match, check_measurement
from tacit.advice.move import Move, matching_batch_size
from tacit.advice.optimizers import Momentum, optimizer_settings
from tacit.advice.price import EVERY, Alternative
from tacit.diagnostics.estimates import Estimate
from tacit.diagnostics.measurement import Measurement
from tacit.diagnostics.measuring import examples_needed
from tacit.edges import Step, largest_stable_learning_rate, sampling_factor

TOO_WIDE = 2.0  # an interval whose ends differ by more than this factor does not settle a choice by powers of two
SHARE_OF_EDGE = 0.75  # of the largest stable strength: more is never advised
SHARE_OF_SAMPLED_EDGE = 0.5  # of λ*(q): divergence was seen from 0.6 of it on (docs/large-batch.md)


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
    sampled: int | None = None,
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

    A penalty on `sampled=q` drawn micro-batches has the same λ, costs less, and has a lower edge λ*(q). By default q is
    the smallest of 1, 2, 4, … for which λ is at most half of λ*(q). Where none is small enough, or where curvatures of
    micro-batches were not measured (`measure(…, batch_size=b)`), all of them are penalised. A `sampled` of one's own
    holds λ to half of λ*(q); B'/b is the whole penalty.

    Give `new_batch_size`, `new_learning_rate` or both. With a new batch size alone the rate stays, and the rate that
    would match without a penalty is given beside; with a new rate alone the batch size that matches it is looked for.
    `micro_batch_size` is b, by default the old batch size (or the new one, if smaller).

    It equates the size of two regularizers at one point of training, not their gradients all along it: the experiment
    in docs/large-batch.md shows how far that carries. Rates are compared at equal training time ε × updates, so a
    larger batch at the same rate needs as many updates, and more epochs.
    """
    own = optimizer_settings(optimizer, momentum, nesterov)
    learning_rate = own.learning_rate if learning_rate is None else learning_rate
    every = whole_number("every", every, at_least=1)
    train_size = seen.train_size if isinstance(seen, Measurement) else None
    check_match(train_size, learning_rate, batch_size, new_batch_size, new_learning_rate, micro_batch_size)
    check_measurement(seen)
    assert learning_rate is not None
    learning_rate, batch_size = float(learning_rate), int(batch_size)  # numpy's numbers have no JSON
    if new_batch_size is None:
        assert new_learning_rate is not None
        new_batch_size = matching_batch_size(seen, learning_rate, batch_size, new_learning_rate, own.momentum)
        if new_batch_size is None:
            raise InputError(
                f"no batch size gives learning_rate={new_learning_rate:g} as little regularization as "
                f"({learning_rate:g}, B={batch_size}): even all {seen.train_size} examples have more from ‖∇C‖² alone. "
                "Use a smaller rate."
            )
    rate = learning_rate if new_learning_rate is None else float(new_learning_rate)
    new_batch_size = int(new_batch_size)
    micro = int(micro_batch_size or min(batch_size, new_batch_size))
    move = Move(seen, own.momentum, (learning_rate, rate), (batch_size, new_batch_size))
    (old, new), matched, factors = move.terms, move.matched_rate(), move.finite_rate_factors
    first, asked = move.first_order_strength(micro), move.strength(micro)
    q = _drawn(move, micro, asked.value, every=every, sampled=sampled)
    edge, most = move.edge(micro, every=every, sampled=q), _most(move, micro, every=every, sampled=q)
    decided = _decided(matched, first, old.noise)
    stable_rate = _largest_stable_rate(seen, own.momentum)
    notes = [] if decided else [_undecided_note(seen, matched, first, learning_rate)]
    notes += _edge_notes(move, micro, asked.value, edge, q, whole=every > 1 or sampled == new_batch_size // micro)
    if factors is not None and rate != learning_rate and not math.isnan(matched.value):
        notes.append(
            f"ε' = {matched.value:.4g} is matched to first order, λ with a calibration and F at both rates, so λ is "
            "not 0 at that rate: they are two ways, not two parts of one."
        )
    if own.strength:
        notes.append(f"the optimizer's own penalty of strength {own.strength:g} is no part of what is matched.")
    linear = learning_rate * new_batch_size / batch_size
    rates = {"the rate": rate, "the matched rate": matched.value, "linear scaling to": linear}
    notes += _stability_notes(stable_rate, own.momentum, rates)
    if asked.high < 0:
        notes.append(
            f"λ would be {asked.value:.3g}: (ε', B') regularizes more than (ε, B) already; lower the rate or raise the "
            "batch."
        )
    stops, sharpest = seen.noise_scale, seen.largest_eigenvalue
    shown = {
        "matched_learning_rate": matched,
        "strength": asked.between(-math.inf, most).between(0.0, math.inf),  # no λ takes a surplus back
        "first_order_strength": first.between(0.0, math.inf),
        "linear_scaling_stops": None if stops is None else stops.scaled(new.noise / new.full),
        "stability": None if sharpest is None else sharpest.scaled(rate),
    }
    values: dict[str, Any] = {name: None if found is None else found.value for name, found in shown.items()}
    return Advice(
        learning_rate=learning_rate,
        batch_size=batch_size,
        new_learning_rate=rate,
        new_batch_size=new_batch_size,
        micro_batch_size=micro,
        sampled=q,
        every=every,
        **values,
        noise_dominated_strength=micro * (old.noise / batch_size - new.noise / new_batch_size),
        largest_stable_strength=edge,
        largest_stable_learning_rate=stable_rate,
        finite_rate_factor=None if factors is None else factors[0],
        new_finite_rate_factor=None if factors is None else factors[1],
        intervals={name: (found.low, found.high) for name, found in shown.items() if found is not None},
        decided=decided,
        held=asked.value > most,
        momentum=own.momentum,
        weight_decay=own.weight_decay,
        alternatives=_alternatives(move, micro, every=every, sampled=q),
        notes=tuple(notes),
    )


# -- which micro-batches ----------------------------------------------------------------------------------------------
def _share(sampled: int | None) -> float:
    return SHARE_OF_EDGE if sampled is None else SHARE_OF_SAMPLED_EDGE


def _most(move: Move, micro: int, *, every: int, sampled: int | None) -> float:
    """The largest strength that is advised; infinite where the edge was not measured."""
    edge = move.edge(micro, every=every, sampled=sampled)
    return math.inf if edge is None else _share(sampled) * edge


def _drawn(move: Move, micro: int, asked: float, *, every: int, sampled: int | None) -> int | None:
    """q, the one that was asked for or the fewest micro-batches whose edge leaves room; None: all of them."""
    batches = move.sizes[1] // micro
    if sampled is not None:
        sampling_factor(batches, sampled)  # refuses what is no number of them
        return None if sampled == batches else int(sampled)
    if every > 1 or not asked > 0 or not move.knows_draws(micro):
        return None
    powers = [2**power for power in range((batches - 1).bit_length())]
    return next((q for q in powers if asked <= _most(move, micro, every=1, sampled=q)), None)


def _alternatives(move: Move, micro: int, *, every: int, sampled: int | None) -> tuple[Alternative, ...]:
    """Equal expected regularization on micro-batches of b, 4b, 16b … up to the whole batch, and the most advised."""
    sizes, found = [micro], []
    while sizes[-1] < move.sizes[1]:
        sizes.append(min(4 * sizes[-1], move.sizes[1]))
    for size in sizes:
        strength = move.strength(size).between(0.0, math.inf).value
        whole = {k: _most(move, size, every=k, sampled=None) for k in sorted({*EVERY, every})}
        q = sampled if size == micro else _drawn(move, size, strength, every=1, sampled=None)
        drawn = {} if q is None else {q: _most(move, size, every=every if size == micro else 1, sampled=q)}
        found.append(Alternative(size, strength, whole, drawn))
    return tuple(found)


def _edge_notes(
    move: Move, micro: int, asked: float, edge: float | None, sampled: int | None, *, whole: bool
) -> list[str]:
    """What holds λ back, and what was not measured; `whole`: that all micro-batches are penalised was asked for."""
    if move.finite_rate_factors is None:
        return ["the edge was not measured: measure with learning_rate=… or curvature=True."]
    notes = []
    if edge == 0 and asked > 0:
        notes.append(
            f"matching asks for {asked:.3g}, but no λ is stable: the step is unstable without a penalty; lower ε'."
        )
    elif edge is not None and asked > _share(sampled) * edge:
        star = "λ*" if sampled is None else f"λ*({sampled})"
        notes.append(
            f"λ is held to {_share(sampled):g} {star} = {_share(sampled) * edge:.3g}; matching asks for {asked:.3g}, "
            "so a part of the regularization is not made up."
        )
    if not whole and asked > 0 and move.sizes[1] >= 2 * micro and not move.knows_draws(micro):
        so = "all are penalised" if sampled is None else f"λ*({sampled}) is not known"
        notes.append(
            f"how curvature differs between micro-batches of {micro} was not measured, so {so}: measure with "
            f"batch_size={micro} among the sizes, and at least 8 such micro-batches."
        )
    return notes


# -- what the sample and the rate say ---------------------------------------------------------------------------------
def _decided(matched: Estimate, strength: Estimate, effective_rate: float) -> bool:
    """Whether the sample settles the advice: ε' within a factor of two, λ within half of the rate that it replaces."""
    wide = not matched.low > 0 or matched.high > TOO_WIDE * matched.low
    return not (wide or not strength.high - strength.low <= effective_rate)


def _undecided_note(seen: Measurement, matched: Estimate, strength: Estimate, learning_rate: float) -> str:
    assert seen.full_gradient_squared_norm is not None
    spread = max(matched.high - matched.low, strength.high - strength.low) / learning_rate
    by_width = math.ceil(seen.sample * max(spread, 1.5) ** 2) if math.isfinite(spread) else seen.sample
    by_norm = examples_needed(seen.sample, seen.train_size, seen.full_gradient_squared_norm)
    return f"can't tell from this sample: use at least {min(seen.train_size, max(by_width, by_norm))} examples."


def _largest_stable_rate(seen: Measurement, beta: Momentum) -> float | None:
    """2/λ_max without momentum; None where λ_max was not measured, infinite where nothing is curved upwards."""
    found = seen.largest_eigenvalue
    if found is None or not found.value > 0:
        return None if found is None else math.inf
    return largest_stable_learning_rate(found.value, step=Step(momentum=beta.beta, nesterov=beta.nesterov))


def _stability_notes(largest: float | None, beta: Momentum, rates: dict[str, float]) -> list[str]:
    if largest is None:
        return ["stability was not measured: measure with learning_rate=… or curvature=True."]
    edge = f"{'2/λ_max' if beta.beta == 0 else 'the edge'} = {largest:.3g}"
    return [
        f"{words} ε' = {value:.4g} is beyond {edge}: unstable at the measured point; training moves to flatter places "
        "or fails."
        for words, value in rates.items()
        if value >= largest
    ]
