"""Make the matrix of docs/integrations.md: every case in every trainer, stored as JSON. Fails when a cell is wrong.

python tests/integrations/record.py [--trainer NAME] [--case NAME] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import warnings
from pathlib import Path

import torch
from integration_cells import measure
from integration_reference import CASES
from integration_trainers import TRAINERS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "integrations.json"
PACKAGES = ("torch", "lightning", "transformers", "accelerate", "peft")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", choices=list(TRAINERS), action="append")
    parser.add_argument("--case", choices=list(CASES), action="append")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    import accelerate  # noqa: F401  # once here, so that forked processes need not
    import lightning.pytorch  # noqa: F401
    import peft  # noqa: F401
    import transformers  # noqa: F401

    cells = []
    for trainer in options.trainer or TRAINERS:
        for case in options.case or CASES:
            cells.append(measure(trainer, case))
            found = cells[-1].difference
            print(f"{trainer:20} {case:14} {cells[-1].status:8} {cells[-1].message or f'{found:.1e}'}", flush=True)
    stored = {
        "what": "largest relative difference of the weights after 5 steps from a plain loop",
        "trainers": {name: title for name, (title, _) in TRAINERS.items()},
        "cases": {name: case.title for name, case in CASES.items()},
        "cells": [cell.to_row() for cell in cells],
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
    }
    if options.trainer is None and options.case is None:
        options.json.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    wrong = [f"{cell.trainer} x {cell.case}" for cell in cells if cell.status == "wrong"]
    sys.exit(f"wrong: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
