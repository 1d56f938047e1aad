"""The error of a penalised step's gradient, relative to the penalty's own part of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.bench.models import Workload
from tacit.bench.steps import STRENGTH, StepKind

UNIT_STEP = 2.0**20  # the update then dwarfs the parameters, so that subtracting them back loses nothing


@dataclass(frozen=True)
class Oracle:
    """∇Ĉ + (λ/2) ∇²Ĉ ∇Ĉ by double backward in float64, and its second term alone."""

    gradient: Tensor
    penalty_part: Tensor


def oracle(workload: Workload) -> Oracle:
    """The reference for one model and minibatch: the same model, the same minibatch, float64."""
    model = copy.deepcopy(workload.model).double()
    inputs = workload.inputs.double() if workload.inputs.is_floating_point() else workload.inputs
    parameters = list(model.parameters())
    loss = torch.nn.functional.cross_entropy(model(inputs), workload.targets)
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    squared_norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
    curved = torch.autograd.grad(STRENGTH / 4 * squared_norm, parameters, allow_unused=True, materialize_grads=True)
    penalty_part = _flatten(list(curved))
    return Oracle(_flatten([gradient.detach() for gradient in gradients]) + penalty_part, penalty_part)


def relative_error(kind: StepKind, workload: Workload, reference: Oracle) -> float:
    """‖G − G₆₄‖ / ‖(λ/2) ∇²Ĉ ∇Ĉ‖, where G is the gradient that the step applies.

    G is read off the update itself, (ω − ω′)/lr, so that a step is judged by what it does to the parameters, whether
    or not it leaves a gradient behind.
    """
    copied = Workload(copy.deepcopy(workload.model), workload.inputs, workload.targets)
    step = kind.make(copied, UNIT_STEP)
    before = _flatten([parameter.detach().double() for parameter in copied.model.parameters()])
    step()
    after = _flatten([parameter.detach().double() for parameter in copied.model.parameters()])
    return float(((before - after) / UNIT_STEP - reference.gradient).norm() / reference.penalty_part.norm())


def _flatten(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
