"""Which optimizer is advised on: its rate and momentum read from torch's object, or a refusal that names a way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tacit._util.arguments import finite_number
from tacit._util.errors import InputError

ADAPTIVE = (
    "{name} is not covered: it divides each coordinate by its own root mean square gradient, so the loss that it "
    "follows has no common factor on C_reg, and for its usual β₂ > β₁ the full-batch term is even of the other sign "
    "(Cattaneo et al., ICML 2024). Use tacit.search_strength, which tries strengths on a validation split."
)
OTHER = (
    "{name} is not covered: the formulas are those of torch.optim.SGD, with or without momentum. Use "
    "tacit.search_strength, which tries strengths on a validation split."
)


@dataclass(frozen=True)
class Momentum:
    """β of torch.optim.SGD, and whether it is Nesterov's."""

    beta: float = 0.0
    nesterov: bool = False

    def __str__(self) -> str:
        kind = "Nesterov" if self.nesterov else "heavy ball"
        return "no momentum" if self.beta == 0 else f"{kind}, β = {self.beta:g}"


@dataclass(frozen=True)
class OptimizerSettings:
    """What the advice needs of an optimizer; the rate is None where only momentum was given.

    `weight_decay` is None where parameter groups differ in it, and `strength` that of a `tacit.FactoredSGD`.
    """

    learning_rate: float | None
    momentum: Momentum
    weight_decay: float | None = 0.0
    strength: float = 0.0


def read_optimizer(optimizer: Any) -> OptimizerSettings:
    """Those of a torch.optim.SGD or tacit.FactoredSGD; every other optimizer is refused with what to do instead."""
    import torch

    from tacit.penalty import FactoredSGD

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer is a {type(optimizer).__name__}; expected a torch.optim.SGD object.")
    if not isinstance(optimizer, (torch.optim.SGD, FactoredSGD)):
        of_adam = isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam))
        raise InputError((ADAPTIVE if of_adam else OTHER).format(name=type(optimizer).__name__))
    groups = optimizer.param_groups
    settings = {(float(g["lr"]), float(g["momentum"]), bool(g["nesterov"]), float(g["dampening"])) for g in groups}
    if len(settings) != 1:
        raise InputError(
            f"the optimizer has {len(settings)} parameter groups with different rates or momentum; expected one. "
            "Give learning_rate and momentum of the group that matters."
        )
    rate, beta, nesterov, dampening = settings.pop()
    if dampening:
        raise InputError(f"the optimizer has dampening={dampening:g}; expected 0, as in the formulas.")
    if any(group.get("maximize", False) for group in groups):
        raise InputError("the optimizer has maximize=True; expected one that descends. Negate the loss instead.")
    decays = {float(group["weight_decay"]) for group in groups}
    own_strength = float(groups[0]["strength"]) if isinstance(optimizer, FactoredSGD) else 0.0
    return OptimizerSettings(rate, Momentum(beta, nesterov), decays.pop() if len(decays) == 1 else None, own_strength)


def optimizer_settings(optimizer: Any, momentum: float | None, nesterov: bool) -> OptimizerSettings:
    """From either way of saying it: the optimizer itself, or its momentum."""
    if optimizer is None:
        beta = finite_number("momentum", 0.0 if momentum is None else momentum)
        if beta >= 1:
            raise InputError(f"momentum={momentum!r}; expected 0 <= momentum < 1.")
        if nesterov and beta == 0:
            raise InputError("nesterov=True without momentum; expected momentum above 0.")
        return OptimizerSettings(None, Momentum(beta, nesterov))
    if momentum is not None or nesterov:
        raise InputError("optimizer and momentum were both given; expected one of them.")
    return read_optimizer(optimizer)
