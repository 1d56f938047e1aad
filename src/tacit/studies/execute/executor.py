"""What a study needs from an executor: it trains fleets and sends messages; it knows nothing of files.

A fleet is a task: a pure function of its runs, the data and perhaps a checkpoint, returning rows. `local.LocalExecutor`
runs tasks in processes of this machine, one core and one thread each; `ray.executor.RayExecutor` in workers of a
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tacit.studies.execute.wire import Message
from tacit.studies.train.packing import Fleet


@dataclass(frozen=True)
class FleetTask:
    """One fleet to train, from a checkpoint if there is one."""

    fleet: Fleet
    checkpoint: bytes | None = None
    checkpoint_seconds: float = 10.0
    keep_weights: bool = False  # whether the worker also sends the final parameters of each run


MessageHandler = Callable[[Fleet, Message], None]


class Executor(Protocol):
    """What a study needs: train all tasks, calling `handle` with progress, checkpoints, warnings, rows and failures."""

    @property
    def workers(self) -> int:
        """How many fleets train at once."""

    @property
    def local_cores(self) -> bool:
        """Whether fleets train on cores of this machine, so that their rates are worth keeping for estimates."""

    def run(self, tasks: Sequence[FleetTask], handle: MessageHandler) -> None: ...

    def calibrate(self, fleets: Sequence[Fleet]) -> float: ...

    def close(self) -> None: ...
