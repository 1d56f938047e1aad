"""Public models under every method of the penalty: `python benchmarks/zoo/run.py --json benchmarks/results/zoo.json`.

No weights are downloaded: models are built from small random configurations. Rows are written as they are found, and a
model that is already in the file is not run again unless `--again` is given or its name is chosen with `--only`. The
file says which commit and versions each row comes from, and whether all of them come from one run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import os
import platform
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing may be fetched

import text_models
import torch_models
import vision_models
from check import STRENGTH, examine

from tacit._util.provenance import commit

ENTRIES = [*torch_models.ENTRIES, *vision_models.ENTRIES, *text_models.ENTRIES]
FAILURES = ("wrong", "traceback", "buffers")


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("torch", "torchvision", "timm", "transformers", "peft")}


def run_facts() -> dict[str, Any]:
    """What a row comes from. The commit is asked for once, before the first row makes the tree dirty."""
    found = commit()
    return {
        "commit": None if found is None else found.removesuffix("-dirty"),
        "dirty": None if found is None else found.endswith("-dirty"),
        "started": now(),
        "versions": {"python": platform.python_version(), **versions()},
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def endings(model: dict[str, Any]) -> Counter[str]:
    return Counter(end["status"] for methods in model["variants"].values() for end in methods.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", default="", help="part of a model's name")
    parser.add_argument("--again", action="store_true", help="run models that are in the file, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("tacit").setLevel(logging.ERROR)  # it says once per penalty that attention runs under MATH
    stored: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    models = {} if options.again else {(m["library"], m["name"]): m for m in stored.get("models", [])}
    failed, run = 0, run_facts()
    for entry in ENTRIES:
        key = (entry.library, entry.name)
        if options.only.lower() not in entry.name.lower() or (key in models and not options.only):
            continue
        began = time.process_time()
        models[key] = examine(entry) | {"run": run["started"]}
        found = endings(models[key])
        failed += sum(found[status] for status in FAILURES)
        print(f"{entry.library:12} {entry.name:42} {time.process_time() - began:5.1f} s  {dict(found)}", flush=True)
        for variant, methods in models[key]["variants"].items():
            for method, end in methods.items():
                if end["status"] in FAILURES:
                    print(f"    {variant}, {method}: {end}", flush=True)
        order = [(entry.library, entry.name) for entry in ENTRIES]
        rows = [models[name] for name in order if name in models]
        used = {row.get("run") for row in rows}
        earlier = [known for known in stored.get("runs", []) if known["started"] in used - {run["started"]}]
        result = {
            "strength": STRENGTH,
            "versions": versions(),
            "one_run": used == {run["started"]} and len(rows) == len(ENTRIES),
            "runs": [*earlier, run | {"ended": now()}],
            "models": rows,
        }
        partial = options.json.with_suffix(".partial")
        partial.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        partial.replace(options.json)
    total = sum((endings(model) for model in models.values()), Counter())
    print(f"{len(models)} models, {total.total()} cases: {dict(total)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
