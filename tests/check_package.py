"""Build the wheel and the sdist, check them, install the wheel outside the repository and use it: `make package`.

    python tests/check_package.py [--python PATH]... [--venvs FOLDER]

The wheel is built from the sdist, so a file that the sdist forgets is missed. With `--venvs` the environments stay in
that folder and are used again; without it they are temporary. Pinned versions of constraints.txt are used only for the
Python they were chosen with; other Pythons get what pip finds, as a user would.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = (
    ("--version",),
    ("verify", "--problem", "quadratic"),
    ("reproduce", "--dry-run"),
    ("run", "stripes.toml", "keep_weights=true", "--workers", "1"),  # goes on after it was killed
    ("status", "runs/stripes"),
    ("report", "runs/stripes"),
    ("export", "runs/stripes", "--csv", "stripes.csv"),
    ("explore", "--into", "explore.html"),
)
WRITTEN = ("runs/stripes/studies/stripes.json", "runs/stripes/report.html", "stripes.csv", "explore.html")
EXAMPLE = ROOT / "docs" / "studies.md"  # its worked example: an own model on own data


def run(*command: str | Path, folder: Path) -> str:
    """The output of a command; its failure ends the check. PYTHONPATH must not bring the repository in."""
    print(f"  {' '.join(Path(command[0]).name if i == 0 else str(word) for i, word in enumerate(command))}", flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def run_and_kill(*command: str | Path, folder: Path) -> None:
    """Start a study and kill it with SIGKILL as soon as its first rows are stored; others are still to be trained."""
    print(f"  {Path(command[0]).name} {' '.join(map(str, command[1:]))}, killed after its first rows", flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    output = subprocess.DEVNULL
    running = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
    end = time.monotonic() + 300
    while not list(folder.glob("runs/*/fleets/*/rows.jsonl")):
        if running.poll() is not None or time.monotonic() > end:
            sys.exit("the study ended, or stored no row in five minutes, before it could be killed.")
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()


def environment(python: str, folder: Path) -> Path:
    """The python of a virtual environment in the folder, made if it is not there."""
    inside = folder / "bin" / "python"
    if not inside.exists():
        run(python, "-m", "venv", folder, folder=folder.parent)
    return inside


def build(folder: Path) -> Path:
    """dist/ with the sdist and the wheel that was built from it, both accepted by twine; the wheel."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    tools = environment(sys.executable, folder / "tools")
    run(tools, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "build", "twine", folder=folder)
    run(tools, "-m", "build", "--outdir", ROOT / "dist", ROOT, folder=folder)
    made = sorted((ROOT / "dist").iterdir())
    if [path.suffix for path in made] != [".whl", ".gz"]:
        sys.exit(f"dist holds {[path.name for path in made]}; expected one wheel and one sdist.")
    run(tools, "-m", "twine", "check", "--strict", *made, folder=folder)
    return made[0]


def use(wheel: Path, python: str, folder: Path) -> None:
    """Install the wheel for one Python and run what a newcomer would run, in an empty folder."""
    version = run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])", folder=folder).strip()
    inside = environment(python, folder / f"python{version}")
    pinned = ("-c", ROOT / "constraints.txt") if version == "3.11" else ()
    pip = (inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, *pinned, wheel, folder=folder)
    run(*pip, "--force-reinstall", "--no-deps", wheel, folder=folder)  # the environment may hold an older build
    where = run(inside, "-c", "import tacit; print(tacit.__file__)", folder=folder).strip()
    if not Path(where).is_relative_to(inside.parent.parent):
        sys.exit(f"tacit was imported from {where}; expected the environment {inside.parent.parent}.")
    with tempfile.TemporaryDirectory(prefix="tacit-use-") as empty:
        place = Path(empty)
        for name, text in re.findall(r"```\w+ title=(\S+)\n(.*?)```", EXAMPLE.read_text(), flags=re.DOTALL):
            (place / name).write_text(text)
        run_and_kill(
            inside.parent / "tacit", "run", "stripes.toml", "keep_weights=true", "--workers", "1", folder=place
        )
        for command in COMMANDS:
            output = run(inside.parent / "tacit", *command, folder=place)
            if command == ("--version",):
                print(output.rstrip())
        rows = list(csv.DictReader((place / "stripes.csv").open()))
        if len(rows) != 6:
            sys.exit(f"stripes.csv has {len(rows)} rows; expected the 6 runs of the worked example.")
        run(inside.parent / "tacit", "measure", "runs/stripes", "--run", rows[0]["run"][:8], folder=place)
        missing = [name for name in WRITTEN if not (place / name).is_file()]
        if missing:
            sys.exit(f"{', '.join(missing)} was not written.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="a Python to install for; this one without it")
    parser.add_argument("--venvs", type=Path, help="keep the environments in this folder")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tacit-package-") as temporary:
        folder = (chosen.venvs or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        print("build")
        wheel = build(folder)
        for python in chosen.python or [sys.executable]:
            print(f"use with {python}")
            use(wheel, python, folder)
    print(f"the package works: {wheel.name}")


if __name__ == "__main__":
    main()
