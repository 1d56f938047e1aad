"""What `match` cannot answer is refused here, in one sentence each."""

from __future__ import annotations

import math

import torch

from tacit._util.arguments import finite_number, whole_number
from tacit._util.errors import InputError
from tacit.diagnostics.measurement import Measurement
from tacit.diagnostics.self_test import halves_differ
from tacit.problem import Problem

FEW = 32  # examples that show whether a model mixes them
MIXED = (
    "the measured model mixes the examples of a minibatch (batch norm), so C_reg has no formula in B; expected a model "
    "without it, or one measured in evaluation mode. tacit.search_strength needs no measurement."
)


def check_match(
    train_size: int | None,
    learning_rate: float | None,
    batch_size: int,
    new_batch_size: int | None,
    new_learning_rate: float | None,
    micro_batch_size: int | None,
) -> None:
    """Refuse what `match` cannot answer; `tacit advise` asks before it measures for half a minute."""
    if new_batch_size is None and new_learning_rate is None:
        raise InputError("there is nothing to match; expected new_batch_size, new_learning_rate or both.")
    if learning_rate is None:
        raise InputError("there is no learning_rate; expected one, or an optimizer that has it.")
    for name, rate in (("learning_rate", learning_rate), ("new_learning_rate", new_learning_rate)):
        if rate is not None:
            finite_number(name, rate, positive=True)
    sizes = (("batch_size", batch_size), ("new_batch_size", new_batch_size), ("micro_batch_size", micro_batch_size))
    for name, size in sizes:
        if size is None:
            continue
        if whole_number(name, size, at_least=1) > (train_size or math.inf):
            raise InputError(f"{name}={size} with {train_size} examples; expected 1 to {train_size}.")


def check_problem(problem: Problem) -> None:
    """Refuse, from a few examples, a model whose measurement `match` would refuse."""
    try:
        difference, rounding = halves_differ(problem, torch.arange(min(FEW, problem.train_size)))
    except (IndexError, RuntimeError, ValueError):
        return  # `measure` explains what the model refuses
    if difference > rounding:
        raise InputError(MIXED)


def check_measurement(seen: Measurement) -> None:
    if not isinstance(seen, Measurement):
        raise InputError(f"found a {type(seen).__name__}; expected the result of tacit.measure.")
    if not seen.per_example:
        raise InputError(MIXED)
