"""`FactoredSGD`: SGD on the penalised loss that never forms the weight gradient of a linear layer.

    W ← (1 − εμ) W − ε [S; D]ᵀ [X; T]

One in-place matrix product per layer and step, into the weight or into its momentum: no gradient is
written or read, which is what a wide layer at a small batch size waits for. With d = G + μ W, momentum β and
dampening τ:

    without momentum        W ← W − ε d                                   one product, into W
    heavy ball              V ← β V + (1 − τ) d,   W ← W − ε V            one product, into V
    Nesterov                V as above,            W ← W − ε (d + β V)    two products, into V and into W

V starts as d, without dampening, as in `torch.optim.SGD`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tacit._util.arguments import whole_number
from tacit._util.errors import InputError
from tacit._util.gradient_sources import GradientSource
from tacit.layers.kinds import LinearUse
from tacit.penalty.methods import gram
from tacit.penalty.objective import Objective, Outcome
from tacit.penalty.parameters import PenalisedParameters
from tacit.penalty.pieces import Cut, cut_batch
from tacit.penalty.record import PenaltyRecord, record_of
from tacit.penalty.relative import Relative
from tacit.penalty.step import StepRunner
from tacit.penalty.surroundings.loss_scaling import LossScaling
from tacit.penalty.surroundings.refusals import TranslatedErrors
from tacit.penalty.workers.wrappers import refuse_ddp, refuse_shards, without_ddp

SLAB = 2**20  # elements of V that stay in the processor's cache between the product and the step that reads it
CHECK_EVERY = 100  # steps between looks at what other steps take for granted, as in `GradientPenalty`


class FactoredSGD(torch.optim.Optimizer):
    """SGD with learning rate ε on Ĉ + (λ/4)‖∇Ĉ‖², exact, with weight decay μ, momentum and Nesterov's.

    `step(closure)` runs forward, backward and the update; the closure computes the loss and does not call backward.
    Weights of linear layers are updated from their factors and have no `.grad`; all other parameters (convolutions,
    embeddings, norms, weights that are also used elsewhere) ride along with an ordinary gradient. `lr`, `momentum`,
    `dampening`, `weight_decay` and `nesterov` mean what they mean in `torch.optim.SGD` and live in parameter groups, so
    torch's schedulers work.

    `params` are groups of the model's parameters, as for `torch.optim.SGD`; without them there is one group of all. The
    norm always runs over all trainable parameters of the model, and `strength` is the same in all groups.

    `micro_batch_size`, `sampled` (with its `seed`) and `attention` are those of `GradientPenalty`. As in
    `torch.optim.SGD`, weight decay acts on the update and is no part of the penalised norm. Whatever works on `.grad`
    (clipping, gradient scaling, hooks, DistributedDataParallel) has nothing to work on here.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> optimizer = FactoredSGD(model, lr=0.1, strength=2**-6)
    >>> inputs, targets = torch.ones(4, 2), torch.zeros(4, 1)
    >>> loss = optimizer.step(lambda: nn.functional.mse_loss(model(inputs), targets))
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        *,
        strength: float = 0.0,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        params: Iterable[Any] | None = None,
        micro_batch_size: int | None = None,
        sampled: int | None = None,
        seed: int = 0,
        attention: str = "math",
    ) -> None:
        if isinstance(strength, Relative):
            raise InputError(
                f"FactoredSGD got strength={strength}, which needs the norm of gradients that it never forms; expected "
                "a number. Use GradientPenalty with torch.optim.SGD."
            )
        _check_number("strength", strength)
        refuse_ddp(model.modules() if isinstance(model, nn.Module) else ())
        self.model = model
        self._parameters = PenalisedParameters(model, (), on_change=self._see_parameters)
        self.last: PenaltyRecord | None = None
        if micro_batch_size is not None:
            whole_number("micro_batch_size", micro_batch_size, at_least=1)
        if sampled is not None:
            whole_number("sampled", sampled, at_least=1)
            if micro_batch_size is None:
                raise InputError(f"sampled={sampled} without micro_batch_size; expected both in FactoredSGD.")
        self.micro_batch_size, self.sampled, self.seed = micro_batch_size, sampled, seed
        self._runner = StepRunner(
            model, attention=attention, check_every=CHECK_EVERY,
            scaling=LossScaling("FactoredSGD takes no scaler; for float16 use GradientPenalty."),
        )  # fmt: skip
        self._source = GradientSource()
        self._see_parameters()
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "strength": float(strength),
        }
        super().__init__(list(self.named.values()) if params is None else params, defaults)

    def _see_parameters(self) -> None:
        refuse_shards(self.model, self.named, method=None)
        self._source.owns(self.named.values())

    @property
    def named(self) -> dict[str, nn.Parameter]:
        """The parameters that the norm runs over, by name."""
        return self._parameters.by_name

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        try:
            _check_group(added)
            own = {id(parameter) for parameter in self.named.values()}
            foreign = [parameter for parameter in added["params"] if id(parameter) not in own]
            if foreign:
                raise InputError(
                    f"a parameter group holds a tensor of shape {tuple(foreign[0].shape)} that is no trainable "
                    "parameter of the model; expected parameters of the model given to FactoredSGD."
                )
        except InputError:
            self.param_groups.pop()
            raise

    def step(self, closure: Callable[..., Tensor] | None = None, *batch: Any) -> Tensor:  # type: ignore[override]
        """One update; returns the minibatch loss Ĉ before it, detached.

        Given a `batch` the closure is called with it, or with slices of it along the first axis when there is a
        `micro_batch_size`: the penalty is then the mean of the micro-batches' penalties, weighted by their rows.
        """
        if not callable(closure):
            raise InputError("FactoredSGD.step got no closure; expected one that computes the loss.")
        strength = self._strength_now()
        self.zero_grad(set_to_none=True)
        cut = cut_batch(
            batch, self.micro_batch_size, self.sampled, penalised=strength != 0, caller="step", seed=self.seed,
            call=self._runner.steps,
        )  # fmt: skip
        outcomes, uses = self._differentiate(self._leaving_backward_to_us(closure), cut, strength)
        self._source.put("of linear layers are never formed by FactoredSGD")
        factors: dict[Tensor, list[tuple[Tensor, Tensor]]] = {}
        for use in uses:
            if use.factors is not None:
                factors.setdefault(use.weight, []).append(use.factors)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    gradient = _gradient(factors.pop(parameter, []), parameter.grad)
                    if gradient is not None:
                        sgd_update(parameter, gradient, group, self.state[parameter])
        self.last = record_of(outcomes, strength=strength, method="gram", parts=cut.parts)
        return self.last.loss

    def state_dict(self) -> dict[str, Any]:
        """That of `torch.optim.SGD`, and the number of steps, from which draws follow."""
        return {**super().state_dict(), "steps": self._runner.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._runner.steps = int(state_dict.get("steps", 0))

    def _strength_now(self) -> float:
        for group in self.param_groups:
            _check_group(group)
        strengths = {float(group["strength"]) for group in self.param_groups}
        if len(strengths) > 1:
            raise InputError(
                f"the parameter groups have strengths {sorted(strengths)}; expected one, since the penalty belongs to "
                "the loss. Set the same in all groups."
            )
        return strengths.pop()

    def _leaving_backward_to_us(self, closure: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The closure, refused where it calls backward itself, as the closures of trainers and of torch's LBFGS do."""

        def checked(*batch: Any) -> Tensor:
            loss = closure(*batch)
            differentiated = any(parameter.grad is not None for parameter in self.named.values())
            if differentiated and isinstance(loss, Tensor) and not loss.requires_grad:
                raise InputError(
                    "the closure called backward itself; expected one that computes the loss and leaves backward to "
                    "FactoredSGD.step. A trainer that calls backward (Lightning's automatic optimization) needs "
                    "GradientPenalty with torch.optim.SGD, or manual optimization."
                )
            return loss

        return checked

    def _differentiate(
        self, closure: Callable[..., Tensor], cut: Cut, strength: float
    ) -> tuple[list[Outcome], list[LinearUse]]:
        """Factors of linear layers on the returned uses, `.grad` of everything else."""
        objective = Objective(
            self.model, self._parameters.now(), (), strength=strength, modules=self._parameters.modules
        )
        with TranslatedErrors(), without_ddp():
            return self._runner.run(
                objective, closure, cut, lambda each: gram.run(each, keep_factors=each.deliver is None),
                in_one_pass=True, keep_factors=True,
            )  # fmt: skip


def _gradient(factors: list[tuple[Tensor, Tensor]], rest: Tensor | None) -> Gradient | None:
    """The gradient of one parameter from all its uses; None where the loss does not reach it."""
    if not factors:
        return None if rest is None else Gradient(rest=rest)
    left, right = (torch.cat(parts) if len(factors) > 1 else parts[0] for parts in zip(*factors, strict=True))
    return Gradient(left, right, rest.to_dense() if rest is not None and rest.is_sparse else rest)


def _check_group(group: dict[str, Any]) -> None:
    for name in ("lr", "momentum", "weight_decay", "strength"):
        _check_number(name, group[name])
    dampening = group["dampening"]
    if isinstance(dampening, bool) or not isinstance(dampening, numbers.Real) or not math.isfinite(dampening):
        raise InputError(f"dampening={dampening!r}; expected a finite number.")
    if group["nesterov"] and (group["momentum"] <= 0 or dampening != 0):
        raise InputError(
            f"nesterov=True with momentum={group['momentum']} and dampening={dampening}; "
            "expected a momentum above 0 and no dampening."
        )


def _check_number(name: str, value: Any) -> None:
    number = isinstance(value, (numbers.Real, Tensor)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise InputError(f"{name}={value!r}; expected a finite number that is not negative.")


@dataclass(frozen=True)
class Gradient:
    """A gradient LᵀR + `rest`, either of which may be missing."""

    left: Tensor | None = None
    right: Tensor | None = None
    rest: Tensor | None = None

    def add_to(self, target: Tensor, *, keep: float, times: float, rows: slice = slice(None)) -> None:
        """target ← keep · target + times · gradient, on some rows of a matrix or on all of a tensor."""
        part = target[rows] if self.left is not None else target
        if self.left is not None and self.right is not None:
            left, right = self.left[:, rows].to(target.dtype), self.right.to(target.dtype)
            part.addmm_(left.T, right, beta=keep, alpha=times)
        elif keep == 0:
            part.zero_()
        elif keep != 1:
            part.mul_(keep)
        if self.rest is not None:
            part.add_(self.rest if self.left is None else self.rest[rows], alpha=times)


def sgd_update(parameter: Tensor, gradient: Gradient, group: Mapping[str, Any], state: dict[str, Any]) -> None:
    """One step of SGD with the group's `lr`, `weight_decay`, `momentum`, `dampening` and `nesterov`, in place."""
    rate, decay, momentum = (float(group[name]) for name in ("lr", "weight_decay", "momentum"))
    if momentum == 0:
        gradient.add_to(parameter, keep=1 - rate * decay, times=-rate)
        return
    buffer = state.get("momentum_buffer")
    keep, fresh = (momentum, 1 - float(group["dampening"])) if buffer is not None else (0.0, 1.0)
    if buffer is None:
        buffer = state["momentum_buffer"] = torch.empty_like(parameter, memory_format=torch.preserve_format)
    for rows in _slabs(parameter, gradient):
        gradient.add_to(buffer, keep=keep, times=fresh, rows=rows)
        velocity, weights = (buffer[rows], parameter[rows]) if gradient.left is not None else (buffer, parameter)
        if decay:
            velocity.add_(weights, alpha=fresh * decay)
        if not group["nesterov"]:
            weights.add_(velocity, alpha=-rate)
        else:
            gradient.add_to(parameter, keep=1 - rate * decay, times=-rate, rows=rows)
            weights.add_(velocity, alpha=-rate * momentum)


def _slabs(parameter: Tensor, gradient: Gradient) -> list[slice]:
    """Rows of a large matrix in parts: V is read while it is still in the cache."""
    if gradient.left is None:
        return [slice(None)]
    height = max(1, SLAB // parameter.shape[1])
    return [slice(start, start + height) for start in range(0, parameter.shape[0], height)]
