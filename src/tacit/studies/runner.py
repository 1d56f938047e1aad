"""Run a study, or go on with it: pack, skip what is finished, train the rest, store the rows."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit._counted import counted
from tacit.studies import estimate
from tacit.studies.data.datasets import FACTS
from tacit.studies.data.load import load
from tacit.studies.describe.spec import RunSpec
from tacit.studies.describe.study import Study, load_study
from tacit.studies.execute.attempts import ATTEMPTS, FleetsFailedError
from tacit.studies.execute.executor import Executor, FleetTask
from tacit.studies.execute.local import LocalExecutor
from tacit.studies.execute.machine import cores, known_device, trains_on
from tacit.studies.execute.pool import RateUnknownError
from tacit.studies.execute.signals import terminable
from tacit.studies.plan import Plan, known_executor, results_folder, seconds_left
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.store.rows import Row
from tacit.studies.store.writer import StudyWriter
from tacit.studies.train.checkpoint import share_done
from tacit.studies.train.packing import Fleet

if TYPE_CHECKING:
    from tacit.studies.execute.ray.executor import RayExecutor

CHECKPOINT_SECONDS = 10.0
LOG = logging.getLogger("tacit.studies")


class Watcher:
    """Receives the plan, progress and warnings of a study while it runs. This one logs; the command line draws."""

    def planned(self, plan: Plan) -> None:
        LOG.info("%s", plan)

    def advanced(self, done: float) -> None:
        """`done` is the share of the work that was left at the start, from 0 to 1."""

    def warned(self, text: str) -> None:
        LOG.warning("%s", text)

    def ended(self) -> None:
        """Called once, however it ends."""


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
    `executor`: `local` processes, `ray` (at `address`, or on this machine), or an object of your own, which then has
    its own device and attempts. A fleet that fails `attempts` times is left out, and FleetsFailedError is raised when
    the others are done. On Ctrl-C, and on SIGTERM in the main thread, the last checkpoints are stored; then
    KeyboardInterrupt is raised (after SIGTERM its subclass `signals.Terminated`).
    """
    study = load_study(source, overrides=overrides)
    folder = results_folder(study, into)
    watcher = watcher or Watcher()
    local_cores = _uses_local_cores(
        executor, device, address=address
    )  # otherwise rates measured on this machine do not apply
    try:
        if local_cores:
            estimate.refuse_absurd(folder.unfinished(study), name=study.name, workers=workers or cores())
        with terminable(), folder.locked(), contextlib.ExitStack() as opened:
            for message in folder.move_damage_aside():
                watcher.warned(message)
            fleets = folder.open_for(study)
            folder.tidy_finished()
            _warn_without_weights(folder, study, watcher)
            if not fleets:
                watcher.planned(Plan(study, (), workers or cores(), 0.0))
                return folder.rows_of(study.runs)
            _prepare([run for fleet in fleets for run in fleet.runs])
            if isinstance(executor, str):
                executor = make_executor(executor, workers, address=address, device=device, attempts=attempts)
                opened.callback(executor.close)
            count = workers or executor.workers
            rate = _rate(fleets, executor, workers=count, local_cores=local_cores)
            seconds = seconds_left(folder, fleets, workers=count, rate=rate)
            watcher.planned(Plan(study, tuple(fleets), count, seconds, rough=rate is None))
            one_model = len({fleet.model for fleet in fleets}) == 1  # a rate of several would be that of none
            keep_rate = functools.partial(estimate.store_rate, count, fleets[0].model)
            train(
                folder, fleets, executor, watcher=watcher, checkpoint_seconds=checkpoint_seconds,
                keep_weights=study.keep_weights, keep_rate=keep_rate if local_cores and one_model else None,
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
    keep_rate: Callable[[float], None] | None = None,
) -> None:
    """Train fleets from their checkpoints on, and store their rows. Needs the folder's lock.

    `keep_rate` gets the rate when it is one of whole fleets on this machine. FleetsFailedError is raised at the end
    for fleets that were given up.
    """
    checkpoints = {fleet.id: folder.read_checkpoint(fleet.id) for fleet in fleets}
    at_start = {id: share_done(content or b"") for id, content in checkpoints.items()}
    writer = StudyWriter(folder, fleets, watcher, at_start)
    tasks = [FleetTask(fleet, checkpoints[fleet.id], checkpoint_seconds, keep_weights) for fleet in fleets]
    executor.run(tasks, writer.handle)
    if writer.failed:
        raise FleetsFailedError(
            f"{len(writer.failed)} of {counted(len(fleets), 'fleet')} failed ({', '.join(writer.failed)}) and the "
            f"others are finished; the errors are in {folder.path / 'fleets'}/ID/failed.json. Run again to try them "
            "again."
        )
    began_fresh = not any(checkpoints.values())
    # A rate worth keeping: of whole fleets, not of a few steps.
    if keep_rate is not None and began_fresh and not writer.warnings and writer.timed_seconds > 5:
        keep_rate(writer.timed_cost / writer.timed_seconds)


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


def _uses_local_cores(executor: str | Executor, device: str | None, *, address: str | None) -> bool:
    """Whether fleets train on cores of this machine; a wrong name is refused here, before anything is done."""
    if not isinstance(executor, str):
        return executor.local_cores
    known_executor(executor)
    known_device(device)
    if executor == "ray":
        from tacit.studies.execute.ray.session import import_ray, is_cluster

        import_ray(for_cluster=is_cluster(address))
    return executor != "ray" and trains_on(device) == "cpu"


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
        from tacit.studies.execute.ray.executor import RayExecutor

        return RayExecutor(workers, address=address, device=device, attempts=attempts)
    if workers is None:
        workers = cores() if trains_on(device) == "cpu" else 1
    return LocalExecutor(workers, device=device, attempts=attempts)


def _rate(fleets: Sequence[Fleet], executor: Executor, *, workers: int, local_cores: bool) -> float | None:
    """The rate of earlier studies, or measured now; None when the first fleet fails at it, which stops no other."""
    model = fleets[0].model
    rate = estimate.stored_rate(workers, model) if local_cores else None
    if rate is not None:
        return rate
    try:
        rate = executor.calibrate(fleets)
    except RateUnknownError:
        return None
    if local_cores:
        estimate.store_rate(workers, model, rate)
    return rate
