"""The error of a penalised step's gradient, relative to the penalty's own part of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.bench.models import Workload
from tacit.bench.steps import STRENGTH, StepKind

UNIT_STEP = 2.0**20  # the update then dwarfs the parameters, so that subtracting them back loses nothing


@dataclass(frozen=True)
class Oracle:
    """∇Ĉ + (λ/2) ∇²Ĉ ∇Ĉ by double backward in float64, parameter by parameter, and the norm of its second term."""

    gradients: list[Tensor]
    penalty_norm: float


def oracle(workload: Workload) -> Oracle:
    """The reference for one model and minibatch: the same in float64; the mean over micro-batches, if there are."""
    model = copy.deepcopy(workload.model).double()
    inputs = workload.inputs.double() if workload.inputs.is_floating_point() else workload.inputs
    double = replace(workload, model=model, inputs=inputs)
    parameters = list(model.parameters())
    plain, product = ([torch.zeros_like(parameter) for parameter in parameters] for _ in range(2))
    pieces = double.micro_batches()
    with workload.twice_differentiable():
        for piece in pieces:
            found = gradient_and_product(double.loss_on(*piece), parameters)
            for total, parts in zip((plain, product), found, strict=True):
                torch._foreach_add_(total, parts, alpha=1 / len(pieces))
    penalty = [STRENGTH / 2 * part for part in product]
    return Oracle([a + b for a, b in zip(plain, penalty, strict=True)], norm(penalty))


def gradient_and_product(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """∇Ĉ and ∇²Ĉ ∇Ĉ by plain double backward; nothing of this package's methods."""
    plain = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
    half = sum((gradient.square().sum() for gradient in plain), torch.zeros_like(loss)) / 2
    product = [torch.zeros_like(gradient) for gradient in plain]
    if half.requires_grad:  # not of a linear loss
        product = list(torch.autograd.grad(half, parameters, materialize_grads=True))
    return [gradient.detach() for gradient in plain], product


def relative_error(kind: StepKind, workload: Workload, reference: Oracle) -> float:
    """‖G − G₆₄‖ / ‖(λ/2) ∇²Ĉ ∇Ĉ‖, where G is the gradient that the step applies.

    G is read off the update itself, (ω − ω′)/lr, so that a step is judged by what it does to the parameters, whether
    or not it leaves a gradient behind.
    """
    moved = replace(workload, model=copy.deepcopy(workload.model))
    kind.make(moved, UNIT_STEP)()
    with torch.no_grad():
        errors = (
            (before.double() - after.double()) / UNIT_STEP - expected
            for before, after, expected in zip(
                workload.model.parameters(), moved.model.parameters(), reference.gradients, strict=True
            )
        )
        return norm(errors) / reference.penalty_norm


def norm(tensors: Iterable[Tensor]) -> float:
    """Of all of them together, in float64."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
