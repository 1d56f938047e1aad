"""`Price`: what a penalised step costs beside a plain one on a given model, and settings that cost less."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from tacit._arguments import finite_number, whole_number
from tacit._counted import ordinal
from tacit._errors import InputError
from tacit.penalty import GradientPenalty

EVERY = (1, 2, 4, 8)
FEWEST, MOST = 5, 50  # timed steps of each setting
FINE = 1e-4  # seconds: a clock with longer ticks does not resolve one step
CPU, WALL = "CPU time of all threads", "wall clock"


@dataclass(frozen=True)
class Alternative:
    """Micro-batches of one size, the strength of equal expected regularization on them, and the most advised.

    `most[k]` is that for a penalty on every k-th step, infinite where curvature was not measured.
    """

    micro_batch_size: int
    strength: float
    most: dict[int, float]


@dataclass(frozen=True)
class Setting:
    """A penalty of equal expected regularization, and the time of its steps in plain steps, averaged over k of them.

    Where that much would be beyond the edge, `held` is true: the strength is the most advised, and regularizes less.
    `sampled` is how many of the micro-batches are drawn at each step; None: all of them.
    """

    every: int
    micro_batch_size: int
    strength: float
    times_plain: float
    held: bool = False
    sampled: int | None = None

    def __str__(self) -> str:
        steps = "every step" if self.every == 1 else f"every {ordinal(self.every)} step"
        held = " (held at the edge: less regularization)" if self.held else ""
        drawn = "" if self.sampled is None else f"{self.sampled} drawn of the "
        where = f"{drawn}micro-batches of {self.micro_batch_size}"
        return f"λ = {self.strength:.4g} on {where}, {steps}{held}: {self.times_plain:.2f}"


@dataclass(frozen=True)
class Price:
    """The advised setting, and settings that regularize as much in the mean and stay inside the edge, cheapest first.

    Settings that are held at the edge, and so regularize less, come after all others. `clock` says what was timed: on a
    CPU the time of all threads of the process, which other programs do not add to.

    `sampled` has the same strengths on drawn micro-batches, cheapest first, where they were asked for. They regularize
    as much in the mean, but their edge lies lower, and is not predicted here: no setting of them is `cheapest`.
    """

    plain_seconds: float
    advised: Setting
    settings: tuple[Setting, ...]
    clock: str = WALL
    sampled: tuple[Setting, ...] = ()

    @property
    def cheapest(self) -> Setting:
        return self.settings[0]

    def __str__(self) -> str:
        lines = [
            f"A step costs {self.advised.times_plain:.2f} plain steps of {self.plain_seconds:.3g} s ({self.clock}): "
            f"{self.advised}."
        ]
        lines += ["  at equal expected regularization, in plain steps:", *[f"  {each}" for each in self.settings]]
        if self.sampled:
            lines += ["  sampled, whose edge is lower and not predicted:", *[f"  {each}" for each in self.sampled]]
        return "\n".join(lines)


def measure_price(
    alternatives: Sequence[Alternative],
    advised: tuple[int, int],
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    *batch: Tensor,
    seconds: float = 1.0,
    sampled: int | None = None,
) -> Price:
    """Times a plain step and both kinds of a penalty's steps per micro-batch size, on a copy of the model.

    `advised` is (k, b). With `every=k` the penalty has weight kλ on one step in k: it costs (p + (k − 1)u)/k with p the
    time of that step and u that of the steps between, which carry no penalty; both are timed. So are the steps with
    `sampled` micro-batches, where there are more.
    """
    if len(batch) != 2:
        raise InputError(f"price got {len(batch)} tensors; expected inputs and targets of one minibatch.")
    budget = finite_number("seconds", seconds, positive=True)
    if sampled is not None:
        whole_number("sampled", sampled, at_least=1)
    own = copy.deepcopy(model)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return loss_fn(own(inputs), targets)

    timed = [option for option in alternatives if option.strength > 0 and len(batch[0]) % option.micro_batch_size == 0]
    steps: list[Callable[[], object]] = [lambda: loss(*batch).backward()]
    for option in timed:
        # One micro-batch of everything is a penalty without micro-batches.
        size = None if option.micro_batch_size >= len(batch[0]) else option.micro_batch_size
        for strength in (option.strength, 0.0):
            steps.append(partial(GradientPenalty(own, strength, micro_batch_size=size).backward, loss, *batch))
    drawn = [] if sampled is None else [each for each in timed if len(batch[0]) > sampled * each.micro_batch_size]
    for option in drawn:
        few = GradientPenalty(own, option.strength, micro_batch_size=option.micro_batch_size, sampled=sampled)
        steps.append(partial(few.backward, loss, *batch))
    if not any(option.strength > 0 for option in alternatives):
        raise InputError("the advice is to add no penalty; expected an advice with a positive strength.")
    if all(option.micro_batch_size != advised[1] for option in timed):
        raise InputError(
            f"the batch has {len(batch[0])} examples; expected a multiple of the micro-batch size {advised[1]}."
        )
    clock, now = _clock(own)
    plain, *seconds_each = _fastest_seconds(steps, own, budget, now)
    whole, few_seconds = seconds_each[: 2 * len(timed)], seconds_each[2 * len(timed) :]
    settings = [
        setting
        for option, penalised, between in zip(timed, whole[::2], whole[1::2], strict=True)
        for setting in _settings(option, penalised / plain, between / plain, advised)
    ]
    own_setting = [each for each in settings if (each.every, each.micro_batch_size) == advised]
    if not own_setting:
        raise InputError("the edge leaves the advice no penalty; expected an advice with a positive strength.")
    ranked = sorted(settings, key=lambda each: (each.held, each.times_plain))
    cheap = [
        Setting(
            1, option.micro_batch_size, min(option.strength, option.most[1]), cost / plain,
            option.strength > option.most[1], sampled,
        )
        for option, cost in zip(drawn, few_seconds, strict=True)
        if option.most[1] > 0
    ]  # fmt: skip
    return Price(plain, own_setting[0], tuple(ranked), clock, tuple(sorted(cheap, key=lambda each: each.times_plain)))


def _settings(option: Alternative, cost: float, between: float, advised: tuple[int, int]) -> Iterator[Setting]:
    """Every k that the edge allows; the penalty on every step and the advised one also where the edge holds them."""
    for k, most in sorted(option.most.items()):
        held = option.strength > most
        if most > 0 and (not held or k == 1 or (k, option.micro_batch_size) == advised):
            strength = min(option.strength, most)
            yield Setting(k, option.micro_batch_size, strength, (cost + (k - 1) * between) / k, held)


def _clock(model: nn.Module) -> tuple[str, Callable[[], float]]:
    """The process's own time for a model on the CPU, where its ticks are fine enough, and else the wall clock."""
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    if on_cpu and time.get_clock_info("process_time").resolution <= FINE:
        return CPU, time.process_time
    return WALL, time.perf_counter


def _fastest_seconds(
    steps: Sequence[Callable[[], object]], model: nn.Module, budget: float, now: Callable[[], float]
) -> list[float]:
    """The time of the fastest of each, in turns, after a round that is not counted: noise only adds to a time."""
    rounds: list[list[float]] = []
    end = time.perf_counter() + budget
    while len(rounds) <= FEWEST or (len(rounds) <= MOST and time.perf_counter() < end):
        taken = []
        for step in steps:
            model.zero_grad(set_to_none=True)
            _wait(model)
            start = now()
            step()
            _wait(model)
            taken.append(now() - start)
        rounds.append(taken)
    return [min(times) for times in zip(*rounds[1:], strict=True)]


def _wait(model: nn.Module) -> None:
    import torch

    devices: Sequence[torch.device] = [parameter.device for parameter in model.parameters()][:1]
    if devices and devices[0].type == "cuda":
        torch.cuda.synchronize(devices[0])
