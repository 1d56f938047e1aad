"""One cell of the matrix: a case in a trainer, in processes of its own, compared with the plain loop."""

from __future__ import annotations

import functools
import json
import logging
import os
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from integration_reference import CASES, Case, difference, expected
from integration_trainers import TRAINERS


@dataclass(frozen=True)
class Cell:
    """`status`: `exact`, `refused` (by a sentence of ours), `warned` (not exact, and a warning names what to pass), or
    `wrong` (also any other error), which no cell may be."""

    trainer: str
    case: str
    status: str
    difference: float | None = None
    tolerance: float | None = None
    without_penalty: float | None = None  # how far a loop without the penalty ends: what the comparison can see
    message: str | None = None

    def to_row(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@functools.cache
def wanted(case: Case) -> dict[str, torch.Tensor]:
    return expected(case)


@functools.cache
def without_penalty(case: Case) -> float:
    return difference(expected(case, factor=0.0), wanted(case))


def goal(trainer: str, case: str) -> Case:
    """Lightning gives accumulated batches equal weights, whatever their lengths."""
    found = CASES[case]
    return replace(found, token_weights=False) if trainer == "lightning_automatic" else found


def measure(trainer: str, case: str) -> Cell:
    with tempfile.TemporaryDirectory() as folder:
        errors = _run(trainer, case, Path(folder))
        if errors:
            status = "refused" if all(error.startswith("InputError: ") for error in errors) else "wrong"
            return Cell(trainer, case, status, message=errors[0])
        found = torch.load(Path(folder) / "weights.pt")
        told = sorted(Path(folder).glob("told-*.json"))
        message = json.loads(told[0].read_text()) if told else None
    aim = goal(trainer, case)
    apart = difference(found, wanted(aim))
    if apart <= aim.tolerance:
        return Cell(trainer, case, "exact", apart, aim.tolerance, without_penalty(aim))
    return Cell(trainer, case, "warned" if message else "wrong", apart, aim.tolerance, without_penalty(aim), message)


def _run(trainer: str, case: str, folder: Path) -> list[str]:
    """Fork a process per worker: settings of a framework live as long as its process. Return: their errors."""
    world, port = CASES[case].world, _free_port()
    sys.stdout.flush()
    sys.stderr.flush()
    workers = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            _work(trainer, case, folder, rank, port)
        workers.append(pid)
    for pid in workers:
        os.waitpid(pid, 0)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("error-*.json"))]


def _work(trainer: str, case: str, folder: Path, rank: int, port: int) -> None:
    code = 0
    if not os.environ.get("TACIT_TRACEBACKS"):  # frameworks print what they do
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    try:
        os.environ.update(ACCELERATE_USE_CPU="true", GLOO_SOCKET_IFNAME="lo")
        if CASES[case].world > 1:
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(CASES[case].world), MASTER_ADDR="127.0.0.1",
                LOCAL_WORLD_SIZE=str(CASES[case].world), MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="matrix",
                GROUP_RANK="0",
            )  # fmt: skip
        _forget_accelerators()
        with _warnings_about_the_scaler() as told:
            found = TRAINERS[trainer][1](CASES[case], folder)
        if told:
            (folder / f"told-{rank}.json").write_text(json.dumps(told[0]))
        if rank == 0:
            torch.save(found, folder / "weights.pt")
    except BaseException as error:
        if os.environ.get("TACIT_TRACEBACKS"):
            traceback.print_exc()
        code = 1
        (folder / f"error-{rank}.json").write_text(json.dumps(f"{type(error).__name__}: {error}"))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without the clean-up of the parent's pytest


def _forget_accelerators() -> None:
    """accelerate keeps what it found when the parent's first Accelerator was made: one process, without a group."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@contextmanager
def _warnings_about_the_scaler() -> Iterator[list[str]]:
    """Sentences of tacit that name the argument which was left out, from its logger or as warnings."""
    told: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    keep = Keep(logging.WARNING)
    logging.getLogger("tacit").addHandler(keep)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield told
        told += [str(warning.message) for warning in caught]
    finally:
        logging.getLogger("tacit").removeHandler(keep)
        told[:] = [sentence for sentence in told if "scaler=" in sentence]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
