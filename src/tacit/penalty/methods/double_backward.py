"""The readable reference: differentiate the gradient's squared norm by a second backward pass.

    Ĉ + (λ/4) ‖∇Ĉ‖²,   ∇Ĉ from `autograd.grad(create_graph=True)` on the parameters

Nine matrix products per layer where a plain gradient has three. Every other exact method is tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit._errors import InputError
from tacit._tree import total
from tacit.layers.modes import modes_on
from tacit.layers.penalty_part import GradientWatch, PenaltyPart
from tacit.penalty.objective import Outcome, Task
from tacit.penalty.surroundings.buffers import BufferVersions
from tacit.penalty.surroundings.refusals import NOTHING_REACHED
from tacit.penalty.surroundings.state import without_hooks


def backward(task: Task) -> Outcome:
    """Exact; forms every weight gradient inside the graph."""
    parameters = list(task.parameters.values())
    losses = [task.loss(closure) for closure in task.closures]
    before = BufferVersions(task.model)
    # The last view first, as one backward pass of the mean of both losses visits them.
    gradients = [_gradients(loss, parameters, task.scale) for loss in reversed(losses)][::-1]
    norm = share = inner_product(gradients[0], gradients[-1])
    if task.mean is not None:
        means = [task.mean(parts) for parts in gradients]
        norm = inner_product(means[0], means[-1])
        along = [inner_product(parts, other) for parts, other in zip(gradients, reversed(means), strict=True)]
        share = 2 * torch.stack(along).mean() - norm
    loss = torch.stack(losses).mean()
    part = watch = None
    if len(losses) == 1 and task.mean is None:
        part, plain = PenaltyPart(task.strength), [gradient.detach() for gradient in gradients[0]]
        watch = GradientWatch(
            part, dict(zip(parameters, plain, strict=True)), task.weight * task.scale, task.loss_weight
        )
    with before.keep_from_here():
        task.finish(task.weight * task.scale * (task.plain_part(loss) + task.strength / 4 * share), watch)
    return Outcome(loss.detach(), norm.detach(), part=part)


def inner_product(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    return total((a * b).sum() for a, b in zip(left, right, strict=True))


def _gradients(loss: Tensor, parameters: list[torch.nn.Parameter], scale: float) -> list[Tensor]:
    # With scale 1 nothing is multiplied or divided: each would be a pass over all gradients in both derivatives.
    scaled = loss if scale == 1 else scale * loss
    with without_hooks(parameters), modes_on():
        gradients = torch.autograd.grad(scaled, parameters, create_graph=True, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise InputError(NOTHING_REACHED)
    return [
        torch.zeros_like(parameter) if gradient is None else _unscaled(gradient, scale)
        for gradient, parameter in zip(gradients, parameters, strict=True)
    ]


def _unscaled(gradient: Tensor, scale: float) -> Tensor:
    return gradient if scale == 1 else gradient / scale
