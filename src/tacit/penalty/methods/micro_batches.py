"""The penalised gradient of a batch in micro-batches: in one pass where that is possible, one after another otherwise.

    (1/K) Σₖ ( Ĉₖ + (λ/4)‖∇Ĉₖ‖² )

One pass costs about as much as the penalty of the whole batch; K passes cost K times the overhead of small ones. One
pass is compared with the loop on the first step, and again now and then; where it cannot be made, or gives anything
else, the loop is taken from then on, and that is logged once.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor

from tacit._util.tree import real
from tacit.layers.kinds import LinearUse
from tacit.layers.micro_batch_capture import NotInOnePassError, UsesChangedError
from tacit.penalty.methods.one_pass import OnePass
from tacit.penalty.methods.row_mean import RowMean
from tacit.penalty.objective import Objective, Outcome
from tacit.penalty.pieces import Cut, Piece, row_tensors, with_tensors
from tacit.penalty.sink import GradientSum
from tacit.penalty.surroundings.buffers import buffers_kept
from tacit.penalty.surroundings.state import RandomState

_log = logging.getLogger("tacit")
Result = tuple[list[Outcome], list[LinearUse]]
Loop = Callable[[Objective, Sequence[Piece]], Result]

# Largest difference between the two, relative to the gradient's length: roundings of the coarsest numbers in use.
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}


class MicroBatches:
    """What one penalty remembers about its micro-batches: whether one pass is possible, and when it was compared."""

    def __init__(self) -> None:
        self.row_mean = RowMean()
        self.in_one_pass = True
        self.compared = self.buffers_compared = False
        self._never_layers: set[int] = set()

    def run(
        self,
        objective: Objective,
        closure: Callable[..., Tensor],
        cut: Cut,
        *,
        loop: Loop,
        step: int,
        check_every: int,
        one_pass: Callable[[], AbstractContextManager[None]] | None,
        keep_factors: bool = False,
    ) -> Result:
        """Outcomes of the step. `objective` has the weight of the whole batch and no closures; `loop` takes K passes.

        `one_pass` is what one pass is run in; None where the method has none. Where pieces were drawn, or the loss is
        no mean over rows, its own gradient is that of the whole batch.
        """
        if self.row_mean.due(step, check_every):
            self.row_mean.check(objective, closure, cut, step=step)
        compare = bool(check_every) and step % check_every == 0

        def run(objective: Objective) -> Result:
            if one_pass is None or len(cut.pieces) == 1:
                return loop(objective, cut.pieces)
            with one_pass():
                return self._run(objective, closure, cut.pieces, loop, compare, keep_factors)

        if not cut.drawn and self.row_mean.holds:
            return run(objective)
        of_penalty = of_loss = objective.deliver
        if objective.applied is not None and objective.deliver is not None:  # both are delivered apart
            of_penalty, of_loss = objective.applied.seeing(objective.deliver, objective.factor)
        # The plain pass comes last, as a plain step has it: with its random numbers, and the only one to write buffers.
        # Python's and numpy's numbers take longer to keep than a small model to step, and sampling is for its price.
        begin = time.perf_counter()
        start = RandomState.now(objective.model, objective.generators, buffers=False, python=not cut.drawn)
        with buffers_kept(objective.modules):
            outcomes, uses = run(objective.but(loss_weight=0.0, deliver=of_penalty, applied=None))
        start.restore()
        middle = time.perf_counter()
        last = objective.but(strength=0.0, deliver=of_loss)
        if objective.aside is not None and objective.applied is None and not objective.aside.in_half_precision:
            last = last.but(deliver=None, rest=objective.aside)  # one run of the engine less
        (plain,), more = loop(last, [cut.whole])
        end = time.perf_counter()
        price = (end - begin) / (end - middle) if plain.loss.device.type == "cpu" else None
        return [dataclasses.replace(outcome, loss=plain.loss, price=price) for outcome in outcomes], uses + more

    def _run(
        self,
        objective: Objective,
        closure: Callable[..., Tensor],
        pieces: Sequence[Piece],
        loop: Loop,
        compare: bool,
        keep_factors: bool,
    ) -> Result:
        """Pieces of one size go in one pass, a smaller last one by itself.

        `compare` asks for a comparison at this step; the first step is compared anyway. Closures that draw random
        numbers cannot be compared: one pass draws others than the loop, from the same distribution.
        """
        equal = [piece for piece in pieces if piece.share == pieces[0].share]
        if not self.in_one_pass or len(equal) == 1:
            return loop(objective, pieces)
        rest = pieces[len(equal) :]
        share = 1 - sum(piece.share for piece in rest)
        outcomes, uses = self._equal_pieces(objective, closure, equal, share, loop, compare, keep_factors)
        if rest:
            more, more_uses = loop(objective, rest)
            return outcomes + more, uses + more_uses
        return outcomes, uses

    def _equal_pieces(
        self,
        objective: Objective,
        closure: Callable[..., Tensor],
        pieces: Sequence[Piece],
        share: float,
        loop: Loop,
        compare: bool,
        keep_factors: bool,
    ) -> Result:
        """Outcomes of pieces of one size, which have this share of the batch's rows."""
        # Values of buffers are copied where they are compared; at other steps a write is refused before it happens.
        look = compare or not self.buffers_compared
        start = RandomState.now(objective.model, objective.generators, buffers=look)
        whole = objective if share == 1 else objective.but(weight=objective.weight * share)
        try:
            attempt = self._prepare(whole, closure, pieces, start, keep_factors)
            if start.of_written_buffers().buffers:
                raise NotInOnePassError("the model writes a buffer")
            self.buffers_compared = True
        except Exception as error:  # whatever it is, the loop either works or raises an error of the closure itself
            start.of_written_buffers().restore()
            result = loop(objective, pieces)
            self._give_up(str(error) if isinstance(error, NotInOnePassError) else _first_sentence(error))
            return result
        without_numbers = attempt.loss.device.type == "meta"
        if (self.compared and not compare) or start.torch_has_drawn() or without_numbers:
            return [dataclasses.replace(attempt.outcome, share=share)], attempt.finish(whole)
        return self._compare(objective, whole, attempt, start, pieces, loop)

    def _prepare(
        self,
        objective: Objective,
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

        attempt = partial(OnePass, objective, of_tensors, batch, keep_factors=keep_factors)
        try:
            made = attempt(never_layers=self._never_layers)
        except UsesChangedError:
            start.of_written_buffers().restore()
            made = attempt(never_layers=self._never_layers)
        if start.python_has_drawn():
            raise NotInOnePassError("the closure draws from Python's or numpy's random numbers")
        return made

    def _compare(
        self,
        objective: Objective,
        whole: Objective,
        attempt: OnePass,
        start: RandomState,
        pieces: Sequence[Piece],
        loop: Loop,
    ) -> Result:
        """Both ways, without a trace of the first; the loop's gradients are the ones that are used."""
        ours, theirs = GradientSum(), GradientSum()
        attempt.finish(whole.but(deliver=ours.add, applied=None), form_weight_gradients=True)
        start.of_written_buffers().restore()
        outcomes, uses = loop(objective.but(deliver=theirs.add), pieces)
        norm = torch.stack([outcome.gradient_squared_norm for outcome in outcomes]).mean()
        # A penalty without its loss may be 0: the loss's gradient is what both are small beside.
        beside = abs(float(whole.factor)) * float(norm) ** 0.5 if whole.loss_weight != 1 else 0.0
        apart = _relative_distance(ours.by_leaf, theirs.by_leaf, beside)
        of_norm = abs(float(attempt.outcome.gradient_squared_norm / norm) - 1) if float(norm) else 0.0
        tolerance = _TOLERANCES.get(attempt.coarsest, 1e-3)
        self.compared = math.isfinite(apart + of_norm)  # where half precision overflowed, a later step tells
        if max(apart, of_norm) > tolerance:
            self._give_up(f"one pass gives a gradient that differs by {max(apart, of_norm):.1g}")
        if self.in_one_pass:  # a record has the same entries at compared steps as at all others
            outcomes = [dataclasses.replace(outcome, part=attempt.outcome.part) for outcome in outcomes]
        if objective.deliver is None:
            theirs.into_grad(attempt.loss)
        else:
            objective.deliver(list(theirs.by_leaf), list(theirs.by_leaf.values()))
        return outcomes, uses

    def _give_up(self, reason: str) -> None:
        self.in_one_pass = False
        _log.warning("micro-batches are computed one after another, which is slower than in one pass: %s.", reason)


def _relative_distance(ours: dict[Tensor, Tensor], theirs: dict[Tensor, Tensor], beside: float) -> float:
    """‖ours − theirs‖ relative to ‖theirs‖ and to `beside`."""
    apart, size = 0.0, beside**2
    for leaf in {**ours, **theirs}:
        a, b = (real(sums.get(leaf, torch.zeros_like(leaf)).to_dense()).double() for sums in (ours, theirs))
        apart, size = apart + float((a - b).square().sum()), size + float(b.square().sum())
    return (apart / size) ** 0.5 if size else float(apart > 0)


def _first_sentence(error: Exception) -> str:
    text = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
    return f"torch.vmap says {text!r}" if text else type(error).__name__
