"""Whether the loss of a batch is the mean of its micro-batches' losses, weighted by rows: whether gradients agree.

    ∇Ĉ(batch) = Σₖ sₖ ∇Ĉ(piece k),   sₖ the piece's share of the rows

Where it holds, the pieces of a penalised step give the plain part of its gradient, too. Sums over rows, class weights
and `ignore_index` (a mean divided by what a batch holds) break it, and so do losses that compare rows. Gradients are
compared, not losses: with a zero-initialised head losses agree to the last bit while gradients do not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tacit._util.errors import InputError
from tacit._util.graph import leaf_uses
from tacit._util.rounding import CoarsestUnit
from tacit.penalty.objective import Objective, gradients_of
from tacit.penalty.pieces import Cut, Piece, row_tensors
from tacit.penalty.surroundings.state import RandomState
from tacit.penalty.surroundings.switches import uncompiled
from tacit.penalty.workers.shards import is_sharded

_log = logging.getLogger("tacit")
Gradients = dict[Tensor, Tensor]

# Largest distance between the two sides, relative to their length, by the coarsest numbers in use.
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 0.02, torch.bfloat16: 0.1}
# A parameter whose gradient is 0 in exact arithmetic has that of rounding, so many units of the whole gradient's size.
_ROUNDINGS = 1000
_METADATA = ("__get__", "__len__", "dim", "numel", "size", "stride")  # of an argument, not its values


class RowMean:
    """What one penalty knows about its closure's loss; a check costs a plain pass of the batch and one of its pieces.

    Modules are in evaluation mode: dropout would draw other masks, and batch norm compares rows, rightly. Nothing that
    the check does remains: modes, buffers and generators are as before, bitwise.
    """

    def __init__(self) -> None:
        self.holds = True
        self.checked_at: int | None = None
        self._said = False

    def state_dict(self) -> dict[str, Any]:
        return {"holds": self.holds, "checked_at": self.checked_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.holds, self.checked_at = state["holds"], state["checked_at"]

    def due(self, step: int, every: int) -> bool:
        """Whether to check at this step: at the first one, and `every` so many (0: never again) while it holds."""
        if not self.holds:
            return False
        return self.checked_at is None or (every > 0 and step - self.checked_at >= every)

    def check(self, objective: Objective, closure: Callable[..., Tensor], cut: Cut, *, step: int) -> None:
        """Sets `holds`, and says what the loss looks like where it is no mean over rows.

        Raises where the closure ignores its arguments: the penalty would be that of what it uses instead.
        """
        if is_sharded(objective.model):
            self._not_checked(step, "a model that went through fully_shard averages gradients over workers")
            return
        if any(parameter.device.type == "meta" for parameter in objective.parameters.values()):
            self._not_checked(step, "tensors on the meta device have no numbers")
            return
        start = RandomState.now(objective.model, objective.generators)
        drew = ignored = False
        pieces, parts = cut.all_pieces(), _Parts()
        try:
            with (
                _evaluation_mode(objective.model),
                uncompiled(),
                CoarsestUnit() as coarsest,
                _OtherGenerators() as others,
            ):
                together = _gradients(objective, closure, cut.whole)
                for number, piece in enumerate(pieces):
                    drew |= start.torch_has_drawn() or start.python_has_drawn() or bool(others.states)
                    start.of_written_buffers().restore()  # every piece has the same random numbers and buffers
                    gradients = _gradients(objective, closure, piece)
                    if number == 1 and parts.only_one_is(gradients) and _differ(piece, pieces[0]):
                        ignored = not _uses(closure, piece)
                    parts.add(gradients, piece.share)
        except Exception as error:  # of evaluation mode, or one that the step itself will raise
            self._not_checked(step, f"the closure in evaluation mode raises {type(error).__name__}")
            return
        finally:
            start.of_written_buffers().restore()
        if ignored:
            raise InputError(
                "the closure uses none of its arguments, so that every micro-batch has the same gradient; expected one "
                "that computes the loss of the rows it is called with, such as "
                "lambda inputs, targets: loss_fn(model(inputs), targets)."
            )
        if drew:
            self._not_checked(step, "the closure draws random numbers in evaluation mode")
            return
        self._compare(together, parts, coarsest.unit, step, drawn=cut.drawn)

    def _compare(self, whole: Gradients, parts: _Parts, unit: float, step: int, *, drawn: bool) -> None:
        mean = parts.sum(weighted=True)
        # Other leaves than parameters may be made anew in every pass.
        leaves = [
            leaf for leaf in {**whole, **mean} if isinstance(leaf, nn.Parameter) or (leaf in whole and leaf in mean)
        ]
        sizes = [max(_norm(whole.get(leaf)), parts.sizes.get(leaf, 0.0)) for leaf in leaves]
        apart = _distances(whole, mean, leaves)
        size, distance = _root_sum_square(sizes), _root_sum_square(apart)
        if not (0 < size < float("inf")):  # nothing can be said here: at a later step
            return
        self.checked_at = step
        tolerance = next((t for dtype, t in _TOLERANCES.items() if torch.finfo(dtype).eps >= unit), 0.25)
        floor = _ROUNDINGS * unit * size
        if distance <= tolerance * size and all(
            d <= max(tolerance * s, floor) for d, s in zip(apart, sizes, strict=True)
        ):
            return
        self.holds = False
        if _root_sum_square(_distances(whole, parts.sum(weighted=False), leaves)) <= tolerance * size:
            looks = (
                f"is the sum of its {parts.count} micro-batches' gradients, as where the loss is a sum over rows "
                "(reduction='sum'); expected a mean over rows."
            )
        else:
            worst = max(distance / size, *(d / s for d, s in zip(apart, sizes, strict=True) if d > floor), 0.0)
            looks = (
                f"differs from the mean of its micro-batches' gradients by {worst:.1%}, as where a mean is divided by "
                "class weights or by the number of labels that count (ignore_index). Losses that compare rows "
                "(contrastive ones, batch norm without running statistics) differ rightly."
            )
        plain = "The" if drawn else "From now on, for one plain pass more, the"
        _log.warning(
            "the gradient of a batch's loss %s %s loss's own gradient is that of the whole batch; the penalty is that "
            "of the micro-batches' own losses.", looks, plain,
        )  # fmt: skip

    def _not_checked(self, step: int, reason: str) -> None:
        self.checked_at = step
        if not self._said:
            self._said = True
            _log.info("whether the loss is a mean over rows was not checked: %s.", reason)


class _Parts:
    """Gradients of pieces, added up: pieces of one share together, so that the memory is not that of all of them."""

    def __init__(self) -> None:
        self.count = 0
        self.by_share: dict[float, Gradients] = {}
        self.sizes: dict[Tensor, float] = {}  # Σₖ sₖ ‖gₖ‖ for each leaf

    def only_one_is(self, gradients: Gradients) -> bool:
        """Whether the gradient of the only piece so far is this one bit for bit, and not 0."""
        (one,) = self.by_share.values()
        same = one.keys() == gradients.keys() and all(torch.equal(one[leaf], gradients[leaf]) for leaf in one)
        return same and any(bool(gradient.any()) for gradient in gradients.values())

    def add(self, gradients: Gradients, share: float) -> None:
        self.count += 1
        known = self.by_share.setdefault(share, {})
        for leaf, gradient in gradients.items():
            self.sizes[leaf] = self.sizes.get(leaf, 0.0) + share * _norm(gradient)
            known[leaf] = known[leaf] + gradient if leaf in known else gradient

    def sum(self, *, weighted: bool) -> Gradients:
        """Σₖ gₖ, or Σₖ sₖ gₖ."""
        total: Gradients = {}
        for share, gradients in self.by_share.items():
            for leaf, gradient in gradients.items():
                term = share * gradient if weighted else gradient
                total[leaf] = total[leaf] + term if leaf in total else term
        return total


def _gradients(objective: Objective, closure: Callable[..., Tensor], piece: Piece) -> Gradients:
    """The plain gradient for every leaf that was there before, times the scaler's scale."""
    plain = objective.but(strength=0.0, exact=False)
    loss = plain.loss(partial(closure, *piece.batch))
    leaves = list(leaf_uses(loss))
    pairs = zip(leaves, gradients_of(objective.scale * loss, leaves), strict=True)
    return {leaf: gradient.to_dense().detach() for leaf, gradient in pairs if gradient is not None}


