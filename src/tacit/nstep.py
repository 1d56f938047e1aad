"""`NStepSGD`: several gradient-descent updates on the same minibatch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from tacit._util.errors import InputError


class NStepSGD(Optimizer):
    """n-step SGD: n plain updates on one minibatch, then the next minibatch.

    ωᵢ₊₁ = ωᵢ − α ∇Ĉ(ωᵢ) − α ∇Ĉ(ωᵢ − α ∇Ĉ(ωᵢ)) − …   (n terms)                                  (Eqs. 24–26)

    `lr` is the bare rate α, so that torch's schedulers act on what each update uses; the effective rate is ε = nα.
    Its implicit regularizer is that of α: C̃_nSGD = C + (ε/4mn) Σₖ ‖∇Ĉₖ‖² (Eq. 39). One update adds `weight_decay`
    times the parameters to the gradient, as `torch.optim.SGD` does. There is no momentum.

    `step(closure)` evaluates the closure n times, always for the same minibatch. Before each evaluation the
    gradients of these parameters are cleared, so an update never sees the gradient of another; a closure that
    clears them as well does no harm, and gradients left by an earlier `backward` are discarded.

    It is not SGD with n times the rate: for n > 1 the gradient is taken anew after every update.

    >>> weight = torch.nn.Parameter(torch.tensor([8.0]))
    >>> optimizer = NStepSGD([weight], lr=0.5, inner_steps=3)
    >>> def closure():
    ...     loss = 0.5 * weight.square().sum()
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item(), weight.item(), optimizer.effective_learning_rate
    (32.0, 1.0, 1.5)
    """

    def __init__(self, params: ParamsT, lr: float, *, inner_steps: int, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "inner_steps": inner_steps, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        _check(self.param_groups[-1])
        if self.param_groups[-1]["inner_steps"] != self.param_groups[0]["inner_steps"]:
            found = [group["inner_steps"] for group in self.param_groups]
            raise InputError(f"parameter groups have inner_steps {found}; expected one number: they share a closure.")

    @property
    def inner_steps(self) -> int:
        """n, the number of updates per minibatch."""
        return int(self.param_groups[0]["inner_steps"])

    @property
    def effective_learning_rate(self) -> float:
        """ε = nα at this moment; refuses when parameter groups have different rates."""
        rates = {float(group["lr"]) for group in self.param_groups}
        if len(rates) > 1:
            raise InputError(f"parameter groups have rates {sorted(rates)}; expected one rate here.")
        return self.inner_steps * rates.pop()

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor:  # type: ignore[override]
        """The loss before the first update, after n updates.

        `closure` computes the loss of the current minibatch, calls `backward` and returns the loss.
        """
        if closure is None:
            raise InputError(
                "step() got no closure; expected one that computes the loss, calls backward and returns the loss: "
                "NStepSGD evaluates it inner_steps times."
            )
        first: Tensor | None = None
        for _ in range(self.inner_steps):
            self.zero_grad()
            with torch.enable_grad():
                loss = closure()
            if loss is None:
                raise InputError("the closure returned None; expected the loss.")
            first = loss if first is None else first
            self._update()
        assert first is not None  # inner_steps is at least 1
        return first

    def _update(self) -> None:
        found = False
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                found = True
                gradient = parameter.grad
                if group["weight_decay"]:
                    gradient = gradient.add(parameter, alpha=group["weight_decay"])
                parameter.add_(gradient, alpha=-float(group["lr"]))  # the same two operations as torch.optim.SGD
        if not found:
            raise InputError("the closure left no gradient on any parameter; expected it to call loss.backward().")


def _check(group: dict[str, Any]) -> None:
    steps = group["inner_steps"]
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise InputError(f"inner_steps={steps!r}; expected a whole number of at least 1.")
    for key in ("lr", "weight_decay"):
        if not (math.isfinite(group[key]) and group[key] >= 0):
            raise InputError(f"{key}={group[key]!r}; expected a finite number that is not negative.")
