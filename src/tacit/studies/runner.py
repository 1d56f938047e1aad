"""Run a study, or go on with it: pack, skip what is finished, train the rest, store the rows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit._util.plural import counted
from tacit.studies.cost import refuse_too_big
from tacit.studies.data.datasets import FACTS
from tacit.studies.data.load import load
from tacit.studies.describe.spec import RunSpec
from tacit.studies.describe.study import Study, load_study
from tacit.studies.execute.executor import ATTEMPTS, Executor, FleetsFailedError, FleetTask
from tacit.studies.execute.local import LocalExecutor
from tacit.studies.execute.machine import cores, known_device, trains_on
from tacit.studies.execute.signals import terminable
from tacit.studies.plan import Plan, known_executor, results_folder
from tacit.studies.progress import Watcher
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.store.rows import Row
from tacit.studies.store.writer import StudyWriter
from tacit.studies.train.checkpoint import share_done
from tacit.studies.train.packing import Fleet

if TYPE_CHECKING:
    from tacit.studies.execute.ray_executor import RayExecutor

CHECKPOINT_SECONDS = 10.0


def run(
    source: str | Path | Study,
    into: str | Path | ResultsFolder | None = None,
    *,
    executor: str | Executor = "local",
    address: str | None = None,
    device: str | None = None,
    workers: int | None = None,
    attempts: int = ATTEMPTS,
    overrides: Sequence[str] = (),
    watcher: Watcher | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> list[Row]:
    """Train every run of a study that has no row yet, and return all rows, in the order of the study.

    `source` is a study file or a Study; `into` is the folder of results (`runs/NAME` without it). Several studies may
    share one folder: a run that any of them has trained is not trained again. A study that was killed, at any moment,
    goes on from its last checkpoints, and ends with the same bytes of rows. Rows don't depend on `workers` or
    `executor`: `local` processes, `ray` (at `address`, or where Ray decides), or an object of your own, which then has
    its own device and attempts. A fleet that fails `attempts` times is left out, and FleetsFailedError is raised when
    the others are done. On Ctrl-C, and on SIGTERM in the main thread, the last checkpoints are stored; then
    KeyboardInterrupt is raised (after SIGTERM its subclass `signals.Terminated`).
    """
    study = load_study(source, overrides=overrides)
    folder = results_folder(study, into)
    watcher = watcher or Watcher()
    try:
        if isinstance(executor, str):
            _refuse_unknown(executor, device)
        if executor == "local" and trains_on(device) == "cpu":
            refuse_too_big(folder.unfinished(study), name=study.name)
        with terminable(), folder.locked(), contextlib.ExitStack() as opened:
            for message in folder.move_damage_aside():
                watcher.warned(message)
            fleets = folder.open_for(study)
            folder.tidy_finished()
            _warn_without_weights(folder, study, watcher)
            if not fleets:
                watcher.planned(Plan(study, ()))
                return folder.rows_of(study.runs)
            _prepare([run for fleet in fleets for run in fleet.runs])
            if isinstance(executor, str):
                executor = make_executor(executor, workers, address=address, device=device, attempts=attempts)
                opened.callback(executor.close)
            watcher.planned(Plan(study, tuple(fleets)))
            train(
                folder, fleets, executor, watcher=watcher, checkpoint_seconds=checkpoint_seconds,
                keep_weights=study.keep_weights,
            )  # fmt: skip
    finally:
        watcher.ended()
    return folder.rows_of(study.runs)


def train(
    folder: ResultsFolder,
    fleets: Sequence[Fleet],
    executor: Executor,
    *,
    watcher: Watcher,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    keep_weights: bool = False,
) -> None:
    """Train fleets from their checkpoints on, and store their rows. Needs the folder's lock.

    FleetsFailedError is raised at the end for fleets that were given up.
    """
    checkpoints = {fleet.id: folder.read_checkpoint(fleet.id) for fleet in fleets}
    at_start = {id: share_done(content or b"") for id, content in checkpoints.items()}
    writer = StudyWriter(folder, fleets, watcher.advanced, watcher.warned, at_start)
    tasks = [FleetTask(fleet, checkpoints[fleet.id], checkpoint_seconds, keep_weights) for fleet in fleets]
    executor.run(tasks, writer.handle)
    if writer.failed:
        raise FleetsFailedError(
            f"{len(writer.failed)} of {counted(len(fleets), 'fleet')} failed ({', '.join(writer.failed)}) and the "
            f"others are finished; the errors are in {folder.path / 'fleets'}/ID/failed.json. Run again to try them "
            "again."
        )


def _warn_without_weights(folder: ResultsFolder, study: Study, watcher: Watcher) -> None:
    """A finished run is never trained again, not even for its weights."""
    lacking = len(folder.without_weights(study.runs)) if study.keep_weights else 0
    if lacking:
        watcher.warned(
            f"{counted(lacking, 'run')} of {study.name} finished before keep_weights was set: a finished run is not "
            "trained again, so it has no weights. Use another folder (--into) to train it with weights."
        )


def _prepare(runs: Sequence[RunSpec]) -> None:
    """Datasets are made once here, so that workers find them in the cache; own code is tried before workers need it."""
    for name in sorted({run.dataset for run in runs if run.dataset in FACTS}):
        load(name)
    if any(run.own_code for run in runs):
        from tacit.studies.train.trial import try_own_code  # brings torch, which a finished study does not need

        try_own_code(runs)


def _refuse_unknown(executor: str, device: str | None) -> None:
    """A wrong name, or Ray that is not installed, is refused before anything is done."""
    known_executor(executor)
    known_device(device)
    if executor == "ray":
        from tacit.studies.execute.ray_executor import import_ray

        import_ray()


def make_executor(
    name: str,
    workers: int | None = None,
    *,
    address: str | None = None,
    device: str | None = None,
    attempts: int = ATTEMPTS,
) -> LocalExecutor | RayExecutor:
    """An executor by its name. Without `workers`: one per core, one on a GPU, or as many as a cluster has room for."""
    known_executor(name)
    if name == "ray":
        from tacit.studies.execute.ray_executor import RayExecutor

        return RayExecutor(workers, address=address, device=device, attempts=attempts)
    if workers is None:
        workers = cores() if trains_on(device) == "cpu" else 1
    return LocalExecutor(workers, device=device, attempts=attempts)
