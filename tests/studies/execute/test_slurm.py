"""The SLURM job script: run here by bash, with stand-ins for SLURM's, Ray's and tacit's commands."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tacit import InputError
from tacit.studies.execute.slurm import Job, script

AWKWARD = ["learning_rate=2^-5,0.1", "seeds=0:2", "question=what's $HOME; `id`"]


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


def submitted(text: str, machine: Path) -> subprocess.Popen[bytes]:
    path = machine.parent / "job.sh"
    path.write_text(text)
    environment = {**os.environ, "SEEN": str(machine.parent / "seen"), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "x"}
    return subprocess.Popen(["bash", str(path)], env=environment, start_new_session=True)


def seen(machine: Path) -> list[str]:
    path = machine.parent / "seen"
    return path.read_text().splitlines() if path.exists() else []


def made(machine: Path, **options: object) -> str:
    job = Job(**options)  # type: ignore[arg-type]
    return script(job, Path("my studies/it's.toml"), AWKWARD, into=Path("runs/a b"), bin_folder=machine)


def ended(process: subprocess.Popen[bytes]) -> int:
    code = process.wait(timeout=60)
    os.killpg(process.pid, signal.SIGKILL) if _alive(process.pid) else None
    return code


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_job_starts_ray_on_every_machine_and_hands_the_study_over_word_for_word(machine: Path) -> None:
    both = 'until (($(grep -c "^ray start" "$SEEN") == 2)); do sleep 0.05; done'  # as they start, side by side
    stand_in(machine, "tacit", f'{both}; printf "%s\\n" "$@" > "$SEEN.words"; exit 1')
    process = submitted(made(machine, nodes=2, cpus=4, gpus=2), machine)
    assert ended(process) == 1  # the study's own exit code
    words = (machine.parent / "seen.words").read_text().splitlines()
    assert words == [
        *["run", "my studies/it's.toml", *AWKWARD, "--into", "runs/a b", "--executor", "ray"],
        *["--workers", "4", "--device", "cuda", "--address", "10.0.0.1:20007"],
    ]
    started = sorted(line for line in seen(machine) if line.startswith("ray start"))
    common = "ray start --num-cpus=4 --num-gpus=2 --disable-usage-stats --block"
    head = f"{common} --head --node-ip-address=10.0.0.1 --port=20007 --include-dashboard=false"
    assert started == [f"{common} --address=10.0.0.1:20007", head]
    steps = [line for line in seen(machine) if line.startswith("srun") and "ray start" in line]
    assert ["--cpus-per-task=4" in line for line in steps] == [True, True]  # or SLURM gives Ray a single core


def test_a_file_whose_name_begins_with_a_dash_is_no_option(tmp_path: Path) -> None:
    text = script(Job(), Path("-rates.toml"), [], into=Path("runs/rates"), bin_folder=tmp_path)
    assert "tacit run ./-rates.toml " in text


def test_sigterm_reaches_the_study_which_has_time_for_last_checkpoints(machine: Path) -> None:
    stand_in(machine, "tacit", 'trap "sleep 0.5; touch $SEEN.stored; exit 143" TERM; touch "$SEEN.up"; sleep 20 & wait')
    process = submitted(made(machine), machine)
    end = time.monotonic() + 60
    while not (machine.parent / "seen.up").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 143
    assert (machine.parent / "seen.stored").exists()


def test_the_request_is_what_was_asked_for(machine: Path) -> None:
    text = made(machine, nodes=3, time="1-02:00:00", partition="gpu", cpus=16, gpus=4, setup=("module load cuda",))
    asked = {line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")}
    assert asked >= {"nodes=3", "time=1-02:00:00", "partition=gpu", "cpus-per-task=16", "gpus-per-node=4"}
    assert asked >= {"job-name=tacit-it-s", "signal=B:TERM@120", "ntasks-per-node=1"}
    assert not any(line.startswith("account") for line in asked)
    assert text.index("module load cuda") < text.index("scontrol")


def test_without_gpus_a_worker_is_a_core(machine: Path) -> None:
    text = made(machine, nodes=2, cpus=16)
    line = next(line for line in text.splitlines() if line.startswith("tacit run"))
    words = shlex.split(line)
    assert words[words.index("--workers") + 1] == "32"
    assert words[words.index("--device") + 1] == "cpu"
    assert "gpus-per-node" not in text


@pytest.mark.parametrize(
    "options,words",
    [
        ({"nodes": 0}, "nodes is 0"),
        ({"gpus": -1}, "gpus is -1"),
        ({"time": "soon"}, "expected minutes, HH:MM:SS"),
        ({"time": "1:00\n#SBATCH --uid=0"}, "expected minutes"),
        ({"partition": "a b"}, "partition is 'a b'"),
        ({"account": "x\n"}, "account"),
    ],
)
def test_a_wrong_request_is_a_sentence(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Job(**options)  # type: ignore[arg-type]
