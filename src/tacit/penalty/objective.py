"""What every method is given and what it gives back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit._util.errors import InputError
from tacit._util.graph import leaf_uses, suspects
from tacit.layers.modes import modes_on
from tacit.layers.penalty_part import GradientWatch, PenaltyPart
from tacit.penalty.relative import AppliedSum
from tacit.penalty.sink import GradientSum
from tacit.penalty.surroundings.refusals import refuse_suspects
from tacit.penalty.surroundings.switches import CompiledNotice, uncompiled

Closure = Callable[[], Tensor]
LARGEST_ERROR = 0.1  # of an approximation, a tenth of the penalty's part: λ is rarely known better than that


@dataclass(frozen=True)
class Objective:
    """One call of `GradientPenalty.backward`: add weight · ∇(Ĉ + (λ/4)‖∇Ĉ‖²) to `.grad` of every leaf.

    With two closures (two views of one minibatch) the objective is ½(Ĉᵃ + Ĉᵇ) + (λ/4)⟨∇Ĉᵃ, ∇Ĉᵇ⟩.
    The norm runs over `parameters`; the gradient goes to every leaf that the loss depends on.

    With `mean` (over workers) ∇Ĉ in the norm is the mean gradient ḡ: the objective's own share of the penalty is then
    (λ/4)(2⟨∇Ĉ, ḡ⟩ − ‖ḡ‖²) with ḡ held constant, and the mean over workers of these shares is (λ/4)‖ḡ‖².
    """

    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    closures: tuple[Closure, ...]
    strength: float | Tensor
    weight: float = 1.0
    loss_weight: float = 1.0  # of Ĉ beside its penalty: 0 where Ĉ's own gradient is taken elsewhere
    exact: bool = True  # what the method claims
    scale: float | Tensor = (
        1.0  # GradScaler's: what backward is multiplied with, so that half precision does not underflow
    )
    generators: tuple[torch.Generator, ...] = ()
    mean: Callable[[Sequence[Tensor]], list[Tensor]] | None = None
    deliver: Callable[[Sequence[Tensor], Sequence[Tensor]], None] | None = None  # in place of adding to `.grad`
    central: bool = False  # finite differences on both sides of ω
    check_error: bool = False  # whether approximate methods estimate their error at this step
    tolerance: float | None = None  # the largest estimated error with which gradients may be delivered; None: any
    largest: Callable[[float], float] | None = None  # over workers, where all must take the same way
    check_layers: bool = False  # whether `gram` compares what its layers give with a plain backward pass
    look: Callable[[Tensor], None] | None = None  # at the graph of each loss, on steps where that is affordable
    compiled: CompiledNotice | None = None  # to give where compiled code runs as it was written
    may_overflow: bool = False  # whether a GradScaler skips steps that are not finite
    modules: Sequence[nn.Module] = ()  # the model's
    deferred: DeferredCheck | None = None  # that a loss is finite, where nothing may wait for the device
    applied: AppliedSum | None = None  # where the vectors go whose norms will be asked for
    aside: GradientSum | None = None  # what `deliver` adds up for `.grad`, where nobody else asks for it
    rest: GradientSum | None = None  # goes into `.grad` in the pass of this objective, so that hooks on leaves see one

    def but(self, **changes: Any) -> Objective:
        """The same with other facts; `dataclasses.replace` takes ten times as long, which small models feel."""
        made: Objective = object.__new__(Objective)
        made.__dict__.update(self.__dict__, **changes)
        return made

    @property
    def penalised(self) -> bool:
        return isinstance(self.strength, Tensor) or self.strength != 0

    @property
    def factor(self) -> float | Tensor:
        """What every gradient is multiplied with."""
        return self.weight * self.scale

    @property
    def collect(self) -> Callable[[Tensor, Tensor, Tensor], None] | None:
        """Takes each parameter's g and (λ/2) H g of this piece, where a step of several adds them up."""
        applied = self.applied
        return partial(applied.add, self.weight) if applied is not None and applied.several else None

    @property
    def scaled(self) -> bool:
        return isinstance(self.scale, Tensor) or self.scale != 1

    def loss(self, closure: Closure) -> Tensor:
        """The closure's loss, checked."""
        with uncompiled(self.compiled) if self.exact and self.penalised else nullcontext(), modes_on():
            value = closure()
        if not isinstance(value, Tensor) or value.numel() != 1:
            returned = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"the closure returned {returned}; expected a scalar loss tensor.")
        if not value.requires_grad:
            raise InputError(
                "the closure returned a loss without a graph; expected one that depends on trainable parameters. "
                "Remove torch.no_grad() or .detach() from the closure."
            )
        if self.look is not None:
            self.look(value)
        if self.deferred is not None and not self.may_overflow:
            self.deferred.see(value)
        elif not self.may_overflow and not math.isfinite(value.item()):
            raise InputError(
                f"the loss is {value.item()}; expected a finite number. An empty batch gives nan, a learning rate that "
                "is too large gives inf; where float16 overflows, a GradScaler given as scaler= skips the step."
            )
        operations = suspects(value)
        if operations:
            refuse_suspects(operations, exact=self.exact)
        return value if value.dim() == 0 else value.reshape(())

    def plain_part(self, loss: Tensor) -> Tensor:
        """Ĉ's own part of the objective, beside the penalty."""
        return loss if self.loss_weight == 1 else self.loss_weight * loss

    def finish(
        self,
        value: Tensor,
        watch: GradientWatch | None = None,
        *,
        factor: float | Tensor = 1.0,
        outputs: Sequence[Tensor] = (),
        cotangents: Sequence[Tensor] = (),
    ) -> None:
        """Add ∇(factor · value + Σ⟨output, cotangent⟩), cotangents constant, to `.grad` of every leaf.

        With `deliver` the gradients are handed to it instead, with all hooks silent.
        """
        roots = [value, *outputs]
        one = torch.ones_like(value)
        seeds = [one if isinstance(factor, float) and factor == 1 else factor * one, *cotangents]
        if self.deliver is None:
            if self.rest is not None:
                others = self.rest.divided(1.0)
                roots += others.keys()
                seeds += others.values()
            with nullcontext() if watch is None else watch, modes_on():
                torch.autograd.backward(roots, seeds)
            return
        leaves = list(leaf_uses(*roots))
        pairs = zip(leaves, gradients_of(roots, leaves, seeds), strict=True)
        reached = {leaf: gradient for leaf, gradient in pairs if gradient is not None}
        leaves, gradients = list(reached), list(reached.values())
        if watch is not None:
            watch.see_all(leaves, gradients)
        self.deliver(leaves, gradients)


