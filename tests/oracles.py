"""Slow truths in other algebra, importing nothing from the package."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def penalised_gradient(
    model: nn.Module,
    loss_of: Callable[[nn.Module], Tensor],
    strength: float,
    *,
    seed: int = 0,
    skip: tuple[str, ...] = (),
) -> dict[str, Tensor]:
    """∇Ĉ + (λ/2) H g by an explicit Hessian matrix in float64, row by row; `skip` leaves parameters out of the norm.

    Returns {name: gradient}, with the penalty's part alone under "penalty:" + name, and the scalars "loss", "norm".
    """
    double = copy.deepcopy(model).double()
    torch.manual_seed(seed)
    loss = loss_of(double)
    named = [(name, parameter) for name, parameter in double.named_parameters() if parameter.requires_grad]
    parameters = [parameter for _, parameter in named]
    gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    gradient = torch.cat([flat_or_zero(g, p) for g, p in zip(gradients, parameters, strict=True)])
    rows = []
    for entry in gradient:
        if entry.requires_grad:
            row = torch.autograd.grad(entry, parameters, retain_graph=True, allow_unused=True)
            rows.append(torch.cat([flat_or_zero(g, p) for g, p in zip(row, parameters, strict=True)]).detach())
        else:
            rows.append(torch.zeros_like(gradient).detach())
    hessian = torch.stack(rows)
    inside = torch.cat([torch.full((p.numel(),), float(name not in skip), dtype=torch.float64) for name, p in named])
    penalised = inside * gradient.detach()
    part = strength / 2 * hessian @ penalised
    whole = gradient.detach() + part
    found: dict[str, Tensor] = {"loss": loss.detach(), "norm": penalised.square().sum()}
    start = 0
    for name, parameter in named:
        stop = start + parameter.numel()
        found[name] = whole[start:stop].reshape(parameter.shape)
        found["penalty:" + name] = part[start:stop].reshape(parameter.shape)
        start = stop
    return found


def flat_or_zero(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like).reshape(-1) if gradient is None else gradient.reshape(-1)


def sharpness_aware_gradient(
    model: nn.Module,
    whole: Callable[[nn.Module], Tensor],
    part: Callable[[nn.Module], Tensor] | None = None,
    *,
    radius: float,
    skip: Iterable[str] = (),
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the whole batch at ω + ρ g/‖g‖ and its gradient there, g that of `part`; of a copy of the model."""
    model = copy.deepcopy(model)
    named = dict(model.named_parameters())
    moving = [parameter for name, parameter in named.items() if name not in skip]
    torch.manual_seed(0)
    found = torch.autograd.grad((part or whole)(model), moving, materialize_grads=True)
    length = torch.cat([gradient.flatten() for gradient in found]).norm()
    with torch.no_grad():
        for parameter, gradient in zip(moving, found, strict=True):
            parameter += radius / length * gradient
    torch.manual_seed(0)
    loss = whole(model)
    gradients = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
    return loss.detach(), dict(zip(named, gradients, strict=True))
