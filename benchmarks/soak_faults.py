"""The faults of the soak: what happens to processes and files on real machines, one function each.

A fault of a process hits a running driver or one of its workers; damage to files is in `soak_damage.py`. Each function
returns whether it found something to hit.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import time
from pathlib import Path

from soak_damage import DAMAGES, Draws, Fault, full_disk
from soak_life import Life, add_node, send_signal


def kill_worker(life: Life, draws: Draws) -> bool:
    found = life.workers()
    return bool(found) and send_signal(draws.choice(found), signal.SIGKILL)


def kill_all_workers(life: Life, draws: Draws) -> bool:
    return any([send_signal(pid, signal.SIGKILL) for pid in life.workers()])


def kill_driver(life: Life, draws: Draws) -> bool:
    life.kill()
    return True


def terminate_driver(life: Life, draws: Draws) -> bool:
    """Preemption. A driver that is still importing has no handler yet and ends at once, with nothing to lose."""
    life.workers()
    life.expected |= {143} if life.workers() else {143, -signal.SIGTERM}
    life.process.terminate()
    return _ended_within(life, 60.0)


def terminate_then_kill(life: Life, draws: Draws) -> bool:
    """A batch system that does not wait: SIGTERM, and SIGKILL in the middle of the last checkpoints."""
    life.workers()
    life.expected |= {143, -signal.SIGTERM, -signal.SIGKILL}
    life.process.terminate()
    time.sleep(draws.uniform(0.0, 0.3))
    life.process.kill()
    life.process.wait()
    return True


def _ended_within(life: Life, seconds: float) -> bool:
    try:
        life.process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        life.soak.tally.unexpected.append(f"a driver did not end within {seconds:.0f} s of SIGTERM")
        life.kill()
    return True


def pause_worker(life: Life, draws: Draws) -> bool:
    found = life.workers()
    return bool(found) and _pause(draws.choice(found), draws)


def pause_driver(life: Life, draws: Draws) -> bool:
    return _pause(life.process.pid, draws)


def _pause(pid: int, draws: Draws) -> bool:
    if not send_signal(pid, signal.SIGSTOP):
        return False
    time.sleep(draws.uniform(0.2, 3.0))
    send_signal(pid, signal.SIGCONT)
    return True


def starve_worker(life: Life, draws: Draws) -> bool:
    """Out of memory: the worker may not grow for a while, so an allocation fails inside it."""
    found = life.workers()
    if not found:
        return False
    pid = draws.choice(found)
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        before = resource.prlimit(pid, resource.RLIMIT_AS)
        resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), before[1]))
        time.sleep(draws.uniform(0.5, 2.0))
        resource.prlimit(pid, resource.RLIMIT_AS, before)
    except (OSError, IndexError):
        pass  # it was gone before its memory was
    return True


def second_driver(life: Life, draws: Draws) -> bool:
    """Another driver in the same folder is refused, or takes over when the first has just ended."""
    if not (life.folder / "studies").exists():
        return False
    other = life.soak.start(life.folder)
    try:
        code = other.process.wait(timeout=120)
    except subprocess.TimeoutExpired:
        code = None
        other.kill()
    refused = code == 2 and "in use by another process" in other.log.read_text(errors="replace")
    if not refused and life.process.poll() is None:
        life.soak.tally.unexpected.append(f"a second driver ended with {code} while the first was at work")
    return True


def kill_node(life: Life, draws: Draws) -> bool:
    """A machine of the cluster is lost at once, with all that runs on it; another joins a little later."""
    cluster = life.soak.cluster
    life.workers()
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node, allow_graceful=False)
    time.sleep(draws.uniform(0.5, 3.0))
    add_node(cluster)
    return True


WORKER_FAULTS: dict[str, Fault] = {
    "kill_worker": kill_worker,
    "kill_all_workers": kill_all_workers,
    "pause_worker": pause_worker,
    "starve_worker": starve_worker,
}
DRIVER_FAULTS: dict[str, Fault] = {
    "kill_driver": kill_driver,
    "terminate_driver": terminate_driver,
    "terminate_then_kill": terminate_then_kill,
    "pause_driver": pause_driver,
    "second_driver": second_driver,
    "full_disk": full_disk,
}
RAY_FAULTS: dict[str, Fault] = {"kill_node": kill_node}
FAULTS = {**WORKER_FAULTS, **DRIVER_FAULTS, **DAMAGES, **RAY_FAULTS}


def kinds(executor: str) -> list[str]:
    """What can happen to a study on this executor."""
    return [kind for kind in FAULTS if executor == "ray" or kind not in RAY_FAULTS]


def do(kind: str, life: Life, draws: Draws) -> bool:
    hit = FAULTS[kind](life, draws)
    if hit:
        life.done.append(kind)
    return hit


def causes(life: Life) -> set[str]:
    """The classes of faults that a driver, or the folder it found, has seen."""
    ever = {name.split(": ")[1] for name in life.soak.tally.faults} | set(life.done)  # an earlier life may have left it
    seen = {"damage"} if ever & set(DAMAGES) else set()
    seen |= {"full_disk"} if "full_disk" in ever else set()
    return seen | ({"worker"} if set(life.done) & {*WORKER_FAULTS, *RAY_FAULTS} else set())
