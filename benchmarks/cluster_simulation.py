"""How long a cluster takes: the scheduler of studies on a simulated clock, with recorded run times and lost workers.

    python benchmarks/cluster_simulation.py --json benchmarks/results/cluster_simulation.json
    python benchmarks/cluster_simulation.py --quick

Real: which runs form a fleet and in which order (`packing.pack`), who gets which fleet, what follows from a lost worker
and how often a fleet is tried (`executor.Executor`, with the settings of `RayExecutor`).
Simulated: the clock, the workers, and when one is lost. A worker needs `--start-seconds` before it is ready, sends a
checkpoint every `--checkpoint-seconds`, and is lost with the probability `--failures-per-hour`, at any moment of its
life. The study's process replaces it.

Two workloads. `recorded`: every fleet of docs/results with the seconds it took. `paper`: the fleets of studies/paper;
each takes its counted operations over `--tflops` times `--utilisation`, times a factor drawn from recorded fleets: the
seconds that one took over those of the median fleet of its kind per operation.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit._util.provenance import provenance
from tacit.studies.cost import operations
from tacit.studies.describe.library import library
from tacit.studies.describe.spec import RunSpec
from tacit.studies.execute.executor import Event, Executor, FleetTask, Lost, Worker
from tacit.studies.execute.messages import Message
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.train.packing import Fleet, pack

RESULTS = Path(__file__).parents[1] / "docs" / "results"
HOUR = 3600.0
Seconds = Callable[[Fleet], float]


# -- the simulated cluster --------------------------------------------------------------------------------------------
@dataclass(eq=False)
class SimulatedWorker(Worker):
    """Trains by waiting: it knows when its fleet ends, and when it is lost itself."""

    pool: SimulatedPool = field(kw_only=True)
    lost_at: float = field(kw_only=True)
    ended: bool = False

    def send(self, message: Message) -> None:
        if message.kind == "train":
            self.pool.begin(self, message)

    def end(self) -> None:
        self.ended = True


@dataclass
class Account:
    """Worker-seconds by what they were used for, and what happened."""

    trained: float = 0.0  # work that is in a row
    repeated: float = 0.0  # work since the last checkpoint of a lost worker
    losses: int = 0
    starts: int = 0
    given_up: list[str] = field(default_factory=list)


class SimulatedPool(Executor):
    """The loop of every executor, with workers and a clock that exist only here."""

    waits_until_ready = True  # as `RayExecutor` has it
    keeps_idle = False

    def __init__(
        self, workers: int, *, seconds: Seconds, failures_per_hour: float, start_seconds: float, draws: random.Random
    ) -> None:
        super().__init__(workers)
        self.seconds, self.draws = seconds, draws
        self.failures_per_second, self.start_seconds = failures_per_hour / HOUR, start_seconds
        self.now, self.account = 0.0, Account()
        self._events: list[tuple[float, int, SimulatedWorker, Event]] = []
        self._number = itertools.count()  # events at one moment come in the order in which they were made

    def _start(self) -> Worker:
        self.account.starts += 1
        life = self.draws.expovariate(self.failures_per_second) if self.failures_per_second else float("inf")
        worker = SimulatedWorker(pool=self, lost_at=self.now + life)
        ready = self.now + self.start_seconds
        self._at(min(ready, worker.lost_at), worker, Message("ready") if ready < worker.lost_at else self._lost())
        if worker.lost_at < float("inf") and ready < worker.lost_at:
            self._at(worker.lost_at, worker, self._lost())
        return worker

    def begin(self, worker: SimulatedWorker, message: Message) -> None:
        """Train a fleet from its checkpoint, whose content is the seconds of work that it holds."""
        task = worker.task
        assert task is not None
        whole, begun = self.seconds(task.fleet), float(message.content or 0)
        end = self.now + whole - begun
        if end <= worker.lost_at:
            rows = {"rows": [], "seconds": whole - begun}
            self._at(end, worker, Message("rows", rows))
            return
        # Every checkpoint replaces the one before, so only the last one before the loss changes what follows.
        every = task.checkpoint_seconds
        kept = (worker.lost_at - self.now) // every * every
        self.account.repeated += worker.lost_at - self.now - kept
        if kept:
            self._at(self.now + kept, worker, Message("checkpoint", content=repr(begun + kept).encode()))

    def _receive(self) -> list[tuple[Worker, Event]]:
        while self._events:
            self.now, _, worker, event = heapq.heappop(self._events)
            if worker.ended:
                continue
            if isinstance(event, Lost):
                self.account.losses += 1
            elif event.kind == "rows" and worker.task is not None:
                self.account.trained += self.seconds(worker.task.fleet)
            return [(worker, event)]
        raise AssertionError("fleets are waiting and no worker will ever send anything")

    def _at(self, when: float, worker: SimulatedWorker, event: Event) -> None:
        heapq.heappush(self._events, (when, next(self._number), worker, event))

    def _lost(self) -> Lost:
        return Lost("was lost with its machine")


def simulate(
    studies: Sequence[Sequence[Fleet]], *, workers: int, seconds: Seconds, failures_per_hour: float,
    start_seconds: float, checkpoint_seconds: float, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Train studies one after another, as `tacit reproduce` does, and say how long it took and what for."""
    pool = SimulatedPool(
        workers, seconds=seconds, failures_per_hour=failures_per_hour, start_seconds=start_seconds,
        draws=random.Random(seed),
    )  # fmt: skip

    def handle(fleet: Fleet, message: Message) -> None:
        if message.kind == "failed":
            pool.account.given_up.append(fleet.id)

    for fleets in studies:
        pool.run([FleetTask(fleet, None, checkpoint_seconds) for fleet in fleets], handle)
    account, whole = pool.account, workers * pool.now
    every = [seconds(fleet) for fleets in studies for fleet in fleets]
    return {
        "workers": workers,
        "failures_per_hour": failures_per_hour,
        "hours": pool.now / HOUR,
        "hours_at_least": max(sum(every) / workers, max(every)) / HOUR,  # for any scheduler, without failures
        "utilisation": account.trained / whole,
        "repeated": account.repeated / whole,
        "losses": account.losses,
        "starts": account.starts,
        "fleets": len(every),
        "given_up": len(account.given_up),
    }


