"""Which optimizer is advised on: its rate and momentum read from torch's object, or a refusal that names a way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tacit._arguments import finite_number
from tacit._errors import InputError

ADAPTIVE = (
    "{name} is not covered: it divides each coordinate by its own root mean square gradient, so the loss that it "
    "follows has no common factor on C_reg, and for its usual β₂ > β₁ the full-batch term is even of the other sign "
    "(Cattaneo et al., ICML 2024). Use tacit.search_strength, which tries strengths on a validation split."
)


@dataclass(frozen=True)
class Momentum:
    """β of torch.optim.SGD, and whether it is Nesterov's."""

    beta: float = 0.0
    nesterov: bool = False

    def __str__(self) -> str:
        kind = "Nesterov" if self.nesterov else "heavy ball"
        return "no momentum" if self.beta == 0 else f"{kind}, β = {self.beta:g}"


def read_optimizer(optimizer: Any) -> tuple[float, Momentum]:
    """(ε, momentum) of a torch.optim.SGD; every other optimizer is refused with what to do instead."""
    import torch

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer is a {type(optimizer).__name__}; expected a torch.optim.SGD object.")
    if not isinstance(optimizer, torch.optim.SGD):
        raise InputError(ADAPTIVE.format(name=type(optimizer).__name__))
    settings = {(g["lr"], g["momentum"], g["nesterov"], g["dampening"]) for g in optimizer.param_groups}
    if len(settings) != 1:
        raise InputError(
            f"the optimizer has {len(settings)} parameter groups with different rates or momentum; expected one. "
            "Give learning_rate and momentum of the group that matters."
        )
    rate, beta, nesterov, dampening = settings.pop()
    if dampening:
        raise InputError(f"the optimizer has dampening={dampening}; expected 0, as in the formulas.")
    return float(rate), Momentum(float(beta), bool(nesterov))


def make_momentum(optimizer: Any, momentum: float | None, nesterov: bool) -> tuple[float | None, Momentum]:
    """(ε of the optimizer if there is one, momentum) from either way of saying it."""
    if optimizer is None:
        beta = finite_number("momentum", 0.0 if momentum is None else momentum)
        if beta >= 1:
            raise InputError(f"momentum={momentum!r}; expected 0 <= momentum < 1.")
        if nesterov and beta == 0:
            raise InputError("nesterov=True without momentum; expected momentum above 0.")
        return None, Momentum(beta, nesterov)
    if momentum is not None or nesterov:
        raise InputError("optimizer and momentum were both given; expected one of them.")
    return read_optimizer(optimizer)
