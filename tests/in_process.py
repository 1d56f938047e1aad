"""A small study, an executor without processes, and what tests of stopped studies compare: the bytes of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tacit.studies.data.facts import Data
from tacit.studies.describe.study import Study, parse_study
from tacit.studies.execute.executor import Event, Executor, FleetTask, MessageHandler, Worker
from tacit.studies.execute.messages import Message
from tacit.studies.progress import Watcher
from tacit.studies.train.checkpoint import DamagedCheckpointError
from tacit.studies.train.packing import Fleet
from tacit.studies.train.training import Training


def study(**fixed: Any) -> Study:
    """Two fleets (with and without a penalty) of four runs, two of which diverge."""
    small = {"train_size": 64, "batch_size": 16, "width": 8, "depth": 1, "evaluations": 2, **fixed}
    grid = {"learning_rate": [0.1, 1e6], "strength": [0.0, 0.05], "seed": [0, 1]}
    return parse_study({"name": "small", "fixed": small, "grid": grid})


class InProcess(Executor):
    """An executor without processes, with a checkpoint every few minibatches: a way to die at exact places."""

    def __init__(self, data: Data, *, checkpoint_every: int = 8) -> None:
        super().__init__(workers=1)
        self.data, self.checkpoint_every = data, checkpoint_every

    def run(self, tasks: Sequence[FleetTask], watch: MessageHandler) -> None:
        for task in tasks:
            training = Training(task.fleet, self.data)
            if task.checkpoint is not None:
                try:
                    training.restore(task.checkpoint)
                except DamagedCheckpointError as error:
                    watch(task.fleet, Message("warning", {"text": f"fleet {task.fleet.id}: {error}"}))
            while not training.finished:
                training.advance(until=training.position + self.checkpoint_every)
                if not training.finished:
                    watch(task.fleet, Message("checkpoint", content=training.checkpoint()))
                watch(task.fleet, Message("progress", {"done": training.position / training.first.minibatches}))
            for run, content in training.weights().items() if task.keep_weights else ():
                watch(task.fleet, Message("weights", {"run": run}, content))
            watch(task.fleet, Message("rows", {"rows": training.rows(), "seconds": 0.1}))

    def _start(self) -> Worker:
        raise NotImplementedError("it has no workers")

    def _receive(self) -> list[tuple[Worker, Event]]:
        raise NotImplementedError("it has no workers")


class Listener(Watcher):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def warned(self, text: str) -> None:
        self.texts.append(text)


def rows_on_disk(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob("fleets/*/rows.jsonl"))}


def leftovers(folder: Path) -> list[str]:
    """Files of a finished study that do not belong there."""
    belong = ("small.json", "lock", "rows.jsonl", "meta.json", "rows.damaged.jsonl")
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name not in belong)


def wait_for(condition: Callable[[], Any], *, seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def train_fleet(
    fleet: Fleet,
    data: Data,
    *,
    resume: bytes | None = None,
    pause: Callable[[Training], None] | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[dict[str, Any]]:
    """The rows of a fleet. `pause` is called now and then and may take a checkpoint, or raise to stop."""
    training = Training(fleet, data, dtype=dtype)
    if resume is not None:
        training.restore(resume)
    training.advance(pause=pause)
    return training.rows()