# -- run times --------------------------------------------------------------------------------------------------------
def kind(run: RunSpec) -> str:
    return f"{run.model}, {'penalised' if run.strength else 'plain'}"


def recorded() -> list[tuple[Fleet, float]]:
    """Every fleet of docs/results that is stored with the seconds that it took."""
    found: dict[str, tuple[Fleet, float]] = {}
    for path in sorted(RESULTS.iterdir()):
        if not (path / "studies").is_dir():
            continue
        folder = ResultsFolder(path)
        contents = folder.contents()
        runs = {run.hash: run for study in folder.studies() for run in study.runs}
        members: dict[str, list[RunSpec]] = {}
        for hash, row in contents.rows.items():
            if hash in runs and contents.metas.get(hash, {}).get("fleet") == row.get("fleet"):
                members.setdefault(str(row["fleet"]), []).append(runs[hash])
        metas: Mapping[str, Any] = {str(meta["fleet"]): meta for meta in contents.metas.values() if "fleet" in meta}
        for id, fleet in members.items():
            if metas[id]["runs"] == len(fleet):
                found[id] = Fleet(tuple(fleet)), float(metas[id]["seconds"])
    return list(found.values())


def factors(fleets: Sequence[tuple[Fleet, float]]) -> dict[str, list[float]]:
    """By kind of run: how much longer each recorded fleet took than the median one, per operation."""
    rates: dict[str, list[float]] = {}
    for fleet, seconds in fleets:
        rates.setdefault(kind(fleet.runs[0]), []).append(seconds / sum(map(operations, fleet.runs)))
    return {name: [each / statistics.median(found) for each in found] for name, found in rates.items()}


def paper_seconds(scatter: Mapping[str, list[float]], *, rate: float, seed: int) -> Seconds:
    """Seconds of a fleet of the paper: its operations at `rate`, times a recorded factor that its id chooses."""
    known: dict[str, float] = {}

    def seconds(fleet: Fleet) -> float:
        if fleet.id not in known:
            factor = random.Random(f"{seed} {fleet.id}").choice(scatter[kind(fleet.runs[0])])
            known[fleet.id] = factor * sum(map(operations, fleet.runs)) / rate
        return known[fleet.id]

    return seconds


# -- the table --------------------------------------------------------------------------------------------------------
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--failures-per-hour", type=float, nargs="+", default=[0.0, 0.01])
    parser.add_argument("--start-seconds", type=float, default=60.0)
    parser.add_argument("--checkpoint-seconds", type=float, default=10.0, help="as `tacit run` has it")
    parser.add_argument("--tflops", type=float, default=19.5, help="one A100 in float32 without TF32")
    parser.add_argument("--utilisation", type=float, default=0.1, help="the share of the peak that is reached")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="the recorded fleets alone")
    options = parser.parse_args(arguments)
    found = recorded()
    taken = {fleet.id: seconds for fleet, seconds in found}
    scatter = factors(found)
    rate = options.tflops * 1e12 * options.utilisation
    workloads: dict[str, tuple[list[list[Fleet]], Seconds]] = {
        "recorded": ([sorted((fleet for fleet, _ in found), key=lambda fleet: -fleet.cost)], lambda f: taken[f.id])
    }
    if not options.quick:
        paper = [pack(study.runs) for study in library(None, "paper").values()]
        together = sorted((fleet for fleets in paper for fleet in fleets), key=lambda fleet: -fleet.cost)
        for times, chosen in (("counted", {name: [1.0] for name in scatter}), ("recorded scatter", scatter)):
            seconds = paper_seconds(chosen, rate=rate, seed=options.seed)
            workloads[f"paper, {times}, one study after another"] = paper, seconds
            workloads[f"paper, {times}, all studies at once"] = [together], seconds
    rows = list(_rows(workloads, options))
    result = {
        "start_seconds": options.start_seconds, "checkpoint_seconds": options.checkpoint_seconds,
        "tflops": options.tflops, "utilisation_of_a_device": options.utilisation, "seed": options.seed,
        "recorded_fleets": len(found), "recorded_hours": sum(taken.values()) / HOUR,
        "factors": {name: [min(each), statistics.median(each), max(each)] for name, each in scatter.items()},
        "rows": rows, **provenance(),
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def _rows(
    workloads: Mapping[str, tuple[list[list[Fleet]], Seconds]], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    for name, (studies, seconds) in workloads.items():
        for workers, failures in itertools.product(options.workers, options.failures_per_hour):
            row = {
                "workload": name,
                **simulate(
                    studies, workers=workers, seconds=seconds, failures_per_hour=failures,
                    start_seconds=options.start_seconds, checkpoint_seconds=options.checkpoint_seconds,
                    seed=options.seed,
                ),
            }  # fmt: skip
            print(
                f"{name:52} {workers:4} workers, {failures:.0%} failures an hour: {row['hours']:10.1f} h (at least "
                f"{row['hours_at_least']:.1f}), used {row['utilisation']:.1%}, {row['losses']} workers lost, "
                f"{row['given_up']} of {row['fleets']} fleets given up"
            )
            yield row


if __name__ == "__main__":
    main()
