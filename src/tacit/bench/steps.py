"""The training steps that are compared: plain SGD, the double backward everyone writes, and this package's own."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

import torch
from torch import Tensor

from tacit.bench.models import Workload

STRENGTH = 2**-6  # λ, the paper's best
LEARNING_RATE = 2**-20  # so small that the model stays where it was while it is measured

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
        total = torch.zeros(())
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


def penalty_step(method: str, *, whole_batch: bool = False) -> Callable[[Workload, float], Step]:
    """`GradientPenalty` with one method, and `torch.optim.SGD`; `whole_batch` leaves micro-batches out."""

    def make(workload: Workload, learning_rate: float) -> Step:
        from tacit.penalty import GradientPenalty

        size = None if whole_batch else workload.micro_batch_size
        penalty = GradientPenalty(
            workload.model, strength=STRENGTH, method=method, micro_batch_size=size, when_uncertain="warn"
        )
        optimizer = torch.optim.SGD(workload.model.parameters(), lr=learning_rate, momentum=workload.momentum)

        def step() -> Tensor:
            optimizer.zero_grad()
            if size is None:
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
        StepKind("naive double backward", True, True, naive_double_backward),
        StepKind("double_backward", True, True, penalty_step("double_backward")),
        StepKind("gram", True, True, penalty_step("gram")),
        StepKind("finite_difference", False, True, penalty_step("finite_difference")),
        StepKind("FactoredSGD", True, True, factored),
    )
}


WHOLE_BATCH = StepKind("gram, whole batch", True, False, penalty_step("gram", whole_batch=True))


def steps_for(workload: Workload) -> dict[str, StepKind]:
    """Every step; with micro-batches also the penalty of the whole batch, another objective, to compare the time."""
    return STEPS if workload.micro_batch_size is None else STEPS | {WHOLE_BATCH.name: WHOLE_BATCH}


@dataclass(frozen=True)
class Timing:
    """Seconds of one step: the median and the quartiles over interleaved rounds."""

    median: float
    low: float
    high: float
    rounds: int


def time_interleaved(steps: dict[str, Step], *, rounds: int) -> dict[str, Timing]:
    """The median seconds of every step, measured in turns so that a slow moment of the machine hits all of them.

    In each round every step runs twice and the second run counts: the first one frees what another step left behind
    (gradients above all), which in a loop of its own the step would not meet. The number of rounds is fixed before the
    first: nothing that is seen on the way can end the measurement.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    collecting = gc.isenabled()
    gc.disable()  # a collection inside one step would be charged to that step
    try:
        for _ in range(rounds):
            for name, step in steps.items():
                step()
                begun = time.perf_counter()
                step()
                seconds[name].append(time.perf_counter() - begun)
            gc.collect()
    finally:
        if collecting:
            gc.enable()
    return {name: _summary(values) for name, values in seconds.items()}


def _summary(values: list[float]) -> Timing:
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Timing(median(values), low, high, len(values))
