"""Random faults against a running study, for N minutes; then: is any row lost, duplicated or different?

    python benchmarks/soak.py --minutes 25 --seed 1 --json benchmarks/results/soak.json
    python benchmarks/soak.py --minutes 3 --executor ray

A small MNIST-1D study is trained once in peace. Then it is trained again and again in fresh folders while faults hit
its processes and files (`soak_faults.py` has the list); whatever dies is started again, as a user or a batch system
would. A round ends when the study says that it is complete, and its rows are then compared, byte by byte, with the
peaceful ones. Exit codes, tracebacks, processes and temporary files left behind are judged too. The result is JSON; the
exit code is 0 when nothing was lost, duplicated, different or unexpected.

All processes are on this machine; Ray listens on the loopback only. Everything is in one temporary folder, which is
removed, and every process that was started is ended, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import soak_faults
from soak_damage import hook_disk
from soak_life import Life, end_all, outlived, start_cluster

from tacit._util.provenance import provenance
from tacit.studies.describe.study import Study, parse_study
from tacit.studies.train.packing import pack

PATIENCE = 600.0  # seconds that the last round may take, without faults, after the time is over
STUDY = parse_study(
    {
        "name": "soak",
        "fixed": {"train_size": 1024, "width": 32, "depth": 2, "evaluations": 4, "updates": 1024},
        "grid": [{"batch_size": [8, 16, 32, 64], "strength": [0.0, 0.05], "learning_rate": [0.05, 0.2, 1e5],
                  "seed": [0, 1]}],
    }
)  # fmt: skip
SAID = {  # what a driver may end with, code 2, and the fault that it must come from
    "disk is full": "full_disk",
    "trains those runs again": "damage",
    "upgrade tacit": "damage",  # a bit of the schema's number
    "and the others are finished": "worker",  # a fleet that was hit three times in one life of a driver
    "while starting": "worker",
}


@dataclass
class Tally:
    """What happened, for the JSON."""

    faults: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    sentences: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    rounds: int = 0
    lives: int = 0
    rows_compared: int = 0
    lost: int = 0
    duplicated: int = 0
    different: int = 0
    left_processes: int = 0
    left_files: list[str] = field(default_factory=list)
    starved: int = 0


@dataclass
class Soak:
    """One run of the soak: where it is, what it draws, and how long it goes on."""

    work: Path
    executors: list[str]  # taken in turns, one per round
    workers: int
    draws: random.Random
    began: float = 0.0
    end: float = 0.0
    least: int = 0
    cluster: Any = None
    tally: Tally = field(default_factory=Tally)
    kinds: dict[str, list[str]] = field(default_factory=dict)

    @property
    def executor(self) -> str:
        return self.executors[self.tally.rounds % len(self.executors)]

    def start(self, folder: Path) -> Life:
        self.tally.lives += 1
        log = self.work / f"life-{self.tally.lives}.log"
        words = ["--drive", str(folder), "--executor", self.executor, "--workers", str(self.workers)]
        words += ["--address", self.cluster.address] if self.executor == "ray" else []
        with log.open("wb") as handle:
            process = subprocess.Popen(
                [sys.executable, __file__, *words], stdin=subprocess.DEVNULL, stdout=handle, stderr=handle
            )
        return Life(process, log, folder, self.executor, soak=self)

    def next_kind(self) -> str:
        """Every kind once in a random order, then again: no kind is left out by chance."""
        left = self.kinds.setdefault(self.executor, [])
        if not left:
            left += soak_faults.kinds(self.executor)
            self.draws.shuffle(left)
        return left.pop()

    @property
    def is_over(self) -> bool:
        """Time is over and the faults are enough, or twice the time is over."""
        late = time.monotonic() - self.end
        return late > 0 and (sum(self.tally.faults.values()) >= self.least or late > self.end - self.began)

    def pause(self, life: Life) -> float:
        """Seconds until the next fault. Half of the time it waits for a sign of work first, or only starts are hit."""
        if self.draws.random() < 0.5:
            life.wait_for_work(self.draws.uniform(20.0, 60.0))
        return self.draws.uniform(0.2, 4.0)

    def round(self, reference: dict[str, bytes]) -> None:
        """One study from an empty folder to completeness, under faults while there is time."""
        folder = self.work / f"round-{self.tally.rounds}"
        last = time.monotonic() + PATIENCE
        life = self.start(folder)
        while True:
            quiet = self.is_over
            delay = 0.0 if quiet else self.pause(life)
            try:
                life.process.wait(timeout=max(last - time.monotonic(), 0.1) if quiet else delay)
            except subprocess.TimeoutExpired:
                if quiet:
                    self.tally.unexpected.append(f"round {self.tally.rounds}: not complete after {PATIENCE:.0f} s")
                    life.kill()
                    break
                kind = self.next_kind()
                if soak_faults.do(kind, life, self.draws):
                    self.tally.faults[f"{self.executor}: {kind}"] += 1
                    last = time.monotonic() + PATIENCE
                else:
                    self.kinds[self.executor].insert(0, kind)  # nothing to hit yet: later
                if life.process.poll() is None:
                    continue
            self.judge(life)
            if life.process.returncode == 0:
                break
            life = self.start(folder)
        self.compare(folder, reference)
        self.tally.rounds += 1
        shutil.rmtree(folder, ignore_errors=True)

    def judge(self, life: Life) -> None:
        """Whether a driver ended in a way that its faults explain; its workers must end with it."""
        code, text = life.process.returncode, life.log.read_text(errors="replace")
        self.tally.exits[str(code)] += 1
        if "Traceback" in text and "MemoryError" in text and "starve_worker" in life.done:
            self.tally.starved += 1  # Python's own last words in a worker that was left without memory
        elif "Traceback" in text:
            self.tally.unexpected.append(f"life {self.tally.lives}: traceback: {text[-600:]}")
        explained = code == 0 or code in life.expected
        if code == 2:
            last = (text.strip().splitlines() or [""])[-1]
            found = [word for word, cause in SAID.items() if word in last and cause in soak_faults.causes(life)]
            explained = bool(found)
            self.tally.sentences[found[0] if found else "other"] += 1
            if "upgrade tacit" in last:
                for path in life.folder.glob("studies/*.json"):
                    path.unlink()
        if not explained:
            self.tally.unexpected.append(f"life {self.tally.lives}: code {code} after {life.done}: {text[-300:]}")
        self.tally.left_processes += outlived(life)

    def compare(self, folder: Path, reference: dict[str, bytes]) -> None:
        found = rows_on_disk(folder)
        seen = Counter(run_of(line) for content in found.values() for line in content.splitlines())
        wanted = {run_of(line): line for content in reference.values() for line in content.splitlines()}
        lines = {run_of(line): line for content in found.values() for line in content.splitlines()}
        self.tally.rows_compared += len(wanted)
        self.tally.lost += sum(run not in seen for run in wanted)
        self.tally.duplicated += sum(count - 1 for count in seen.values())
        self.tally.different += sum(lines[run] != line for run, line in wanted.items() if run in lines)
        self.tally.different += sum(run not in wanted for run in seen)
        if found != reference:
            self.tally.unexpected.append(f"round {self.tally.rounds}: files of rows differ")
        left = [path for path in folder.rglob("*") if path.is_file() and path.name not in EXPECTED]
        self.tally.left_files += [path.name for path in left]


EXPECTED = ("soak.json", "lock", "rows.jsonl", "meta.json", "rows.damaged.jsonl")


def run_of(line: bytes) -> str:
    return json.loads(line)["run"]


def rows_on_disk(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob("fleets/*/rows.jsonl"))}


def drive(folder: Path, args: argparse.Namespace) -> int:
    """A driver: what `tacit run` does, with frequent checkpoints and a disk that we can fill."""
    from tacit import InputError
    from tacit.studies import runner
    from tacit.studies.execute.signals import exit_code

    hook_disk(folder)
    try:
        runner.run(
            STUDY, folder, executor=args.executor, address=args.address, workers=args.workers, checkpoint_seconds=0.3
        )
    except KeyboardInterrupt as stopped:
        return exit_code(stopped)
    except InputError as error:
        print(f"tacit: {error}", flush=True)
        return 2
    return 0


def soak(args: argparse.Namespace) -> dict[str, Any]:
    work = Path(tempfile.mkdtemp(prefix="tacit-soak-"))
    os.environ["TACIT_CACHE"] = str(work / "cache")
    began = time.monotonic()
    executors = ["local", "ray"] if args.executor == "both" else [args.executor]
    made = Soak(work, executors, args.workers, random.Random(args.seed))
    try:
        peaceful = argparse.Namespace(executor="local", workers=1, address=None)
        if drive(work / "peace", peaceful) != 0:
            raise SystemExit("the undisturbed run did not finish; nothing to compare with.")
        reference = rows_on_disk(work / "peace")
        if sum(len(content.splitlines()) for content in reference.values()) != len(STUDY.runs):
            raise SystemExit("the undisturbed run has not one row per run; nothing to compare with.")
        peace_seconds = time.monotonic() - began
        if "ray" in executors:
            made.cluster = start_cluster()
        made.began, made.least = time.monotonic(), args.faults
        made.end = made.began + 60 * args.minutes
        while not made.is_over:
            made.round(reference)
            print(f"{time.monotonic() - began:5.0f} s: {made.tally}", file=sys.stderr, flush=True)
    finally:
        end_all(made)
        if not args.keep:
            shutil.rmtree(work, ignore_errors=True)
    return result(made, args, STUDY, seconds=time.monotonic() - began, peace_seconds=peace_seconds)


def result(
    made: Soak, args: argparse.Namespace, study: Study, *, seconds: float, peace_seconds: float
) -> dict[str, Any]:
    tally = made.tally
    return {
        "what": "random faults against a running study; rows compared byte by byte with an undisturbed run",
        "command": f"benchmarks/soak.py --minutes {args.minutes:g} --executor {args.executor} --workers {args.workers} "
        f"--faults {args.faults} --seed {args.seed}",  # not argv: it may name folders of this machine
        "executor": args.executor,
        "minutes": args.minutes,
        "seconds": round(seconds, 1),
        "seconds_undisturbed": round(peace_seconds, 1),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "study": {"hash": study.hash, "runs": len(study.runs), "fleets": len(pack(study.runs))},
        "rounds": tally.rounds,
        "driver_starts": tally.lives,
        "faults": sum(tally.faults.values()),
        "faults_by_kind": by_executor(tally.faults),
        "driver_exits": dict(sorted(tally.exits.items())),
        "sentences": dict(sorted(tally.sentences.items())),
        "rows_compared": tally.rows_compared,
        "rows_lost": tally.lost,
        "rows_duplicated": tally.duplicated,
        "rows_different": tally.different,
        "processes_left": tally.left_processes,
        "files_left": tally.left_files,
        "tracebacks_of_starved_workers": tally.starved,
        "unexpected": tally.unexpected,
        **provenance(),
    }


def by_executor(faults: Counter[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for name, count in sorted(faults.items()):
        executor, kind = name.split(": ")
        found.setdefault(executor, {})[kind] = count
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--executor", choices=("local", "ray", "both"), default="local", help="both: in turns")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--faults", type=int, default=0, help="go on until there were so many, at most twice the time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder, with the drivers' logs")
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.drive is not None:
        return drive(args.drive, args)
    if not 0 < args.minutes <= 24 * 60:
        parser.error(f"--minutes is {args.minutes:g}; expected more than 0 and at most a day")
    found = soak(args)
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if args.json:
        temporary = args.json.with_name(f".{args.json.name}.tmp")
        temporary.write_text(text)
        temporary.replace(args.json)
    print(text)
    bad = ("rows_lost", "rows_duplicated", "rows_different", "processes_left", "files_left")
    return int(any(found[key] for key in bad) or bool(found["unexpected"]))


if __name__ == "__main__":
    sys.exit(main())