def gradients_of(
    roots: Tensor | Sequence[Tensor], inputs: Sequence[Tensor], seeds: Sequence[Tensor] | None = None, **options: bool
) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad` with hooks on the inputs silent: a user's hook is about the final gradient."""
    hooked = [(tensor, tensor._backward_hooks) for tensor in inputs if tensor._backward_hooks]
    try:
        for tensor, _ in hooked:
            tensor._backward_hooks = None
        with modes_on():
            return torch.autograd.grad(roots, inputs, seeds, allow_unused=True, **options)
    finally:
        for tensor, hooks in hooked:
            tensor._backward_hooks = hooks


class DeferredCheck:
    """Whether a loss was not finite, kept on the device until somebody asks."""

    def __init__(self, defer: bool | None) -> None:
        self.defer, self.first_step = defer, 0
        self.seen: Tensor | None = None

    def now(self, step: int, device: torch.device, *, check_every: int) -> DeferredCheck | None:
        """Itself where checks are deferred on this device, None where each loss is checked at once."""
        if not (device.type != "cpu" if self.defer is None else self.defer):
            return None
        if check_every and step % check_every == 0:
            self.raise_if_seen()
            self.first_step = step
        return self

    def see(self, loss: Tensor) -> None:
        bad = loss.detach().isfinite().logical_not().any()
        self.seen = bad if self.seen is None else self.seen | bad

    def raise_if_seen(self) -> None:
        if self.seen is None or self.seen.device.type == "meta":
            return
        bad, self.seen = bool(self.seen), None
        if bad:
            raise InputError(
                f"a loss was not finite at step {self.first_step} or after it; expected finite numbers. An empty batch "
                "gives nan, a learning rate that is too large gives inf. Use defer_checks=False to learn at which step."
            )


@dataclass(frozen=True)
class Outcome:
    """The original loss Ĉ, ‖∇Ĉ‖² over the objective's parameters and, for approximate methods, an error estimate.

    `error` is relative to the norm of the penalty's part of the gradient; None for exact methods and when not asked.
    Where it exceeds the objective's tolerance, nothing was delivered.
    """

    loss: Tensor
    gradient_squared_norm: Tensor
    error: float | None = None
    delivered: bool = True
    part: PenaltyPart | None = None  # ⟨g, H g⟩ and ‖(λ/2) H g‖², where the method has them
    method: str | None = None  # where it is not the one that was chosen
    checked: bool = False  # whether `gram` compared its norm with a plain one, where it was asked to
    share: float = 1.0  # of the step's penalty, where a step has several outcomes
    price: float | None = None  # of the step's passes in plain ones, timed, where the plain pass is one of its own
