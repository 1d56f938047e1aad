"""`measure`: C_reg, ‖∇C‖², Γ and the noise scale of a model, exact or from a sample, each with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit._util import tree
from tacit._util.arguments import whole_number
from tacit.diagnostics import _measure_arguments as arguments
from tacit.diagnostics import estimates
from tacit.diagnostics.curvature import largest_eigenvalue
from tacit.diagnostics.estimates import Estimate, SampleMoments, estimate, inverse, mean_estimate
from tacit.diagnostics.measurement import Measurement
from tacit.diagnostics.per_example import ExampleGradients
from tacit.diagnostics.self_test import SelfTest, halves_differ, self_test
from tacit.diagnostics.spectrum import noise_spectrum
from tacit.diagnostics.tails import tail_index
from tacit.problem import LossFunction, Problem

HALVED = 32  # examples in the exact part of the self-test


def measure(
    problem: Problem | nn.Module,
    loss_fn: LossFunction | None = None,
    dataset: Any = None,
    *,
    batch_size: int | Sequence[int] | None = None,
    sample: int | None = None,
    learning_rate: float | None = None,
    curvature: bool | None = None,
    weight_decay: float = 0.0,
    confidence: float = 0.95,
    chunk_size: int = 256,
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> Measurement:
    """What SGD regularizes at the model's present parameters.

    C_reg(B) = (‖∇C‖² + (N−B)/(N−1) Γ/B)/4,   Γ = (1/N) Σⱼ ‖∇Cⱼ − ∇C‖²                                     (Eq. 22)

    Give a `Problem`, or a model, a loss that is a mean over examples, and a dataset. Without `sample` all examples
    are used and the numbers are exact; with it, that many are drawn without replacement, estimates are unbiased, and
    intervals have the finite-population factor. One pass, two with a sample (the second is for the intervals), and one
    over at most 32 minibatches for the self-test. `curvature` adds the largest Hessian eigenvalue, which costs tens of
    passes; by default it is computed when a `learning_rate` is given.

    The model is not changed. It is measured in the mode that it is in: call `model.eval()` where dropout is meant to
    be off. Not a statement about a whole run: the numbers change along training.

    >>> draws = torch.Generator().manual_seed(0)
    >>> inputs, targets = torch.randn(64, 3, generator=draws), torch.randn(64, 1, generator=draws)
    >>> seen = measure(nn.Linear(3, 1), nn.functional.mse_loss, (inputs, targets), batch_size=[8, 64])
    >>> c, gamma = seen.full_gradient_squared_norm.value, seen.gradient_covariance_trace.value
    >>> abs(seen.implicit_regularizer[8].value - (c + 56 / 63 * gamma / 8) / 4) < 1e-12
    True
    """
    seed, chunk_size = whole_number("seed", seed), whole_number("chunk_size", chunk_size, at_least=1)
    arguments.check_numbers(confidence, learning_rate)
    posed, numbers, train_size = arguments.pose(problem, loss_fn, dataset, sample, weight_decay, dtype, seed)
    sizes = arguments.batch_sizes(batch_size, problem, train_size)
    examples = arguments.draw(posed.train_size, min(sample or posed.train_size, posed.train_size), seed)
    common: dict[str, Any] = {"train_size": train_size, "sample": len(examples), "confidence": confidence}
    common |= {"learning_rate": learning_rate, "largest_eigenvalue": None}
    notes = arguments.precision_notes(posed)
    with arguments.refusals_explained(posed, examples, numbers):
        if curvature or (curvature is None and learning_rate is not None):
            found, missing = _curvature(posed, examples, sizes, common, chunk_size, seed)
            common |= found
            notes += missing
        halves = halves_differ(posed, examples[:HALVED])
        if halves[0] > halves[1]:
            return _mixed(posed, examples, sizes, halves, common, notes, seed)
        engine = ExampleGradients(posed, chunk_size=chunk_size)
        losses, squares, moments = _moments(engine, examples, train_size)
        arguments.check_finite(numbers[examples], losses, squares)
        if engine.mixing is not None:
            return _mixed(posed, examples, sizes, engine.mixing, common, notes, seed)
        tested = self_test(
            posed, examples, batch_size=min(*sizes, len(examples) // 2), halves=halves,
            in_sample=(moments.mean_squared_norm, moments.variance), confidence=confidence, seed=seed,
        )  # fmt: skip
    return _result(moments, losses, squares, sizes, tested, engine.how, posed.weight_decay, common, notes)


def _curvature(
    posed: Problem, examples: Tensor, sizes: list[int], common: dict[str, Any], chunk_size: int, seed: int
) -> tuple[dict[str, Any], list[str]]:
    """λ_max and the spectrum, or a note: some operations cannot be differentiated twice; the rest does not need it."""
    shared = {"train_size": common["train_size"], "chunk_size": chunk_size, "seed": seed}
    try:
        found, direction = largest_eigenvalue(posed, examples, confidence=common["confidence"], **shared)
    except RuntimeError as error:
        return {}, [f"λ_max was not found: {arguments.first_line(error)}"]
    spectrum = noise_spectrum(posed, examples, batch_sizes=sizes, largest=found.value, direction=direction, **shared)
    return {"largest_eigenvalue": found, "spectrum": spectrum}, []


def _moments(
    engine: ExampleGradients, examples: Tensor, train_size: int
) -> tuple[np.ndarray, np.ndarray, SampleMoments]:
    """(losses, ‖∇Cⱼ‖², moments): one pass, and a second for each example's part in them if it is a sample."""
    losses, squares = [], []
    total = tree.map_tree(torch.zeros_like, engine.problem.parameters)
    for chunk in engine.chunks(examples):
        losses.append(chunk.losses)
        squares.append(chunk.squared_norms)
        total = tree.add(total, chunk.gradient_sum)
    count = len(examples)
    mean = tree.scale(total, 1 / count)
    decayed = tree.add(mean, engine.problem.parameters, scale=engine.problem.weight_decay)
    own, with_decay = _squared_norm(mean), _squared_norm(decayed)
    norms = torch.cat(squares)
    variance = max(0.0, float(norms.sum()) - count * own) / (count - 1)
    spreads = projections = None
    if count < train_size:
        along = engine.products(examples, mean, decayed)
        spreads = (norms - 2 * along[:, 0] + own).clamp_min(0.0).numpy()
        projections = (along[:, 1] - along[:, 1].mean()).numpy()
    moments = SampleMoments(count, train_size, with_decay, variance, spreads, projections)
    return torch.cat(losses).numpy(), norms.numpy(), moments


