"""Where rows of numbers go during training: TensorBoard, or a tracker with the calls of wandb (wandb, trackio)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from tacit._util.errors import InputError


class Sink(Protocol):
    """Takes numbers one at a time, with TensorBoard's call; a `Recorder` writes to one given as `writer`."""

    def add_scalar(self, name: str, value: float, step: int) -> None: ...


class Tracker:
    """A `Sink` for anything with `log(dict, step=…)`: a run of wandb, or the modules wandb and trackio themselves.

    >>> class Run:
    ...     def log(self, values, step):
    ...         print(step, values)
    >>> write(Tracker(Run()), {"penalty": 0.5, "method": "gram", "error": None}, step=3)
    3 {'tacit/penalty': 0.5}
    """

    def __init__(self, run: Any) -> None:
        if not callable(getattr(run, "log", None)):
            raise InputError(
                f"run is a {type(run).__name__} without log(); expected a run of wandb, or the module wandb or trackio."
            )
        self.run = run

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.run.log({name: value}, step=step)

    def add_scalars_of_step(self, values: Mapping[str, float], step: int) -> None:
        """All numbers of a step in one call, which is one point of the tracker's charts."""
        self.run.log(dict(values), step=step)


def write(sink: Any, row: Mapping[str, Any], step: int, *, prefix: str = "tacit/") -> None:
    """The finite numbers of a row; words, None and what diverged are left out, since charts have no place for them.

    `sink` is a `SummaryWriter` of TensorBoard, a `Tracker`, or anything else with `add_scalar(name, value, step)`.
    """
    values = {f"{prefix}{name}": float(value) for name, value in row.items() if _is_number(value)}
    together = getattr(sink, "add_scalars_of_step", None)
    if together is not None and values:
        together(values, step)
        return
    if not callable(getattr(sink, "add_scalar", None)):
        raise InputError(
            f"sink is a {type(sink).__name__} without add_scalar(); expected a SummaryWriter of TensorBoard, "
            "or tacit.sinks.Tracker(run) for wandb and trackio."
        )
    for name, value in values.items():
        sink.add_scalar(name, value, step)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
