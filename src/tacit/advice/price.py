"""`Price`: what a penalised step costs beside a plain one on a given model, and settings that cost less."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from tacit._arguments import finite_number
from tacit._counted import ordinal
from tacit._errors import InputError
from tacit.penalty import GradientPenalty

EVERY = (1, 2, 4, 8)
FEWEST, MOST = 3, 50  # timed steps of each setting


@dataclass(frozen=True)
class Alternative:
    """Micro-batches of one size, the strength of equal expected regularization on them, and the most advised.

    `most[k]` is that for a penalty on every k-th step; empty where curvature was not measured.
    """

    micro_batch_size: int
    strength: float
    most: dict[int, float]


@dataclass(frozen=True)
class Setting:
    """A penalty of equal expected regularization, and the time of its steps in plain steps, averaged over k of them."""

    every: int
    micro_batch_size: int
    strength: float
    times_plain: float

    def __str__(self) -> str:
        steps = "every step" if self.every == 1 else f"every {ordinal(self.every)} step"
        return f"λ = {self.strength:.4g} on micro-batches of {self.micro_batch_size}, {steps}: {self.times_plain:.2f}"


@dataclass(frozen=True)
class Price:
    """The advised setting, and all that regularize as much in the mean and stay inside the edge, cheapest first."""

    plain_seconds: float
    advised: Setting
    settings: tuple[Setting, ...]

    @property
    def cheapest(self) -> Setting:
        return self.settings[0]

    def __str__(self) -> str:
        lines = [
            f"A step costs {self.advised.times_plain:.2f} plain steps of {self.plain_seconds:.3g} s: {self.advised}."
        ]
        return "\n".join(
            [*lines, "  at equal expected regularization, in plain steps:", *[f"  {each}" for each in self.settings]]
        )


def measure_price(
    alternatives: Sequence[Alternative],
    advised: tuple[int, int],
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    *batch: Tensor,
    seconds: float = 1.0,
) -> Price:
    """Times a plain step and a penalised one per micro-batch size, on a copy of the model; `advised` is (k, b).

    With `every=k` the penalty has weight kλ on one step in k, so it costs (p + k − 1)/k where a penalised step costs p.
    """
    if len(batch) != 2:
        raise InputError(f"price got {len(batch)} tensors; expected inputs and targets of one minibatch.")
    budget = finite_number("seconds", seconds, positive=True)
    own = copy.deepcopy(model)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return loss_fn(own(inputs), targets)

    share = budget / (1 + len(alternatives))
    plain = _fastest_seconds(lambda: loss(*batch).backward(), own, share)
    settings = []
    for option in alternatives:
        if option.strength <= 0 or len(batch[0]) % option.micro_batch_size:
            continue
        # One micro-batch of everything is a penalty without micro-batches.
        size = None if option.micro_batch_size >= len(batch[0]) else option.micro_batch_size
        step = partial(GradientPenalty(own, option.strength, micro_batch_size=size).backward, loss, *batch)
        cost = _fastest_seconds(step, own, share) / plain
        for k in EVERY:
            if k == 1 or option.strength <= option.most.get(k, math.inf):
                settings.append(Setting(k, option.micro_batch_size, option.strength, (cost + k - 1) / k))
    own_setting = [each for each in settings if (each.every, each.micro_batch_size) == advised]
    if not own_setting:
        raise InputError(
            f"the batch has {len(batch[0])} examples; expected a multiple of the micro-batch size {advised[1]}, and an "
            "advice with a positive strength."
        )
    return Price(plain, own_setting[0], tuple(sorted(settings, key=lambda each: each.times_plain)))


def _fastest_seconds(step: Callable[[], object], model: nn.Module, budget: float) -> float:
    """The time of the fastest step, after one that is not counted: whatever else the machine does only adds to it."""
    times: list[float] = []
    end = None
    while len(times) < FEWEST or (len(times) < MOST and end is not None and time.perf_counter() < end):
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        step()
        _wait(model)
        if end is None:
            end = start + budget
        else:
            times.append(time.perf_counter() - start)
    return min(times)


def _wait(model: nn.Module) -> None:
    import torch

    devices: Sequence[torch.device] = [parameter.device for parameter in model.parameters()][:1]
    if devices and devices[0].type == "cuda":
        torch.cuda.synchronize(devices[0])