def _distances(left: Gradients, right: Gradients, leaves: Sequence[Tensor]) -> list[float]:
    """‖left − right‖ of each leaf; a gradient that is missing is 0."""
    both = [[side[leaf] for side in (left, right) if leaf in side] for leaf in leaves]
    return [_norm(pair[0] - pair[1] if len(pair) == 2 else pair[0]) for pair in both]


def _norm(tensor: Tensor | None) -> float:
    if tensor is None:
        return 0.0
    return float(torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32)))


def _root_sum_square(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).square().sum().sqrt())


def _differ(one: Piece, other: Piece) -> bool:
    """Whether two pieces have other rows."""
    return not all(torch.equal(*pair) for pair in zip(row_tensors(one.batch), row_tensors(other.batch), strict=True))


def _uses(closure: Callable[..., Tensor], piece: Piece) -> bool:
    """Whether the closure looks at a value of its arguments: the same gradient may have another cause."""
    with _Seen({id(tensor) for tensor in row_tensors(piece.batch)}) as seen:
        closure(*piece.batch)
    return seen.used


class _Seen(TorchFunctionMode):
    """While active, `used` says whether a torch function took one of the tensors for more than its metadata."""

    def __init__(self, wanted: set[int]) -> None:
        super().__init__()
        self.wanted, self.used = wanted, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(id(leaf) in self.wanted for leaf in tree_leaves((args, kwargs))):
            self.used |= isinstance(result, Tensor) or getattr(func, "__name__", "") not in _METADATA
        return result


class _OtherGenerators(TorchFunctionMode):
    """While active, generators of the user's own are noticed where a torch function draws from them; then put back."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[torch.Generator, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        generator = (kwargs or {}).get("generator")
        if generator is not None and generator not in self.states:
            self.states[generator] = generator.get_state()
        return func(*args, **(kwargs or {}))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for generator, state in self.states.items():
            generator.set_state(state)


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Inside, modules are in evaluation mode, those outside of the model from their first call on.

    Modes and buffers are put back, bitwise. The flag is set on each module by itself: `train` may have been overridden.
    """
    modes: dict[nn.Module, bool] = {}
    buffers: list[tuple[nn.Module, dict[str, Tensor | None], list[tuple[Tensor, Tensor]]]] = []

    def enter(module: nn.Module, *_: Any) -> None:
        if module in modes:
            return
        modes[module] = module.training
        if module._buffers:
            copies = [(buffer, buffer.detach().clone()) for buffer in module._buffers.values() if buffer is not None]
            buffers.append((module, dict(module._buffers), copies))
        # cuDNN has no backward pass of a recurrent layer in evaluation mode, which changes its dropout only.
        module.training = module.training and isinstance(module, nn.RNNBase) and module.dropout == 0

    for module in model.modules():
        enter(module)
    handle = register_module_forward_pre_hook(enter)
    try:
        yield
    finally:
        handle.remove()
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for module, registered, copies in buffers:
                module._buffers.clear()
                module._buffers.update(registered)
                for buffer, copy in copies:
                    if not torch.equal(buffer, copy):
                        buffer.copy_(copy)
