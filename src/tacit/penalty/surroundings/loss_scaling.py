"""GradScalers around a penalised loss: one inside the closure, one that the penalty does not know, float16 without one.

    scaler s:   s·Ĉ inside the closure has the penalty (λ/4)‖s ∇Ĉ‖²; per unit of the loss it is s times too strong

Nothing here guesses from values: a loss is scaled where a factor in its graph is the memory of a scaler's scale, and an
optimizer is a scaler's where that scaler has divided its gradients.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tacit._util.errors import InputError
from tacit._util.graph import nodes, operation

_log = logging.getLogger("tacit")
# A factor before one of these is a factor of the result.
_LINEAR = {
    "Add", "Sub", "Neg", "Mul", "Div", "Sum", "Mean", "Stack", "Cat", "ToCopy", "Clone", "Alias", "View", "UnsafeView",
    "Expand", "Squeeze", "Unsqueeze", "Select", "Permute",
}  # fmt: skip


class LossScaling:
    """What one penalty asks about GradScalers, once: each question needs a walk over a graph or a number of the device.

    `remedy` says what to do about a scale inside the closure, `harm` what it would do, `owner` whose `backward` it is.
    """

    def __init__(
        self, remedy: str, *, harm: str = "makes the penalty as many times too strong", owner: str = "penalty"
    ) -> None:
        self.remedy, self.harm, self.owner = remedy, harm, owner
        self.looked = self.in_float16 = self.factor_seen = self.watching = False

    def looking(self, scaler: GradScaler | None) -> Callable[[Tensor], None]:
        """For the losses of one step: refuses one that a scaler has multiplied; notes whether its graph has float16."""
        scalers = [] if scaler is None else [scaler]

        def look(loss: Tensor) -> None:
            if not self.looked:
                self.in_float16 = any(_made_in(node, torch.float16) for node in nodes(loss))
            self.looked = True
            factors = [factor.untyped_storage()._cdata for factor in _factors(loss)]
            if factors and not scalers:
                scalers.extend(_live_scalers())
            if any(_scale_of(each) in factors for each in scalers):
                raise InputError(
                    f"the closure returned a loss that scaler.scale has multiplied, which {self.harm}; expected the "
                    f"loss as it is. {self.remedy}"
                )

        return look

    def watch_backward(self, loss: Tensor) -> None:
        """Warns at the first backward pass from a loss in float16 that somebody has multiplied: too late for float16.

        Reading the factor waits for the device, so later ones are not read.
        """
        if self.factor_seen or not (self.in_float16 and loss.requires_grad):
            return

        def see(factor: Tensor) -> None:
            if self.factor_seen:
                return
            self.factor_seen = True
            value = float(factor)
            if value != 1:
                _log.warning(
                    "backward multiplied the loss of %s.loss by %g, but its passes ran before that, in float16 and "
                    "unscaled, where gradients below 6e-8 are 0. With a GradScaler use "
                    "scaler.scale(%s.loss(closure, scaler=scaler)).", self.owner, value, self.owner,
                )  # fmt: skip

        loss.register_hook(see)

    def watch_optimizer(self, parameters: Iterable[Tensor]) -> None:
        """Refuses the first step of an optimizer of these parameters if a scaler divides what it never multiplied."""
        global _hook
        if self.watching:
            return
        self.watching = True
        _watched[self] = {id(parameter) for parameter in parameters}
        _hook = _hook or register_optimizer_step_pre_hook(_before_step)


def scale_now(scaler: GradScaler | None, device: torch.device) -> float | Tensor:
    """What the scaler multiplies losses with; `scale`, unlike `get_scale`, also makes it ready for its `step`."""
    if scaler is None:
        return 1.0
    scale = scaler.scale(torch.ones((), dtype=torch.float32, device=device))
    return scale if device.type == "mps" else scale.double()  # products with weights and λ are not rounded to float32


_watched: weakref.WeakKeyDictionary[LossScaling, set[int]] = weakref.WeakKeyDictionary()
# One hook for all penalties, never removed: torch cannot remove one while it calls them.
_hook: Any = None


def _before_step(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
    if not _watched:
        return
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    owners = [owner for owner, parameters in _watched.items() if not parameters.isdisjoint(stepped)]
    for owner in owners:
        del _watched[owner]
    if owners and any(_has_divided(scaler, optimizer) for scaler in _live_scalers()):
        name = owners[0].owner
        raise InputError(
            f"a GradScaler divided gradients by its scale that {name}.backward did not multiply by it, so the "
            f"step would be too small; expected the scaler. Use {name}.backward(closure, scaler=scaler)."
        )


def _factors(loss: Tensor) -> Iterator[Tensor]:
    """What a scaler's scale may be: constants of one element in float32 that multiply the loss or a term of it."""
    seen: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or operation(node) not in _LINEAR:
            continue
        seen.add(node)
        waiting += [parent for parent, _ in node.next_functions]
        if operation(node) == "Mul":
            for name in ("_raw_saved_self", "_raw_saved_other"):  # MulBackward1, by a number, has neither
                raw = getattr(node, name, None)
                value = None if raw is None else _saved(raw)
                if value is not None and value.numel() == 1 and value.dtype == torch.float32:
                    yield value


def _saved(raw: Any) -> Tensor | None:
    """A tensor that a node keeps; None where unpacking it would run code, as inside a checkpoint."""
    if raw.unpack_hook is not None or not isinstance(raw.data, Tensor):
        return None
    return None if raw.data.requires_grad else raw.data


def _made_in(node: Any, dtype: torch.dtype) -> bool:
    return any(output.dtype == dtype for output in getattr(node, "_input_metadata", ()))


def _live_scalers() -> list[GradScaler]:
    """Every GradScaler of the process: walks over all objects, which takes tens of milliseconds."""
    # Not `isinstance`, which asks proxies for a class and fails on those whose object is gone.
    return [each for each in gc.get_objects() if issubclass(type(each), GradScaler)]


def _scale_of(scaler: GradScaler) -> int | None:
    return None if scaler._scale is None else scaler._scale.untyped_storage()._cdata


def _has_divided(scaler: GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the scaler has unscaled this optimizer's gradients since its last update."""
    state = scaler._per_optimizer_states.get(id(optimizer))
    return bool(state and state["found_inf_per_device"])
