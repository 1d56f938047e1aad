"""docs/slurm.sh: bash understands it, and a stopped job leaves the study time; with stand-ins for SLURM, Ray, tacit."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from in_process import wait_for

SCRIPT = Path(__file__).parents[3] / "docs" / "slurm.sh"


def stand_in(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f'#!/usr/bin/env bash\necho "{name}" "$@" >> "$SEEN"\n{body}\n')
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two machines; `srun` runs its command here, `ray start` stays, `ray status` is content."""
    folder = tmp_path / "bin with space"
    folder.mkdir()
    stand_in(folder, "scontrol", "echo one; echo two")
    stand_in(folder, "srun", 'while [[ "$1" == -* ]]; do if [[ "$1" == -w ]]; then shift; fi; shift; done; exec "$@"')
    stand_in(folder, "hostname", "echo 10.0.0.1 10.0.0.2")
    stand_in(folder, "ray", '[[ "$1" == status ]] || exec sleep 20')
    return folder


def submitted(machine: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ, "PATH": f"{machine}:{os.environ['PATH']}", "SEEN": str(machine.parent / "seen"),
        "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "x",
    }  # fmt: skip
    return subprocess.Popen(["bash", str(SCRIPT)], env=environment, start_new_session=True)


def ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(timeout=60)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the stand-ins for Ray still sleep


def test_bash_can_parse_the_script() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def test_the_job_starts_ray_on_every_machine_and_ends_as_the_study_does(machine: Path) -> None:
    both = 'until (($(grep -c "^ray start" "$SEEN") == 2)); do sleep 0.05; done'  # as they start, side by side
    stand_in(machine, "tacit", f"{both}; exit 1")
    assert ended(submitted(machine)) == 1
    seen = (machine.parent / "seen").read_text().splitlines()
    common = "ray start --num-cpus=32 --num-gpus=0 --disable-usage-stats --block"
    head = f"{common} --head --node-ip-address=10.0.0.1 --port=20007 --include-dashboard=false"
    assert sorted(line for line in seen if line.startswith("ray start")) == [f"{common} --address=10.0.0.1:20007", head]
    steps = [line for line in seen if line.startswith("srun") and "ray start" in line]
    assert ["--cpus-per-task=32" in line for line in steps] == [True, True]  # or SLURM gives Ray a single core
    (study,) = [line for line in seen if line.startswith("tacit")]
    assert study == (
        "tacit run mnist1d/standard/rates --into runs/rates --executor ray --address 10.0.0.1:20007 "
        "--device cpu --workers 64"
    )


def test_sigterm_reaches_the_study_which_has_time_for_last_checkpoints(machine: Path) -> None:
    stand_in(machine, "tacit", 'trap "sleep 0.5; touch $SEEN.stored; exit 143" TERM; touch "$SEEN.up"; sleep 20 & wait')
    process = submitted(machine)
    wait_for((machine.parent / "seen.up").exists)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 143
    assert (machine.parent / "seen.stored").exists()
