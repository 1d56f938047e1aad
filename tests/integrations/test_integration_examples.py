"""Every script in examples/ is short, and runs as its first lines say. `examples/ddp.py` has a test of its own."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# What each script needs, its arguments, and its last line.
SCRIPTS = {
    "plain_loop.py": ((), ["20"], r"sampled SAM +training \d+\.\d %  test \d+\.\d %"),
    "label_noise.py": ((), ["20"], r"r = 0\.8  wrong labels learned \d+\.\d %  test \d+\.\d %"),
    "own_study.py": ((), [], r"own_study\.html has the figure"),
    "train_with_lightning.py": (("lightning",), [], r"\{'tacit/penalty': .*'accuracy': .*\}"),
    "finetune_gpt2_lora.py": (("transformers", "peft"), [], r"step  30: loss \d\.\d+, penalty 0\.\d+"),
    "train_with_accelerate.py": (("accelerate",), [], r"epoch 4: loss \d\.\d+, penalty 0\.\d+"),
}


def test_every_example_has_a_test_and_fewer_than_sixty_lines() -> None:
    scripts = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert set(scripts) == {*SCRIPTS, "ddp.py"}
    assert {name: lines for name, lines in scripts.items() if lines >= 60} == {}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    needs, arguments, last = SCRIPTS[name]
    for package in needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; make integrations runs this")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.fullmatch(last, done.stdout.splitlines()[-1]), done.stdout[-2000:]
