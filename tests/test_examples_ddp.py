"""`examples/ddp.py` runs as its first line says, started by torchrun with two workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_ddp_example_runs_under_torchrun_and_equals_micro_batches() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "ddp.py"), "2"],
        env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    first, *rest = done.stdout.splitlines()
    apart = re.fullmatch(r"2 workers against micro-batches on one device: relative difference (\S+)", first)
    assert apart
    assert float(apart[1]) < 1e-10
    accuracies = [re.fullmatch(r"λ = \S+ +test accuracy (\S+) %", line) for line in rest]
    # Two epochs teach little; chance is 10 %, and 1,000 test signals put four standard deviations at 4 %.
    assert len(accuracies) == 2
    assert all(float(found[1]) > 14 for found in accuracies)
