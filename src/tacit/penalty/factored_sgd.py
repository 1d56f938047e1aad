"""`FactoredSGD`: plain SGD on the penalised loss that never forms the weight gradient of a linear layer.

    W ← (1 − εμ) W − ε [S; D]ᵀ [X; T]

One in-place matrix product per layer and step: no gradient buffer is written or read, which is what a wide layer at a
small batch size waits for.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit._arguments import whole_number
from tacit._errors import InputError
from tacit._gradient_sources import GradientSource
from tacit.penalty import gram
from tacit.penalty._autocast import AmbientAutocast
from tacit.penalty._layers import LinearSite
from tacit.penalty._micro_batches import MicroBatches, split
from tacit.penalty._refusals import translated_errors
from tacit.penalty._second_derivatives import AttentionNotice, check_attention, twice_differentiable
from tacit.penalty._task import Outcome, Task
from tacit.penalty._wrappers import refuse_ddp, without_ddp
from tacit.penalty.gradient_penalty import _penalised_parameters
from tacit.penalty.record import PenaltyRecord

COMPARE_EVERY = 100  # steps between comparisons of micro-batches in one pass with a loop, as in `GradientPenalty`


class FactoredSGD(torch.optim.Optimizer):
    """SGD with learning rate ε on Ĉ + (λ/4)‖∇Ĉ‖², exact, with weight decay μ and without momentum.

    `step(closure)` runs forward, backward and the update; the closure computes the loss and does not call backward.
    Weights of linear layers are updated from their factors and have no `.grad`; all other parameters (convolutions,
    embeddings, norms, weights that are also used elsewhere) ride along with an ordinary gradient. `lr`, `weight_decay`
    and `strength` live in the one parameter group, so torch's schedulers work. Momentum needs the gradient that this
    optimizer avoids: use `GradientPenalty` with `torch.optim.SGD` for that.

    `micro_batch_size` and `attention` are those of `GradientPenalty`. As in `torch.optim.SGD`, weight decay acts on the
    update and is no part of the penalised norm. Whatever works on `.grad` (clipping, gradient scaling, hooks,
    DistributedDataParallel) has nothing to work on here.

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
        weight_decay: float = 0.0,
        micro_batch_size: int | None = None,
        attention: str = "math",
    ) -> None:
        for name, value in (("lr", lr), ("weight_decay", weight_decay), ("strength", strength)):
            _check_number(name, value)
        refuse_ddp(model.modules() if isinstance(model, nn.Module) else ())
        self.model, self.attention = model, check_attention(attention)
        self._attention_notice = AttentionNotice()
        self.named = _penalised_parameters(model, ())
        self.last: PenaltyRecord | None = None
        if micro_batch_size is not None:
            whole_number("micro_batch_size", micro_batch_size, at_least=1)
        self.micro_batch_size, self._micro_batches = micro_batch_size, MicroBatches()
        self._steps, self._sites_checked = 0, False
        self._source = GradientSource()
        super().__init__(
            list(self.named.values()), {"lr": lr, "weight_decay": weight_decay, "strength": float(strength)}
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise InputError("FactoredSGD has one parameter group, the model's; a second one cannot be added.")
        super().add_param_group(param_group)

    def step(self, closure: Callable[..., Tensor] | None = None, *batch: Tensor) -> Tensor:  # type: ignore[override]
        """One update; returns the minibatch loss Ĉ before it, detached.

        Given `batch` tensors the closure is called with them, or with equal slices of them along the first axis when
        there is a `micro_batch_size`: the penalty is then the mean of the micro-batches' penalties.
        """
        if not callable(closure):
            raise InputError("FactoredSGD.step got no closure; expected one that computes the loss.")
        group: dict[str, Any] = self.param_groups[0]
        for name in ("lr", "weight_decay", "strength"):
            _check_number(name, group[name])
        self.zero_grad(set_to_none=True)
        strength = float(group["strength"])
        outcomes, sites = self._differentiate(closure, split(batch, self.micro_batch_size, "step"), strength)
        self._source.holds(self.named.values(), "of linear layers are never formed by FactoredSGD")
        shrink, rate = 1 - group["lr"] * group["weight_decay"], group["lr"]
        by_weight: dict[int, tuple[Tensor, list[tuple[Tensor, Tensor]]]] = {}
        for site in sites:
            if site.factors is not None:
                by_weight.setdefault(id(site.weight), (site.weight, []))[1].append(site.factors)
        with torch.no_grad():
            for weight, pairs in by_weight.values():
                left, right = (torch.cat(parts) if len(pairs) > 1 else parts[0] for parts in zip(*pairs, strict=True))
                weight.addmm_(left.T.to(weight.dtype), right.to(weight.dtype), beta=shrink, alpha=-rate)
            for parameter in self.named.values():
                if parameter.grad is not None:
                    if shrink != 1 and id(parameter) not in by_weight:  # a tied weight has shrunk above
                        parameter.mul_(shrink)
                    parameter.add_(parameter.grad, alpha=-rate)
        loss = torch.stack([outcome.loss for outcome in outcomes]).mean()
        norm = torch.stack([outcome.gradient_squared_norm for outcome in outcomes]).mean() if strength else None
        self.last = PenaltyRecord(loss, strength, "gram", norm)
        return loss

    def _differentiate(
        self, closure: Callable[..., Tensor], pieces: list[tuple[Tensor, ...]], strength: float
    ) -> tuple[list[Outcome], list[LinearSite]]:
        """Factors of linear layers on the returned sites, `.grad` of everything else."""
        autocast = AmbientAutocast.now(self.model)
        task = Task(self.model, self.named, (), strength=strength, check_sites=not self._sites_checked)

        def one_after_another(task: Task) -> tuple[list[Outcome], list[LinearSite]]:
            outcomes: list[Outcome] = []
            sites: list[LinearSite] = []
            for piece in pieces:
                closures = (autocast.around(partial(closure, *piece)),)
                part = dataclasses.replace(task, closures=closures, weight=task.weight / len(pieces))
                outcome, more = gram.run(part, keep_factors=task.deliver is None)
                outcomes.append(outcome)
                sites += more
            return outcomes, sites

        exact = twice_differentiable(self.attention, self._attention_notice) if strength else nullcontext()
        with torch.enable_grad(), translated_errors(), without_ddp(), autocast.switched_off(), exact:
            if len(pieces) > 1 and strength:
                outcomes, sites = self._micro_batches.run(
                    task,
                    lambda *part: autocast.around(partial(closure, *part))(),
                    pieces,
                    loop=one_after_another,
                    compare=self._steps % COMPARE_EVERY == 0,
                    keep_factors=True,
                )
            else:
                outcomes, sites = one_after_another(task)
        self._steps += 1
        self._sites_checked |= any(outcome.checked for outcome in outcomes)
        return outcomes, sites


def _check_number(name: str, value: Any) -> None:
    number = isinstance(value, (numbers.Real, Tensor)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise InputError(f"{name}={value!r}; expected a finite number that is not negative.")
