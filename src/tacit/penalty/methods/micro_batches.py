"""The penalised gradient of a batch in micro-batches: in one pass where that is possible, one after another otherwise.

    (1/K) Σₖ ( Ĉₖ + (λ/4)‖∇Ĉₖ‖² )

One pass costs about as much as the penalty of the whole batch; K passes cost K times the overhead of small ones. One
pass is compared with the loop on the first step, and again now and then; where it cannot be made, or gives anything
else, the loop is taken from then on, and that is logged once.
"""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit._errors import InputError
from tacit.layers.kinds import LinearSite
from tacit.layers.micro_batch_capture import NotInOnePassError, UsesChangedError
from tacit.layers.modes import modes_on
from tacit.penalty.methods.one_pass import OnePass
from tacit.penalty.objective import Outcome, Task
from tacit.penalty.pieces import Piece, pieces, row_tensors, with_tensors
from tacit.penalty.surroundings.state import RandomState

_log = logging.getLogger("tacit")
Result = tuple[list[Outcome], list[LinearSite]]
Loop = Callable[[Task, Sequence[Piece]], Result]

# Largest difference between the two, relative to the gradient's length: roundings of the coarsest numbers in use.
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}


def split(batch: tuple[Any, ...], size: int | None, caller: str) -> list[Piece]:
    """The batch in micro-batches of `size` rows, the last one of those that remain; whole where there is no size."""
    if size is None:
        return [Piece(batch)]
    if not batch:
        raise InputError(
            f"micro_batch_size={size} but got no batch; "
            f"expected {caller}(closure, inputs, targets) with a closure of two arguments."
        )
    return pieces(batch, size)


class MicroBatches:
    """What one penalty remembers about its micro-batches: whether one pass is possible, and when it was compared."""

    def __init__(self) -> None:
        self.in_one_pass = True
        self.compared = False
        self._never_sites: set[int] = set()

    def run(
        self,
        task: Task,
        closure: Callable[..., Tensor],
        pieces: Sequence[Piece],
        *,
        loop: Loop,
        compare: bool,
        keep_factors: bool = False,
    ) -> Result:
        """Outcomes of the step. `task` has the weight of the whole batch and no closures; `loop` takes K passes.

        Pieces of one size go in one pass, a smaller last one by itself. `compare` asks for a comparison at this step;
        the first step is compared anyway. Closures that draw random numbers cannot be compared: one pass draws others
        than the loop, from the same distribution.
        """
        equal = [piece for piece in pieces if piece.share == pieces[0].share]
        if not self.in_one_pass or len(equal) == 1:
            return loop(task, pieces)
        rest = pieces[len(equal) :]
        share = 1 - sum(piece.share for piece in rest)
        outcomes, sites = self._equal_pieces(task, closure, equal, share, loop, compare, keep_factors)
        if rest:
            more, more_sites = loop(task, rest)
            return outcomes + more, sites + more_sites
        return outcomes, sites

    def _equal_pieces(
        self,
        task: Task,
        closure: Callable[..., Tensor],
        pieces: Sequence[Piece],
        share: float,
        loop: Loop,
        compare: bool,
        keep_factors: bool,
    ) -> Result:
        """Outcomes of pieces of one size, which have this share of the batch's rows."""
        start = RandomState.now(task.model, task.generators, buffers=False)
        whole = task if share == 1 else dataclasses.replace(task, weight=task.weight * share)
        try:
            attempt = self._prepare(whole, closure, pieces, start, keep_factors)
        except Exception as error:  # whatever it is, the loop either works or raises an error of the closure itself
            start.restore()
            result = loop(task, pieces)
            self._give_up(str(error) if isinstance(error, NotInOnePassError) else _first_sentence(error))
            return result
        if (self.compared and not compare) or start.torch_has_drawn():
            return [dataclasses.replace(attempt.outcome, share=share)], attempt.finish(whole)
        return self._compare(task, whole, attempt, start, pieces, loop)

    def _prepare(
        self,
        task: Task,
        closure: Callable[..., Tensor],
        pieces: Sequence[Piece],
        start: RandomState,
        keep_factors: bool,
    ) -> OnePass:
        rows = [row_tensors(piece.batch) for piece in pieces]
        batch = [torch.cat(parts).unflatten(0, (len(pieces), len(parts[0]))) for parts in zip(*rows, strict=True)]
        first = pieces[0].batch

        def of_tensors(*tensors: Tensor) -> Tensor:
            return closure(*with_tensors(first, tensors))

        attempt = partial(OnePass, task, of_tensors, batch, keep_factors=keep_factors)
        try:
            made = attempt(never_sites=self._never_sites)
        except UsesChangedError:
            start.restore()
            made = attempt(never_sites=self._never_sites)
        if random.getstate() != start.python or not _same(np.random.get_state(legacy=True), start.numpy):
            raise NotInOnePassError("the closure draws from Python's or numpy's random numbers")
        return made

    def _compare(
        self, task: Task, whole: Task, attempt: OnePass, start: RandomState, pieces: Sequence[Piece], loop: Loop
    ) -> Result:
        """Both ways, without a trace of the first; the loop's gradients are the ones that are used."""
        ours, theirs = _Collector(), _Collector()
        attempt.finish(dataclasses.replace(whole, deliver=ours), form_weight_gradients=True)
        start.restore()
        outcomes, sites = loop(dataclasses.replace(task, deliver=theirs), pieces)
        self.compared = True
        apart = _relative_distance(ours.gradients, theirs.gradients)
        norm = torch.stack([outcome.gradient_squared_norm for outcome in outcomes]).mean()
        of_norm = abs(float(attempt.outcome.gradient_squared_norm / norm) - 1) if float(norm) else 0.0
        tolerance = _TOLERANCES.get(attempt.coarsest, 1e-3)
        if max(apart, of_norm) > tolerance:
            self._give_up(f"one pass gives a gradient that differs by {max(apart, of_norm):.1g}")
        if self.in_one_pass:  # a record has the same entries at compared steps as at all others
            outcomes = [dataclasses.replace(outcome, part=attempt.outcome.part) for outcome in outcomes]
        leaves = list(theirs.gradients)
        with modes_on():
            (task.deliver or torch.autograd.backward)(leaves, [theirs.gradients[leaf] for leaf in leaves])
        return outcomes, sites

    def _give_up(self, reason: str) -> None:
        self.in_one_pass = False
        _log.warning("micro-batches are computed one after another, which is slower than in one pass: %s.", reason)


class _Collector:
    """Gradients by leaf, added up, in place of `.grad`."""

    def __init__(self) -> None:
        self.gradients: dict[Tensor, Tensor] = {}

    def __call__(self, leaves: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        for leaf, gradient in zip(leaves, gradients, strict=True):
            known = self.gradients.get(leaf)
            self.gradients[leaf] = gradient if known is None else known + gradient


def _relative_distance(ours: dict[Tensor, Tensor], theirs: dict[Tensor, Tensor]) -> float:
    apart = size = 0.0
    for leaf in {**ours, **theirs}:
        a, b = (found.get(leaf, torch.zeros_like(leaf)).to_dense().double() for found in (ours, theirs))
        apart, size = apart + float((a - b).square().sum()), size + float(b.square().sum())
    return (apart / size) ** 0.5 if size else float(apart > 0)


def _same(left: Any, right: Any) -> bool:
    """Whether two states of numpy's global generator are equal: names, arrays and numbers."""
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def _first_sentence(error: Exception) -> str:
    text = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
    return f"torch.vmap says {text!r}" if text else type(error).__name__
