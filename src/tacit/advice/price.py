"""`Price`: what a penalised step costs beside a plain one on a given model, and settings that cost less."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from torch import Tensor, nn

from tacit._util.arguments import finite_number
from tacit._util.errors import InputError
from tacit._util.plural import ordinal
from tacit._util.timing import device_words, time_interleaved, waits_for
from tacit.penalty import GradientPenalty

EVERY = (1, 2, 4, 8)
FEWEST, MOST = 5, 50  # timed rounds
FINE = 1e-4  # seconds: a clock with longer ticks does not resolve one step
CPU, WALL = "CPU time of all threads", "wall clock"
Loss = Callable[[Tensor, Tensor], Tensor]
Step = tuple[int, float, int | None]  # micro-batch size, strength, drawn micro-batches
PLAIN: Step = (0, 0.0, None)


@dataclass(frozen=True)
class Alternative:
    """Micro-batches of one size, the strength of equal expected regularization on them, and the most advised.

    `most[k]` is that for a penalty on every k-th step, `most_sampled[q]` for q drawn micro-batches where those are
    proposed; infinite where curvature was not measured.
    """

    micro_batch_size: int
    strength: float
    most: dict[int, float]
    most_sampled: dict[int, float]


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

    Settings that are held at the edge, and so regularize less, come after all others. `device` says what was timed on,
    `clock` what was timed: on a CPU the time of all threads of the process, which other programs do not add to.
    """

    plain_seconds: float
    advised: Setting
    settings: tuple[Setting, ...]
    device: str
    clock: str

    @property
    def cheapest(self) -> Setting:
        return self.settings[0]

    def __str__(self) -> str:
        cost = f"{self.advised.times_plain:.2f} plain steps of {self.plain_seconds:.3g} s ({self.clock}, {self.device})"
        rows = "\n".join(f"  {each}" for each in self.settings)
        return f"A step costs {cost}: {self.advised}.\n  at equal expected regularization, in plain steps:\n{rows}"


def measure_price(
    alternatives: Sequence[Alternative],
    advised: tuple[int, int, int | None],
    model: nn.Module,
    loss_fn: Loss,
    *batch: Tensor,
    seconds: float = 1.0,
) -> Price:
    """Times a plain step and the steps of a penalty for each size of micro-batches, in turns, on a copy of the model.

    `advised` is (k, b, q). With `every=k` the penalty has weight kλ on one step in k: it costs (p + (k − 1)u)/k with p
    the time of that step and u that of the steps between, which carry no penalty; both are timed.
    """
    if len(batch) != 2:
        raise InputError(f"price got {len(batch)} tensors; expected inputs and targets of one minibatch.")
    budget, rows = finite_number("seconds", seconds, positive=True), len(batch[0])
    if not any(option.strength > 0 for option in alternatives):
        raise InputError("the advice is to add no penalty; expected an advice with a positive strength.")
    timed = [each for each in alternatives if each.strength > 0 and rows % each.micro_batch_size == 0]
    if all(option.micro_batch_size != advised[1] for option in timed):
        raise InputError(f"the batch has {rows} examples; expected a multiple of the micro-batch size {advised[1]}.")
    if advised[2] is not None and advised[1] * advised[2] >= rows:
        raise InputError(
            f"the batch has {rows} examples; expected more than {advised[2]} micro-batches of {advised[1]}."
        )
    own = copy.deepcopy(model)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return loss_fn(own(inputs), targets)

    steps: dict[Step, Callable[[], object]] = {PLAIN: partial(_step, own, lambda: loss(*batch).backward())}
    for option in timed:
        size, strength = option.micro_batch_size, option.strength
        drawn = [(strength, q) for q in option.most_sampled if q * size < rows]
        for weight, q in [(strength, None), (0.0, None), *drawn]:
            # One micro-batch of everything is a penalty without micro-batches.
            penalty = GradientPenalty(own, weight, micro_batch_size=None if size >= rows else size, sampled=q)
            steps[size, weight, q] = partial(_step, own, partial(penalty.backward, loss, *batch))
    device = next(own.parameters()).device
    words, clock = WALL, time.perf_counter
    if device.type == "cpu" and time.get_clock_info("process_time").resolution <= FINE:
        words, clock = CPU, time.process_time
    timed_in = partial(time_interleaved, steps, synchronise=waits_for(device), clock=clock)
    begun = time.perf_counter()
    timed_in(rounds=1)
    rounds = min(max(round(budget / (time.perf_counter() - begun)), FEWEST), MOST)
    seen = timed_in(rounds=rounds)
    cost = {
        name: median(step / plain for step, plain in zip(times, seen[PLAIN], strict=True))
        for name, times in seen.items()
    }
    settings = [each for option in timed for each in _settings(option, cost, advised)]
    own_setting = [each for each in settings if (each.every, each.micro_batch_size, each.sampled) == advised]
    if not own_setting:
        raise InputError("the edge leaves the advice no penalty; expected an advice with a positive strength.")
    ranked = sorted(settings, key=lambda each: (each.held, each.times_plain))
    return Price(median(seen[PLAIN]), own_setting[0], tuple(ranked), device_words(device), words)


def _settings(option: Alternative, cost: dict[Step, float], advised: tuple[int, int, int | None]) -> Iterator[Setting]:
    """Every k and q that the edge allows; where it holds λ, the whole penalty on every step and what is advised."""
    size, strength = option.micro_batch_size, option.strength
    drawn_every = advised[0] if size == advised[1] else 1
    ways: list[tuple[int, int | None, float]] = [(k, None, most) for k, most in option.most.items()]
    ways += [(drawn_every, q, most) for q, most in option.most_sampled.items() if (size, strength, q) in cost]
    for k, q, most in ways:
        held = strength > most
        if most > 0 and (not held or (k, q) == (1, None) or (k, size, q) == advised):
            times = (cost[size, strength, q] + (k - 1) * cost[size, 0.0, None]) / k
            yield Setting(k, size, min(strength, most), times, held, q)


def _step(model: nn.Module, backward: Callable[[], object]) -> None:
    model.zero_grad(set_to_none=True)
    backward()