def _result(
    moments: SampleMoments,
    losses: np.ndarray,
    squares: np.ndarray,
    sizes: list[int],
    tested: SelfTest,
    methods: dict[str, str],
    weight_decay: float,
    common: dict[str, Any],
    known: list[str],
) -> Measurement:
    confidence, train_size = common["confidence"], moments.train_size
    signal = estimate(moments, estimates.signal_statistic(train_size), confidence=confidence)
    gamma = estimate(moments, estimates.covariance_statistic(train_size), confidence=confidence, logarithmic=True)
    squared_norm = estimate(moments, estimates.gradient_squared_norm, confidence=confidence)
    tail = tail_index(np.sqrt(squares), confidence=confidence)
    notes = [*known, *_notes(methods, tail, moments, squared_norm)]
    if weight_decay:
        notes.append("weight decay is in ‖∇C‖² and C_reg; it cancels in Γ, and is left out of C and the tail index.")
    return Measurement(
        full_loss=mean_estimate(losses, train_size=train_size, confidence=confidence),
        full_gradient_squared_norm=squared_norm,
        gradient_covariance_trace=gamma,
        implicit_regularizer={
            size: estimate(
                moments, estimates.regularizer_statistic(size, train_size), confidence=confidence, logarithmic=True
            )
            for size in sizes
        },
        noise_scale=inverse(signal),
        signal_to_noise={size: signal.scaled(_noise_share(size, train_size)) for size in sizes if size < train_size},
        tail_index=tail,
        self_test=tested,
        methods=methods,
        notes=tuple(notes),
        moments=moments,
        **common,
    )


