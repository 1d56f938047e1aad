"""A study on two simulated nodes loses one of them half-way: complete or not, rows identical or not.

    python benchmarks/node_loss.py [--file STUDY.toml] [--json FILE]

Trains the study with one local worker and then on a Ray cluster of two nodes of one core each, on this machine and its
loopback address. When half of the work is done, the second node is killed with everything on it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tacit._provenance import provenance
from tacit.studies import runner
from tacit.studies.describe.study import load_study, parse_study
from tacit.studies.execute.ray.executor import RayExecutor
from tacit.studies.execute.ray.session import import_ray, loopback_only

SMALL = {
    "name": "node-loss",
    "fixed": {"train_size": 1024, "batch_size": 16, "width": 32, "depth": 2, "epochs": 60, "evaluations": 4},
    "grid": {"learning_rate": [0.05, 0.1, 0.2], "strength": [0.0, 0.05], "seed": [0, 1, 2, 3]},
}


class Saboteur(runner.Watcher):
    """Kills the node when half of the work is done."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.texts = cluster, list[str]()
        self.lost_at: float | None = None

    def advanced(self, done: float) -> None:
        if self.lost_at is None and done >= 0.5:
            (node,) = self.cluster.worker_nodes
            self.cluster.remove_node(node, allow_graceful=False)
            self.lost_at = done
            print(f"killed one of two nodes at {done:.0%}", file=sys.stderr)

    def warned(self, text: str) -> None:
        self.texts.append(text)
        print(text, file=sys.stderr)


def add_node(cluster: Any, **options: Any) -> None:
    """Ray gives a node 30 seconds to start, which a busy machine may need more than once."""
    for last in (False, False, True):
        try:
            cluster.add_node(num_cpus=1, **options)
            return
        except Exception:
            if last:
                raise


def rows(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob("fleets/*/rows.jsonl"))}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--file", type=Path, help="a study file; a small study of MNIST-1D without it")
    options.add_argument("--json", type=Path, help="also write the numbers to this file")
    given = options.parse_args()
    study = load_study(given.file) if given.file else parse_study(SMALL)
    import_ray()
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory() as parent, loopback_only():
        runner.run(study, Path(parent) / "local", workers=1)
        cluster = Cluster()
        try:
            add_node(cluster, include_dashboard=False)
            add_node(cluster)
            saboteur, began = Saboteur(cluster), time.monotonic()
            with RayExecutor(2, address=cluster.address) as executor:
                made = runner.run(
                    study, Path(parent) / "ray", executor=executor, watcher=saboteur, checkpoint_seconds=1.0
                )
            seconds = time.monotonic() - began
        finally:
            cluster.shutdown()
        same = rows(Path(parent) / "local") == rows(Path(parent) / "ray")
    result = {
        "study": study.name, "runs": len(study.runs), "rows": len(made), "node_lost_at": saboteur.lost_at,
        "said": saboteur.texts, "rows_identical": same, "seconds": round(seconds, 1), **provenance(),
    }  # fmt: skip
    print(f"{len(made)} of {len(study.runs)} rows; identical to one local worker: {'yes' if same else 'NO'}")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if same and len(made) == len(study.runs) and saboteur.lost_at is not None else 1


if __name__ == "__main__":
    sys.exit(main())
