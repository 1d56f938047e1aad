"""One driver of the soak and its workers, as seen from /proc; the cluster of the soak; and the end of them all."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UNTIL_THE_END = contextlib.ExitStack()
PATIENCE = 600.0  # seconds that a node of the cluster may take to start
GRACE = 30.0  # seconds in which the workers of a dead driver must end


@dataclass
class Life:
    """One driver process, from its start to its end, and the faults it has seen."""

    process: subprocess.Popen[bytes]
    log: Path
    folder: Path
    executor: str
    soak: Any
    done: list[str] = field(default_factory=list)
    expected: set[int] = field(default_factory=set)  # exit codes that its faults explain
    born: float = field(default_factory=time.time)
    family: set[int] = field(default_factory=set)  # processes of its workers that were seen

    def kill(self) -> None:
        self.workers()
        self.expected.add(-signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def wait_for_work(self, seconds: float) -> None:
        """Until a file of a fleet is newer than this driver, or the driver has ended, or so many seconds are over."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            newest = max((_changed(path) for path in self.folder.glob("fleets/*/*")), default=0.0)
            if newest > self.born:
                return
            time.sleep(0.1)

    def workers(self) -> list[int]:
        """Processes that train for this driver: its children, or the actors of our Ray cluster."""
        found = [
            pid for pid in descendants(self.process.pid if self.executor == "local" else os.getpid()) if trains(pid)
        ]
        self.family.update(found)
        return found


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


# -- processes, from /proc ------------------------------------------------------------------------------------------
def parents() -> Iterator[tuple[int, int]]:
    """(process, parent) of everything that runs, without zombies."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            yield int(entry.name), int(parent)


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents():
        children.setdefault(parent, []).append(pid)
    found, level = [], [root]
    while level:
        level = [child for pid in level for child in children.get(pid, [])]
        found += level
    return found


def trains(pid: int) -> bool:
    line = words(pid)
    return "tacit.studies.execute.worker" in line or line.startswith("ray::RayWorker")


def words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def outlived(life: Life) -> int:
    """How many workers are still there well after their driver's end."""
    end = time.monotonic() + GRACE
    while time.monotonic() < end:
        left = [pid for pid in life.family if trains(pid)]
        if not left:
            return 0
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return len(left)


def send_signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


# -- a cluster on this machine ----------------------------------------------------------------------------------------
def start_cluster() -> Any:
    """A head and one node of one core each, on the loopback address, for this process and all that it starts."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # the loopback address alone; drivers inherit it
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    add_node(cluster, include_dashboard=False)
    add_node(cluster)
    return cluster


def add_node(cluster: Any, **options: Any) -> None:
    """Ray gives a node 30 seconds to start, which a busy machine may need more than once."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            cluster.add_node(num_cpus=1, object_store_memory=128 * 2**20, **options)
            return
        except Exception:
            if time.monotonic() > end:
                raise


def end_all(soak: Any) -> None:
    """End every process that this soak has started, and nothing else."""
    if soak.cluster is not None:
        soak.cluster.shutdown()
    for pid in descendants(os.getpid()):
        send_signal(pid, signal.SIGKILL)