def _noise_share(batch_size: int, train_size: int) -> float:
    """One over (N−B)/(N−1)/B."""
    return batch_size * (train_size - 1) / (train_size - batch_size)


def _notes(methods: dict[str, str], tail: Estimate | None, moments: SampleMoments, squared_norm: Estimate) -> list[str]:
    notes = []
    for how, words in (("vmap", "by vmap"), ("one by one", "one by one")):
        names = [name for name, used in methods.items() if used == how]
        if names:
            shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
            notes.append(f"no factors for {shown}: example gradients formed {words}, slower.")
    if tail is not None and tail.high < 2:
        notes.append(f"per-example norms have a heavy tail (α < {tail.high:.2g}): Γ itself may not settle.")
    elif tail is not None and tail.value < 4 and not moments.exact:
        notes.append(f"per-example norms have a tail index of {tail}: the interval of Γ is optimistic below 4.")
    if not moments.exact and squared_norm.low <= 0:
        needed = examples_needed(moments.sample, moments.train_size, squared_norm)
        notes.append(f"can't tell ‖∇C‖² from zero with this sample: use at least {needed} examples.")
    if squared_norm.value < 0:
        notes.append(
            f"‖∇C‖² = {squared_norm.value:.3g} is an unbiased estimate, the sample's ‖ḡ‖² minus the variance of ḡ, and "
            f"can come out below zero; the true one is between 0 and {squared_norm.high:.3g}."
        )
    return notes


def examples_needed(sample: int, train_size: int, squared_norm: Estimate) -> int:
    """How many examples would make the half-width of ‖∇C‖² half of its value; at most all.

    The width shrinks as 1/√n at least. An estimate below zero says that ‖∇C‖² is small beside its upper end: a quarter
    of that is then taken for its value.
    """
    half = squared_norm.high - max(squared_norm.value, 0.0)
    size = max(squared_norm.value, squared_norm.high / 4, 1e-300)
    return min(train_size, max(sample + 1, math.ceil(sample * (2 * half / size) ** 2)))


def _mixed(
    problem: Problem,
    examples: Tensor,
    sizes: list[int],
    halves: tuple[float, float],
    common: dict[str, Any],
    known: list[str],
    seed: int,
) -> Measurement:
    """All that can be measured of a model that mixes examples: C_reg of real minibatches, with their spread."""
    tests = {size: _test_of_mixed(problem, examples, size, halves, common, seed) for size in sizes}
    kept = {size: test for size, test in tests.items() if test is not None}
    loss = float(problem.loss(problem.parameters, examples)) - _decay(problem)
    notes = [
        *known,
        "C_reg is a mean over real minibatches, its interval from their spread; C is of the examples seen.",
    ]
    lost = [str(size) for size in sizes if size not in kept]
    if lost:
        notes.append(f"no C_reg for batches of {', '.join(lost)}: the sample has {len(examples)} examples.")
    return Measurement(
        full_loss=Estimate(loss, loss, loss),
        full_gradient_squared_norm=None,
        gradient_covariance_trace=None,
        implicit_regularizer={size: test.measured for size, test in kept.items()},
        noise_scale=None,
        signal_to_noise={},
        tail_index=None,
        self_test=next(iter(kept.values()), SelfTest(0, 0, *halves, Estimate(loss, loss, loss), None, None, 0.0)),
        methods={},
        notes=tuple(notes),
        moments=None,
        **common,
    )


def _test_of_mixed(
    problem: Problem, examples: Tensor, size: int, halves: tuple[float, float], common: dict[str, Any], seed: int
) -> SelfTest | None:
    if size > len(examples):
        return None
    return self_test(
        problem, examples, batch_size=size, halves=halves, in_sample=None, confidence=common["confidence"], seed=seed
    )


def _decay(problem: Problem) -> float:
    return 0.5 * problem.weight_decay * _squared_norm(problem.parameters)


def _squared_norm(tree: tree.Tree) -> float:
    return sum(float(torch.linalg.vector_norm(leaf, dtype=torch.float64)) ** 2 for leaf in tree.values())
