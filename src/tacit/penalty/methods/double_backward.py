"""The readable reference: the gradient, kept differentiable, pulled back along itself.

    ∇( Ĉ + (λ/4) ‖∇Ĉ‖² ) = ∇Ĉ + (λ/2) ∇²Ĉ ∇Ĉ

`autograd.grad(create_graph=True)` gives g = ∇Ĉ with a graph; one backward pass of (Ĉ, g) from the cotangents
(1, (λ/2) g) gives the sum. Nine matrix products per layer where a plain gradient has three. Every other exact method is
tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit._util.errors import InputError
from tacit.layers.penalty_part import GradientWatch, PenaltyPart, inner_product
from tacit.penalty.objective import Objective, Outcome, gradients_of
from tacit.penalty.surroundings.buffers import BufferVersions
from tacit.penalty.surroundings.refusals import NOTHING_REACHED


def backward(objective: Objective) -> Outcome:
    """Exact; forms every weight gradient inside the graph.

    Two views a, b: (λ/4)⟨gᵃ, gᵇ⟩ has the cotangents (λ/4) gᵇ and (λ/4) gᵃ. With `mean` over workers the cotangents are
    made of the mean gradients ḡ (see `Objective`).
    """
    parameters = list(objective.parameters.values())
    losses = [objective.loss(closure) for closure in objective.closures]
    before = BufferVersions(objective.modules)
    # The last view first, as one backward pass of the mean of both losses visits them.
    gradients = [_gradients(loss, parameters, objective.scale) for loss in reversed(losses)][::-1]
    plain = [_without_graph(view, parameters, objective.scale) for view in gradients]
    loss = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
    part = watch = None
    if len(losses) == 1 and objective.mean is None:
        part = PenaltyPart(objective.strength)
        watch = GradientWatch(
            part,
            dict(zip(parameters, plain[0], strict=True)),
            objective.weight * objective.scale,
            objective.loss_weight,
            collect=objective.collect,
        )
    directions = plain if objective.mean is None else [objective.mean(view) for view in plain]
    norm = inner_product(directions[0], directions[-1]) if watch is None else watch.squared_norm()
    # d/dg of (λ/4)⟨gᵃ, gᵇ⟩ and of (λ/4)‖g‖², in units of the scaled gradients.
    factor = objective.strength / (2 * len(losses)) * objective.weight
    outputs: list[Tensor] = []
    cotangents: list[Tensor] = []
    for view, direction in zip(gradients, reversed(directions), strict=True):
        for gradient, along in zip(view, direction, strict=True):
            if gradient is not None and gradient.requires_grad:
                outputs.append(gradient)
                cotangents.append(along.detach())
    if not any(along.is_sparse for along in cotangents):
        cotangents = list(torch._foreach_mul(cotangents, factor)) if cotangents else []
    else:
        cotangents = [along * factor for along in cotangents]
    with before.keep_from_here():
        objective.finish(
            loss, watch, factor=objective.loss_weight * objective.factor, outputs=outputs, cotangents=cotangents
        )
    return Outcome(loss.detach(), norm, part=part)


def _gradients(loss: Tensor, parameters: list[torch.nn.Parameter], scale: float | Tensor) -> Sequence[Tensor | None]:
    """`scale` times the gradient, differentiable; None where the loss does not reach a parameter."""
    scaled = loss if isinstance(scale, float) and scale == 1 else scale * loss
    gradients = gradients_of(scaled, parameters, create_graph=True)
    if all(gradient is None for gradient in gradients):
        raise InputError(NOTHING_REACHED)
    return gradients


def _without_graph(
    gradients: Sequence[Tensor | None], parameters: list[torch.nn.Parameter], scale: float | Tensor
) -> list[Tensor]:
    plain = [
        torch.zeros_like(parameter) if gradient is None else gradient.detach()
        for gradient, parameter in zip(gradients, parameters, strict=True)
    ]
    return plain if isinstance(scale, float) and scale == 1 else list(torch._foreach_div(plain, scale))


def plain_backward(objective: Objective) -> Outcome:
    """Strength 0: bitwise what `loss.backward()` does."""
    losses = [objective.loss(closure) for closure in objective.closures]
    loss = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
    if objective.loss_weight:
        objective.finish(loss, factor=objective.weight * objective.scale)
    return Outcome(loss.detach(), torch.zeros_like(loss.detach()))
