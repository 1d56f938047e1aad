"""A SLURM job as text: starts Ray on the job's machines, runs one study there, and passes the end of its time on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit._errors import InputError

PLAIN = re.compile(r"[\w.,:=+-]+")  # what an #SBATCH line takes without quoting
TIME = re.compile(r"(\d+-)?\d{1,3}(:\d{2}){0,2}")
WARNING_SECONDS = 120  # SLURM sends SIGTERM so long before the end: time for last checkpoints


@dataclass(frozen=True)
class Job:
    """What to ask SLURM for; `gpus` and `cpus` are per node. `setup` are lines of shell that run first."""

    nodes: int = 1
    time: str = "24:00:00"
    partition: str | None = None
    account: str | None = None
    cpus: int = 8
    gpus: int = 0
    setup: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("nodes", 1), ("cpus", 1), ("gpus", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least {least}.")
        if not TIME.fullmatch(self.time):
            raise InputError(f"time is {self.time!r}; expected minutes, HH:MM:SS or D-HH:MM:SS.")
        for name in ("partition", "account"):
            value = getattr(self, name)
            if value is not None and not PLAIN.fullmatch(value):
                raise InputError(f"{name} is {value!r}; expected letters, digits and .,:=+-_ only.")


def script(job: Job, file: Path, overrides: Sequence[str], *, into: Path, bin_folder: Path) -> str:
    """A bash script for `sbatch` that runs `tacit run FILE OVERRIDES --executor ray` on all nodes of the job.

    `bin_folder` is where `tacit` and `ray` are, on every machine. Submitted again, the study goes on.
    """
    name = re.sub(r"[^\w.-]", "-", file.stem) or "study"
    workers = job.nodes * (job.gpus or job.cpus)
    path = f"./{file}" if str(file).startswith("-") else str(file)  # or it would be an option
    words = ["tacit", "run", path, *overrides, "--into", str(into), "--executor", "ray"]
    words += ["--workers", str(workers), "--device", "cuda" if job.gpus else "cpu"]
    options = {
        "job-name": f"tacit-{name}", "output": f"tacit-{name}-%j.log", "nodes": job.nodes, "ntasks-per-node": 1,
        "cpus-per-task": job.cpus, "gpus-per-node": job.gpus or None, "time": job.time, "partition": job.partition,
        "account": job.account, "signal": f"B:TERM@{WARNING_SECONDS}",
    }  # fmt: skip
    sbatch = "\n".join(f"#SBATCH --{key}={value}" for key, value in options.items() if value is not None)
    # Since version 22.05 a step does not inherit the cores per task: without them Ray would have one core.
    step = f"srun --overlap --cpus-per-task={job.cpus}"
    ray_start = f"ray start --num-cpus={job.cpus} --num-gpus={job.gpus} --disable-usage-stats --block"
    setup = "".join(f"{line}\n" for line in job.setup)
    return f"""\
#!/usr/bin/env bash
{sbatch}
set -euo pipefail
{setup}export PATH={shlex.quote(str(bin_folder))}:"$PATH"
export RAY_USAGE_STATS_ENABLED=0

# Ray's head on the first machine, where this script runs too.
mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${{machines[0]}}"
head_ip="$(srun --overlap --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{{print $1}}')"
port=$((20000 + SLURM_JOB_ID % 20000))
{step} --nodes=1 --ntasks=1 -w "$head" \\
  {ray_start} --head --node-ip-address="$head_ip" --port="$port" --include-dashboard=false &
for _ in $(seq 120); do
  ray status --address "$head_ip:$port" > /dev/null 2>&1 && break
  sleep 1
done

# One Ray node on each other machine. Those that come late are used when they come.
others=$((${{#machines[@]}} - 1))
if ((others > 0)); then
  {step} --nodes="$others" --ntasks="$others" --exclude="$head" \\
    {ray_start} --address="$head_ip:$port" &
fi

# The study: the one process that writes. SIGTERM is passed on, so that last checkpoints are stored.
{shlex.join(words)} --address "$head_ip:$port" &
study=$!
trap 'kill -TERM "$study"' TERM
code=0
wait "$study" || code=$?
while kill -0 "$study" 2> /dev/null; do
  code=0
  wait "$study" || code=$?
done
exit "$code"
"""
