"""The arguments of `measure`, checked: numbers, batch sizes, the model with its data, and each example."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit._util.arguments import whole_number
from tacit._util.errors import InputError
from tacit._util.random_generators import generator
from tacit.problem import LossFunction, Problem

FIRST = 32  # examples on which a problem is tried at construction
FEWEST = 3  # sampled examples: leaving one out must leave a variance
COARSE = 1e-4  # precisions with a larger unit in the last place: bfloat16, float16


# -- numbers ----------------------------------------------------------------------------------------------------------
def check_numbers(confidence: float, learning_rate: float | None) -> None:
    if not 0 < confidence < 1:
        raise InputError(f"confidence={confidence}; expected a number between 0 and 1, such as 0.95.")
    if learning_rate is not None and not (math.isfinite(learning_rate) and learning_rate > 0):
        raise InputError(f"learning_rate={learning_rate}; expected a positive number.")


def batch_sizes(batch_size: int | Sequence[int] | None, problem: Any, train_size: int) -> list[int]:
    if batch_size is None:
        fixed = {len(batch) for batch in problem.batches} if isinstance(problem, Problem) else set()
        batch_size = sorted(fixed) if fixed else min(32, train_size)
    several = isinstance(batch_size, (list, tuple, set, range)) or (np.ndim(batch_size) == 1)
    sizes = [whole_number("batch_size", size) for size in (batch_size if several else [batch_size])]  # type: ignore[union-attr]
    if not sizes:
        raise InputError("batch_size is an empty list; expected at least one batch size.")
    for size in sizes:
        if not 1 <= size <= train_size:
            raise InputError(f"batch_size={size} with {train_size} examples; expected 1 to {train_size}.")
    return sizes


# -- the problem ------------------------------------------------------------------------------------------------------
def draw(count: int, sample: int, seed: int) -> Tensor:
    """Numbers of examples: all, or so many without replacement."""
    if sample == count:
        return torch.arange(count)
    return torch.randperm(count, generator=generator(seed, "probe"))[:sample].sort().values


def pose(
    problem: Problem | nn.Module,
    loss_fn: LossFunction | None,
    dataset: Any,
    sample: int | None,
    weight_decay: float,
    dtype: torch.dtype | None,
    seed: int,
) -> tuple[Problem, Tensor, int]:
    """The problem, the numbers of its examples in the dataset, and N. Of an indexed dataset only a sample is read."""
    if isinstance(problem, Problem):
        if loss_fn is not None or dataset is not None or weight_decay or dtype is not None:
            raise InputError("a Problem has its own loss, dataset, weight decay and dtype; expected none beside it.")
        _check_sizes(problem.train_size, sample)
        return problem, torch.arange(problem.train_size), problem.train_size
    if not isinstance(problem, nn.Module):
        raise InputError(f"found a {type(problem).__name__}; expected a tacit.Problem, or a model, loss and dataset.")
    if loss_fn is None or dataset is None:
        raise InputError("a model alone cannot be measured; expected measure(model, loss_fn, dataset).")
    if any(value.is_complex() for value in problem.parameters()):
        raise InputError("the model has complex parameters; expected real ones.")
    pair = isinstance(dataset, (tuple, list))
    train_size = _length(dataset[0] if pair and dataset else dataset)
    _check_sizes(train_size, sample)
    numbers = torch.arange(train_size)
    if sample is not None and sample < train_size and not pair:
        numbers = draw(train_size, sample, seed)
        dataset = torch.utils.data.Subset(dataset, numbers.tolist())
    first = [*range(min(len(numbers), FIRST))]
    try:
        posed = Problem(problem, loss_fn, dataset, batches=[first], weight_decay=weight_decay, dtype=dtype)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the model or the loss refuses the first {len(first)} examples: {first_line(error)} "
            "Expected inputs that fit the model and targets that fit the loss."
        ) from error
    return posed, numbers, train_size


def _check_sizes(train_size: int, sample: int | None) -> None:
    if train_size == 0:
        raise InputError("the dataset is empty; expected at least two examples.")
    if train_size == 1:
        raise InputError("the dataset has one example; expected at least two: one has no variance between examples.")
    if sample is not None and whole_number("sample", sample) < min(FEWEST, train_size):
        raise InputError(f"sample={sample}; expected at least {FEWEST} examples: fewer have no interval.")


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise InputError(
            f"the dataset is a {type(dataset).__name__} without a length; expected a pair of tensors or a torch "
            "Dataset that can be indexed. Collect a stream into tensors first."
        ) from None


def precision_notes(problem: Problem) -> list[str]:
    coarse = {value.dtype for value in problem.parameters.values() if torch.finfo(value.dtype).eps > COARSE}
    names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in coarse))
    if not coarse:
        return []
    return [
        f"the model is in {names}: two or three digits are right, and the self-test is blind. Use dtype=torch.float32."
    ]


# -- examples that are refused ----------------------------------------------------------------------------------------
@contextmanager
def refusals_explained(problem: Problem, examples: Tensor, numbers: Tensor) -> Iterator[None]:
    """What torch raises about one of the examples becomes a sentence; `numbers` are theirs in the whole dataset."""
    try:
        yield
    except (IndexError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        bad = _first_refused(problem, examples)
        where = "a minibatch" if bad is None else f"example {int(numbers[bad])}"
        raise InputError(
            f"the model or the loss refuses {where}: {first_line(error)} "
            "Expected inputs that fit the model and targets that fit the loss."
        ) from error


def _first_refused(problem: Problem, examples: Tensor) -> int | None:
    """An example whose loss raises, by halving; None when none does alone, or when others do as well."""
    left = examples
    while len(left) > 1:
        half = left[: len(left) // 2]
        left = half if _refused(problem, half) else left[len(half) :]
    if not _refused(problem, left) or _refused(problem, examples[examples != left][:1]):
        return None
    return int(left[0])


def _refused(problem: Problem, examples: Tensor) -> bool:
    try:
        with torch.no_grad():
            for some in examples.split(256):
                problem.loss(problem.parameters, some)
    except (IndexError, RuntimeError, ValueError):
        return True
    return False


def check_finite(numbers: Tensor, losses: np.ndarray, squares: np.ndarray) -> None:
    """Refuse losses and gradients that are not finite, by the number of the example."""
    for words, found, remedy in (
        ("loss", losses, "Look at its input and target (an ignored label?), or at the parameters."),
        ("squared gradient norm", squares, "Look at its input, or say dtype=torch.float64."),
    ):
        bad = np.flatnonzero(~np.isfinite(found))
        if len(bad):
            raise InputError(
                f"the {words} of example {int(numbers[bad[0]])} is {found[bad[0]]}, and so for {len(bad)} of "
                f"{len(found)} examples; expected finite numbers. {remedy}"
            )


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    found = lines[0] if lines else type(error).__name__
    return found if found.endswith((".", "!", "?")) else f"{found}."
