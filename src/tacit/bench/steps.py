"""The training steps that are compared: plain SGD, the double backward everyone writes, and this package's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacit.bench.models import Workload

if TYPE_CHECKING:
    from tacit.penalty import GradientPenalty

STRENGTH = 2**-6  # λ, the paper's best
LEARNING_RATE = 2**-20  # so small that the model stays where it was while it is measured

NAIVE, TWO_PASSES = "naive double backward", "two plain passes"  # the hand-written rivals
Step = Callable[[], Tensor]


@dataclass(frozen=True)
class StepKind:
    """One way to take a step; `exact` ones must reproduce the penalty's gradient to rounding."""

    name: str
    exact: bool
    penalised: bool
    make: Callable[[Workload, float], Step]


def plain(workload: Workload, learning_rate: float) -> Step:
    """What a PyTorch user does without a penalty: clear, forward, backward, `torch.optim.SGD.step`."""
    optimizer = torch.optim.SGD(workload.model.parameters(), lr=learning_rate, momentum=workload.momentum)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = workload.loss()
        loss.backward()
        optimizer.step()
        return loss

    return step


def naive_double_backward(workload: Workload, learning_rate: float) -> Step:
    """What everyone writes: the gradient with a graph, its squared norm added to the loss, backward through both."""
    parameters = list(workload.model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=learning_rate, momentum=workload.momentum)

    pieces = workload.micro_batches()

    def step() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), device=workload.inputs.device)
        with workload.twice_differentiable():
            for inputs, targets in pieces:
                loss = workload.loss_on(inputs, targets)
                gradients = torch.autograd.grad(loss, parameters, create_graph=True)
                squared_norm = sum(gradient.pow(2).sum() for gradient in gradients)
                ((loss + STRENGTH / 4 * squared_norm) / len(pieces)).backward()
                total += loss.detach()
        optimizer.step()
        return total / len(pieces)

    return step


def two_plain_passes(workload: Workload, learning_rate: float) -> Step:
    """What an engineer writes in place of `finite_difference`: g, a move by s·g, the gradient there, the move back.

    s is that of `finite_difference` at first order, u^(1/2) max(1, ‖ω‖) / ‖g‖. Kinks are crossed as they are, no error
    is estimated, and ω is back to rounding only: nothing cheaper computes the same difference.
    """
    parameters: list[Tensor] = list(workload.model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=learning_rate, momentum=workload.momentum)
    pieces, root = workload.micro_batches(), torch.finfo(parameters[0].dtype).eps ** 0.5

    def norm(vector: Sequence[Tensor]) -> float:
        return float(torch.stack(torch._foreach_norm(list(vector))).norm())

    def step() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), device=workload.inputs.device)
        for piece in pieces:
            loss = workload.loss_on(*piece)
            here = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                s = root * max(1.0, norm(parameters)) / norm(here)
                torch._foreach_add_(parameters, here, alpha=s)
            there = torch.autograd.grad(workload.loss_on(*piece), parameters)
            with torch.no_grad():
                torch._foreach_sub_(parameters, here, alpha=s)
                torch._foreach_sub_(there, here)
                torch._foreach_add_(here, there, alpha=STRENGTH / 2 / s)
                if len(pieces) > 1:
                    torch._foreach_div_(here, len(pieces))
            for parameter, gradient in zip(parameters, here, strict=True):
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
            total += loss.detach()
        optimizer.step()
        return total / len(pieces)

    return step


def make_penalty(workload: Workload, method: str, *, whole_batch: bool = False) -> GradientPenalty:
    """The penalty that a step is measured with; its `method` says what `auto` stands for."""
    from tacit.penalty import GradientPenalty

    size = None if whole_batch else workload.micro_batch_size
    return GradientPenalty(workload.model, STRENGTH, method=method, micro_batch_size=size, when_uncertain="warn")


def penalty_step(method: str, *, whole_batch: bool = False) -> Callable[[Workload, float], Step]:
    """`GradientPenalty` with one method, and `torch.optim.SGD`; `whole_batch` leaves micro-batches out."""

    def make(workload: Workload, learning_rate: float) -> Step:
        penalty = make_penalty(workload, method, whole_batch=whole_batch)
        optimizer = torch.optim.SGD(workload.model.parameters(), lr=learning_rate, momentum=workload.momentum)

        def step() -> Tensor:
            optimizer.zero_grad()
            if penalty.micro_batch_size is None:
                loss = penalty.backward(workload.loss)
            else:
                loss = penalty.backward(workload.loss_on, workload.inputs, workload.targets)
            optimizer.step()
            return loss

        return step

    return make


def factored(workload: Workload, learning_rate: float) -> Step:
    """`FactoredSGD`: the exact penalised step without a weight gradient."""
    from tacit.penalty import FactoredSGD

    optimizer = FactoredSGD(
        workload.model,
        lr=learning_rate,
        strength=STRENGTH,
        momentum=workload.momentum,
        micro_batch_size=workload.micro_batch_size,
    )
    if workload.micro_batch_size is None:
        return lambda: optimizer.step(workload.loss)
    return lambda: optimizer.step(workload.loss_on, workload.inputs, workload.targets)


STEPS: dict[str, StepKind] = {
    kind.name: kind
    for kind in (
        StepKind("plain", True, False, plain),
        StepKind(NAIVE, True, True, naive_double_backward),
        StepKind("auto", True, True, penalty_step("auto")),
        StepKind("double_backward", True, True, penalty_step("double_backward")),
        StepKind("gram", True, True, penalty_step("gram")),
        StepKind(TWO_PASSES, False, True, two_plain_passes),
        StepKind("finite_difference", False, True, penalty_step("finite_difference")),
        StepKind("FactoredSGD", True, True, factored),
    )
}


WHOLE_BATCH = StepKind("gram, whole batch", True, False, penalty_step("gram", whole_batch=True))


def steps_for(workload: Workload) -> dict[str, StepKind]:
    """Every step; with micro-batches also the penalty of the whole batch, another objective, to compare the time."""
    return STEPS if workload.micro_batch_size is None else STEPS | {WHOLE_BATCH.name: WHOLE_BATCH}
