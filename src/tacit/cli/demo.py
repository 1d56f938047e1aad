"""`tacit demo`: plain SGD, the sampled penalty and sampled SAM on one small task, trained and timed here and now."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli._output_file import check_output_file

if TYPE_CHECKING:
    from torch import Tensor, nn

# The task `momentum-noisy` of docs/judged-plan.md at its usual settings, a third as long.
EXAMPLES, LABEL_NOISE, BATCH_SIZE, WIDTH = 3840, 0.3, 256, 64
LEARNING_RATE, MOMENTUM = 2.0**-6, 0.9
ROWS = 16  # that a sample has
RATIO, RADIUS = 0.8, 0.8  # the best of 0.4 0.8 1.6 and of 0.2 0.4 0.8 1.6, on seeds 10 and 11
LOOKS = 20  # at the test signals, per training
WIDE, PRICE_ROUNDS = 1024, 5  # the second network whose steps are timed


@dataclass(frozen=True)
class Arm:
    """One way to train: what takes the place of `loss.backward()`, if anything does."""

    name: str
    colour: str
    make: Callable[[nn.Module, int], Any] | None


@dataclass
class Result:
    """Test accuracies at some updates, and the seconds of training without those looks."""

    updates: list[int] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    seconds: float = 0.0


def arms() -> list[Arm]:
    import tacit

    return [
        Arm("plain SGD", "rate", None),
        Arm(
            "penalty, sampled",
            "strength",
            lambda model, seed: tacit.GradientPenalty(
                model, tacit.Relative(RATIO), micro_batch_size=ROWS, sampled=1, seed=seed
            ),
        ),
        Arm(
            "SAM, sampled",
            "baseline",
            lambda model, seed: tacit.SharpnessAware(model, RADIUS, sampled=ROWS, seed=seed),
        ),
    ]


def register(app: typer.Typer) -> None:
    app.command(name="demo")(demo)


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Of the initial weights, the order and the samples.")] = 0,
    updates: Annotated[int, typer.Option(min=LOOKS, help="Of each of the three trainings.")] = 1000,
    into: Annotated[Path, typer.Option(help="The plot (svg).")] = Path("tacit-demo.svg"),
) -> None:
    """Train a small network three ways, in about 20 seconds: plain, with the sampled penalty, with sampled SAM.

    The task is MNIST-1D with 30 % random labels, one of the judged table's, at the optimizer's usual settings. All
    numbers are measured by this command on this machine.

    Examples: `tacit demo`; `tacit demo --seed 1 --into seed-1.svg`
    """
    check_output_file("--into", into, endings=(".svg",))
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    print(
        f"MNIST-1D, {EXAMPLES:,} signals, {100 * LABEL_NOISE:.0f} % of their labels random. "
        f"MLP 40-{WIDTH}-{WIDTH}-{WIDTH}-10,\n"
        f"{updates:,} updates of SGD with momentum {MOMENTUM} at rate 2^-6, batches of {BATCH_SIZE}."
    )
    reached = TextColumn("{task.fields[test]}")
    columns = TextColumn("{task.description:16}"), BarColumn(24), MofNCompleteColumn(), reached
    results: dict[str, Result] = {}
    with _one_thread():
        task = noisy_task()
        with Progress(*columns, console=Console(stderr=True)) as bar:
            for arm in arms():
                line = bar.add_task(arm.name, total=updates, test="")

                def show(result: Result, line: Any = line) -> None:
                    bar.update(line, completed=result.updates[-1], test=f"test {100 * result.accuracies[-1]:.1f} %")

                results[arm.name] = train(arm, task, seed=seed, updates=updates, show=show)
        small, wide = prices(WIDTH), prices(WIDE)
    print(table(results, small, wide))
    print(f"plot: {plot(results, into)}")


def noisy_task() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training signals and their labels, of which a share is drawn anew from all classes; test signals and labels."""
    import torch

    from tacit.studies.data.load import load

    data = load("mnist1d_16k")  # 16,000 test signals: their accuracy is known to half a point
    inputs, test_inputs = torch.tensor(data.train_inputs[:EXAMPLES]), torch.tensor(data.test_inputs)
    targets, test_targets = torch.tensor(data.train_targets[:EXAMPLES]).long(), torch.tensor(data.test_targets).long()
    draws = torch.Generator().manual_seed(0)
    noisy = torch.randperm(EXAMPLES, generator=draws)[: round(LABEL_NOISE * EXAMPLES)]
    targets[noisy] = torch.randint(10, (len(noisy),), generator=draws)
    return inputs, targets, test_inputs, test_targets


