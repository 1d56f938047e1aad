"""A worker process: one core, one thread, one fleet at a time. It never touches the study folder.

Started as `python -m tacit.studies.execute.worker FD` by an executor, with a pipe at that descriptor. When the other
end of the pipe is gone, so is the worker.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from tacit._util.errors import InputError, TacitError
from tacit._util.provenance import provenance
from tacit.studies.execute.messages import Message, Pipe, receive, send

if TYPE_CHECKING:
    from tacit.studies.data.facts import Data
    from tacit.studies.train.training import Training

Load = Callable[[str], "Data"]


class StopRequest(BaseException):
    """The executor sent `stop`; the last checkpoint is sent."""


def prepare_process() -> None:
    """One thread, and subnormal numbers as zero: the arithmetic of every fleet, whoever runs it."""
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # squares of vanishing gradients are subnormal, and slow


def train(pipe: Pipe, message: Message, load: Load) -> None:
    """One fleet, from its checkpoint if there is a good one, to its rows."""
    from tacit.studies.describe.spec import make_run
    from tacit.studies.train.checkpoint import DamagedCheckpointError
    from tacit.studies.train.packing import Fleet
    from tacit.studies.train.training import Training

    started = time.monotonic()
    fleet = Fleet(tuple(make_run(run) for run in message.facts["runs"]))
    training = Training(fleet, load(fleet.runs[0].dataset))
    if message.content:
        try:
            training.restore(message.content)
        except DamagedCheckpointError as error:
            send(pipe, Message("warning", {"text": f"fleet {fleet.id}: {str(error).rstrip('.')}; it starts over."}))
    every: float = message.facts["checkpoint_seconds"]
    last = {"progress": started, "checkpoint": started}

    def pause(training: Training) -> None:
        now = time.monotonic()
        if now - last["progress"] >= message.facts["progress_seconds"]:
            last["progress"] = now
            send(pipe, Message("progress", {"done": training.position / training.first.minibatches}))
        if now - last["checkpoint"] >= every:
            last["checkpoint"] = now
            send(pipe, Message("checkpoint", content=training.checkpoint()))
        if pipe.poll():  # an executor sends nothing but `stop` to a busy worker
            if receive(pipe).kind == "stop":
                send(pipe, Message("checkpoint", content=training.checkpoint()))
            raise StopRequest

    training.advance(pause=pause)
    rows = training.rows()
    for run, content in training.weights().items() if message.facts["keep_weights"] else ():
        send(pipe, Message("weights", {"run": run}, content))
    spent = {"seconds": time.monotonic() - started, "cpu_seconds": training.cpu_seconds}
    send(pipe, Message("rows", {"rows": rows, **spent, "made_by": made_by(training)}))


def made_by(training: Training) -> dict[str, Any]:
    """This worker's versions, machine and device: on a cluster they are not those of the study's process."""
    from tacit.studies.train.devices import describe

    return {**provenance(), "device": describe(training.device)}


def end_with(parent: int) -> None:
    """End this process when its parent is gone, even in the middle of a long call."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def serve(pipe: Pipe, load: Load) -> None:
    """Train the fleets that arrive, until `stop` does; `load` gives the data by name."""
    prepare_process()
    send(pipe, Message("ready"))
    while True:
        message = receive(pipe)
        try:
            if message.kind == "train":
                train(pipe, message, load)
            else:
                raise StopRequest
        except StopRequest:
            send(pipe, Message("stopped"))
            return
        except TacitError as error:
            send(pipe, Message("failed", {"text": str(error), "input": isinstance(error, InputError)}))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception:
            send(pipe, Message("failed", {"text": traceback.format_exc(), "input": False}))


def main() -> None:
    from tacit.studies.data.load import load

    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # nobody would read the rows
        serve(Connection(int(sys.argv[1])), load)


if __name__ == "__main__":
    main()
