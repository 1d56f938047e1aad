"""The error of a penalised step's gradient, relative to the penalty's own part of it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
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
    plain = [torch.zeros_like(parameter) for parameter in parameters]
    penalty = [torch.zeros_like(parameter) for parameter in parameters]
    pieces = double.micro_batches()
    with workload.twice_differentiable():
        for piece in pieces:
            first = torch.autograd.grad(double.loss_on(*piece), parameters, create_graph=True)
            squared_norm = torch.stack([gradient.square().sum() for gradient in first]).sum()
            second = torch.autograd.grad(
                STRENGTH / 4 * squared_norm, parameters, allow_unused=True, materialize_grads=True
            )
            with torch.no_grad():
                for total, parts in ((plain, first), (penalty, second)):
                    for sum_so_far, part in zip(total, parts, strict=True):
                        sum_so_far += part / len(pieces)
    with torch.no_grad():
        return Oracle([a + b for a, b in zip(plain, penalty, strict=True)], _norm(penalty))


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
        return _norm(errors) / reference.penalty_norm


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(sum(float(tensor.square().sum()) for tensor in tensors)) ** 0.5
