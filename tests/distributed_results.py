"""Runs the workers of `distributed_workers.py` once per test session, and reads what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

# Some fifteen seconds of work on two free cores; the limit is for a machine that is busy with other things, and
# below that of a test (pyproject.toml), so that what the workers wrote is shown.
LIMIT = 500


class Results:
    """What the workers of each world found: `tensors(name)[rank][key]` and `messages(name)[rank]`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tensors(self, name: str, world: int = 2) -> list[dict[str, Tensor]]:
        loaded = [load_file(self.folder / f"{world}-{rank}.safetensors") for rank in range(world)]
        return [{k.split("/", 1)[1]: v for k, v in found.items() if k.split("/", 1)[0] == name} for found in loaded]

    def messages(self, name: str, world: int = 2) -> list[str]:
        return [json.loads((self.folder / f"{world}-{rank}.json").read_text())[name] for rank in range(world)]


def run_once(folder: Path) -> Results:
    """The first caller runs the workers, the others (pytest-xdist has several processes) wait for it."""
    done = folder / "returncode"
    try:
        folder.mkdir()
    except FileExistsError:
        deadline = time.monotonic() + LIMIT + 30
        while not done.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
    else:
        code = _run(folder)
        done.with_suffix(".new").write_text(str(code))
        done.with_suffix(".new").rename(done)
    assert done.read_text() == "0", (folder / "errors").read_text()[-8000:]
    return Results(folder)


def _run(folder: Path) -> int:
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    program = f"import sys, distributed_workers as w; sys.exit(w.main(w.Path({str(folder)!r}), [1, 2, 4]))"
    with (folder / "errors").open("w") as errors:
        command = [sys.executable, "-c", program]
        try:
            return subprocess.run(command, env=environment, stderr=errors, timeout=LIMIT, check=False).returncode
        except subprocess.TimeoutExpired:
            return -1