def network(width: int, seed: int) -> nn.Module:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    sizes = [40, width, width, width]
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def train(
    arm: Arm, task: tuple[Tensor, ...], *, seed: int, updates: int, show: Callable[[Result], None] = lambda result: None
) -> Result:
    """A plain PyTorch loop; `penalty.backward(closure, …)` stands where `loss.backward()` stood."""
    import torch

    inputs, targets, test_inputs, test_targets = task
    model = network(WIDTH, seed)
    step = make_step(model, arm, seed)
    order = torch.Generator().manual_seed(seed)
    result = Result()
    looks = {round(k * updates / LOOKS) for k in range(1, LOOKS + 1)}
    done, begun = 0, time.perf_counter()
    while done < updates:
        for rows in torch.randperm(len(inputs), generator=order).split(BATCH_SIZE)[: updates - done]:
            step(inputs[rows], targets[rows])
            done += 1
            if done in looks:
                result.seconds += time.perf_counter() - begun
                with torch.no_grad():
                    right = model(test_inputs).argmax(1) == test_targets
                result.updates.append(done)
                result.accuracies.append(float(right.double().mean()))
                show(result)
                begun = time.perf_counter()
    return result


def make_step(model: nn.Module, arm: Arm, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
    """One update: what a reader copies."""
    import torch
    from torch.nn import functional as F

    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    penalty = arm.make(model, seed) if arm.make is not None else None

    def closure(inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs), targets)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        if penalty is None:
            loss = closure(inputs, targets)
            loss.backward()
        else:
            loss = penalty.backward(closure, inputs, targets)
        optimizer.step()
        return loss

    return step


def prices(width: int) -> dict[str, float]:
    """Milliseconds of a plain step, and each other step in plain steps: medians over rounds of steps in turns."""
    from functools import partial
    from statistics import median

    import torch

    from tacit._util.timing import time_interleaved

    batch = torch.randn(BATCH_SIZE, 40), torch.randint(10, (BATCH_SIZE,))
    steps: dict[str, Callable[[], Tensor]] = {
        arm.name: partial(make_step(network(width, 0), arm, 0), *batch) for arm in arms()
    }
    time_interleaved(steps, rounds=1)  # the first steps of a process are slower
    seconds = time_interleaved(steps, rounds=PRICE_ROUNDS if width > WIDTH else 10 * PRICE_ROUNDS)
    plain, *_ = seconds
    found = {
        name: median(ours / base for ours, base in zip(own, seconds[plain], strict=True))
        for name, own in seconds.items()
    }
    return {**found, "milliseconds": 1e3 * median(seconds[plain])}


def table(results: dict[str, Result], small: dict[str, float], wide: dict[str, float]) -> str:
    lines = [
        "",
        f"{'':18}{'test':>9}{'':>10}{'price of a step, in plain steps':>40}",
        f"{'':18}{'accuracy':>9}{'seconds':>10}{'this network':>20}{f'{WIDE // WIDTH} times as wide':>20}",
    ]
    for name, result in results.items():
        accuracy = f"{100 * result.accuracies[-1]:.1f} %"
        lines.append(f"{name:18}{accuracy:>9}{result.seconds:>10.1f}{small[name]:>20.2f}{wide[name]:>20.2f}")
    times = [f"{each['milliseconds']:.1f} ms" for each in (small, wide)]
    return "\n".join(
        [
            *lines,
            f"{'a plain step takes':37}{times[0]:>20}{times[1]:>20}",
            "",
            "One seed, untuned, one thread. A step of so small a network is mostly Python;",
            "`tacit check` measures the prices on a model of your own.",
        ]
    )


def plot(results: dict[str, Result], target: Path) -> Path:
    """Test accuracy during the three trainings, as one SVG file."""
    import math

    from tacit.report.draw import write_figure
    from tacit.report.figure import FigureResult
    from tacit.report.numbers import Interval
    from tacit.report.points import Curve, Panel, Point

    colours = {arm.name: arm.colour for arm in arms()}

    def point(update: int, accuracy: float) -> Point:
        height = Interval(100 * accuracy, math.nan, math.nan)
        return Point(float(update), height, height, ())

    curves = tuple(
        Curve(name, colours[name], tuple(map(point, result.updates, result.accuracies)))
        for name, result in results.items()
    )
    panel = Panel(curves, "updates", "test accuracy (%)", x_scale="linear", y_scale="linear")
    title = f"MNIST-1D with {100 * LABEL_NOISE:.0f} % random labels"
    write_figure(FigureResult("demo", title, (panel,), None, "", len(curves), 0), target)
    return target


@contextmanager
def _one_thread() -> Iterator[None]:
    """Steps of so small a network are faster without threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
