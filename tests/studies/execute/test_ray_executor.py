"""Studies on Ray: the rows of local workers, whoever is killed. One small cluster of two nodes, loopback only."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from in_process import rows_on_disk, wait_for
from tacit._util.errors import TacitError
from tacit._util.provenance import provenance
from tacit.studies import runner
from tacit.studies.data.facts import Data
from tacit.studies.describe.study import Study, load_study
from tacit.studies.execute.executor import FleetsFailedError
from tacit.studies.execute.messages import Message
from tacit.studies.execute.ray_executor import (
    INSTALL,
    RayExecutor,
    _Actor,
    _check_head,
    _ending,
    import_ray,
)
from tacit.studies.execute.ray_worker import UNREAD, QueuePipe
from tacit.studies.execute.signals import Terminated
from tacit.studies.progress import Watcher
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.store.rows import read_meta
from tacit.studies.train.packing import pack

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # before Ray is imported: clusters of tests stay on this machine
pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")

pytestmark = pytest.mark.xdist_group("ray")  # one cluster, not one in each process of the test suite

STUDY = """
name = "small"
[fixed]
train_size = 256
batch_size = 16
width = 16
depth = 2
epochs = 120
evaluations = 3
[grid]
learning_rate = [0.05, 0.2, 1e5]
strength = [0.0, 0.05]
seed = [0, 1]
"""
# A checkpoint at every pause, 96 in a fleet. A worker whose messages are not read waits after UNREAD of them, so one
# that is struck at its first checkpoint cannot have sent its rows, however fast it is and however slow this process.
CHECKPOINT_SECONDS = 0.0


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "small.toml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="module")
def study(file: Path) -> Study:
    return load_study(file)


@pytest.fixture(scope="module")
def straight(study: Study, data: Data, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The rows of one local worker, left in peace."""
    folder = tmp_path_factory.mktemp("straight")
    runner.run(study, folder, workers=1)
    return rows_on_disk(folder)


@pytest.fixture(scope="module")
def cluster(own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head and a node of one core each, on this machine."""
    import_ray()
    from ray.cluster_utils import Cluster

    made = Cluster()
    add_node(made, include_dashboard=False)
    add_node(made)
    yield made
    made.shutdown()


def add_node(cluster: Any, **options: Any) -> None:
    """Ray gives a node 30 seconds to start, which a busy machine may need twice."""
    for last in (False, False, True):
        try:
            cluster.add_node(num_cpus=1, **options)
            return
        except Exception:
            if last:
                raise


@pytest.fixture
def executor(cluster: Any) -> Iterator[RayExecutor]:
    with RayExecutor(2, address=cluster.address) as made:
        yield made


def test_a_worker_waits_when_nobody_fetches_and_loses_nothing() -> None:
    pipe, sent = QueuePipe(), [bytes([n]) for n in range(3 * UNREAD)]
    sender = threading.Thread(target=lambda: [pipe.send_bytes(frame) for frame in sent], daemon=True)
    sender.start()
    wait_for(lambda: pipe.from_worker.qsize() >= UNREAD)
    sender.join(timeout=0.05)
    assert sender.is_alive()
    assert pipe.from_worker.qsize() == UNREAD
    found: list[bytes] = []
    while len(found) < len(sent):
        found += pipe.fetch(10.0)
    assert found == sent


class Saboteur(Watcher):
    """Calls `strike` with a busy worker that has sent a checkpoint, a number of times."""

    def __init__(self, executor: RayExecutor, strike: Callable[[dict[str, Any]], None], *, times: int = 1) -> None:
        self.executor, self.strike, self.times = executor, strike, times
        self.texts: list[str] = []
        self.wanted = lambda worker: True
        self.went_on_from_checkpoint = False
        self.struck: set[Any] = set()

    def warned(self, text: str) -> None:
        self.texts.append(text)

    def advanced(self, done: float) -> None:
        for worker in [each for each in self.executor._pool if isinstance(each, _Actor) and each.task is not None]:
            assert worker.task is not None
            self.went_on_from_checkpoint |= worker.task.checkpoint is not None
            if self.times and worker.checkpoint and worker not in self.struck and self.wanted(worker):
                where = self.executor._ray.get(worker.handle.where.remote())
                self.struck.add(worker)
                self.times -= 1
                self.strike(where)


def wait_for_workers(executor: RayExecutor, study: Study) -> None:
    """Both workers are up, so that both get a fleet."""
    executor._put_data(pack(study.runs))
    executor._pool += [executor._start() for _ in range(executor.workers)]
    while not all(worker.ready for worker in executor._pool):
        for worker, heard in executor._receive():
            assert isinstance(heard, Message)
            assert heard.kind == "ready"
            worker.ready = True


def kill_process(where: dict[str, Any]) -> None:
    os.kill(where["pid"], signal.SIGKILL)


# -- the same rows ------------------------------------------------------------------------------------------------
def test_rows_of_one_local_worker_of_two_and_of_ray_are_the_same_bytes(
    study: Study, straight: dict[str, bytes], executor: RayExecutor, tmp_path: Path
) -> None:
    runner.run(study, tmp_path / "two", workers=2)
    runner.run(study, tmp_path / "ray", executor=executor)
    assert len(straight) == 2
    assert rows_on_disk(tmp_path / "two") == straight
    assert rows_on_disk(tmp_path / "ray") == straight
    meta = read_meta(ResultsFolder(tmp_path / "ray").fleet_folder(next(iter(straight))))
    assert meta is not None
    assert meta["device"] == "cpu"
    assert meta["versions"]["torch"]


def test_a_killed_worker_is_reported_and_its_fleet_goes_on_from_its_checkpoint(
    study: Study, straight: dict[str, bytes], executor: RayExecutor, tmp_path: Path
) -> None:
    saboteur = Saboteur(executor, kill_process)
    runner.run(study, tmp_path, executor=executor, watcher=saboteur, checkpoint_seconds=CHECKPOINT_SECONDS)
    assert saboteur.times == 0
    assert saboteur.went_on_from_checkpoint
    assert len(saboteur.texts) == 1
    assert "its worker was" in saboteur.texts[0]
    assert "failure 1 of 3" in saboteur.texts[0]
    assert rows_on_disk(tmp_path) == straight


@pytest.mark.slow
def test_a_fleet_that_loses_the_last_worker_it_may_lose_is_failed_and_the_other_is_done(
    study: Study, straight: dict[str, bytes], cluster: Any, tmp_path: Path
) -> None:
    victim, other = pack(study.runs)
    with RayExecutor(2, address=cluster.address, attempts=1) as executor:
        saboteur = Saboteur(executor, kill_process)
        saboteur.wanted = lambda worker: worker.task.fleet.id == victim.id
        with pytest.raises(FleetsFailedError, match=victim.id):
            runner.run(study, tmp_path, executor=executor, watcher=saboteur, checkpoint_seconds=CHECKPOINT_SECONDS)
    assert rows_on_disk(tmp_path) == {other.id: straight[other.id]}
    failure = ResultsFolder(tmp_path).failure(victim.id)
    assert failure is not None
    assert failure["attempts"] == 1


# -- as it is typed -----------------------------------------------------------------------------------------------
def start(file: Path, folder: Path, cluster: Any) -> subprocess.Popen[str]:
    """`tacit run`, with checkpoints as often as these tests need them."""
    code = (
        "from tacit.studies import runner; from tacit.cli import main\n"
        f"runner.run.__kwdefaults__['checkpoint_seconds'] = {CHECKPOINT_SECONDS}\n"
        "main()"
    )
    words = ["run", str(file), "--into", str(folder), "--executor", "ray", "--address", cluster.address]
    return subprocess.Popen(
        [sys.executable, "-c", code, *words, "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_refusal_leaves_no_connection_behind(cluster: Any) -> None:
    with pytest.raises(TacitError, match="Ray finds no GPU"):
        RayExecutor(1, address=cluster.address, device="cuda")
    assert not import_ray().is_initialized()


def test_a_closed_executor_does_not_start_another_ray(study: Study, cluster: Any, tmp_path: Path) -> None:
    executor = RayExecutor(2, address=cluster.address)
    executor.close()
    with pytest.raises(TacitError, match="is closed"):
        runner.run(study, tmp_path, executor=executor)
    assert not import_ray().is_initialized()


def test_the_drivers_variables_reach_the_workers(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_DEVICE", "cuda:0")
    with pytest.raises(TacitError, match="Ray finds no GPU"):
        RayExecutor(1, address=cluster.address)
    monkeypatch.setenv("TACIT_DEVICE", "cpu")
    with RayExecutor(1, address=cluster.address) as executor:
        assert executor.device == "cpu"


def test_a_machine_with_another_torch_is_refused(
    study: Study, executor: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = provenance()
    other = {**ours, "versions": {**ours["versions"], "torch": "9.9"}}
    monkeypatch.setattr("tacit.studies.execute.ray_executor.provenance", lambda: other)  # here, not in the worker
    with pytest.raises(TacitError, match=r"has torch .* and not 9\.9; rows would differ"):
        runner.run(study, tmp_path, executor=executor)


def test_a_driver_killed_and_restarted_goes_on_and_ends_with_the_same_bytes(
    file: Path, straight: dict[str, bytes], cluster: Any, tmp_path: Path
) -> None:
    process = start(file, tmp_path, cluster)
    wait_for(lambda: list(tmp_path.glob("fleets/*/checkpoint.safetensors")) or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(rows_on_disk(tmp_path)) < len(straight)
    again = start(file, tmp_path, cluster)
    out, err = again.communicate(timeout=240)
    assert again.returncode == 0, err
    assert out == f"12 rows (4 diverged) in {tmp_path}; next: tacit report {tmp_path}\n"  # and not a word from Ray
    assert rows_on_disk(tmp_path) == straight


@pytest.mark.parametrize("sent,code", [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)])
def test_a_stopped_study_keeps_checkpoints_and_says_so(
    sent: signal.Signals, code: int, file: Path, cluster: Any, tmp_path: Path
) -> None:
    process = start(file, tmp_path, cluster)
    wait_for(lambda: list(tmp_path.glob("fleets/*/checkpoint.safetensors")) or process.poll() is not None)
    process.send_signal(sent)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert "stored: run the same command again to go on." in err
    assert "Traceback" not in err
    assert list(tmp_path.glob("fleets/*/checkpoint.safetensors"))


# -- a machine is lost: after the others, because it does not come back ---------------------------------------------
def test_a_study_that_loses_one_of_two_nodes_ends_complete_with_the_same_bytes(
    study: Study, straight: dict[str, bytes], cluster: Any, executor: RayExecutor, tmp_path: Path
) -> None:
    (node,) = cluster.worker_nodes

    def lose_node(where: dict[str, Any]) -> None:
        if where["node"] == node.node_id:
            cluster.remove_node(node, allow_graceful=False)
        else:  # the head's worker was first: wait for the other
            saboteur.times += 1

    saboteur = Saboteur(executor, lose_node)
    wait_for_workers(executor, study)
    rows = runner.run(study, tmp_path, executor=executor, watcher=saboteur, checkpoint_seconds=CHECKPOINT_SECONDS)
    assert not cluster.worker_nodes
    assert len(saboteur.texts) == 1
    assert "was lost" in saboteur.texts[0]
    assert len(rows) == len(study.runs)
    assert rows_on_disk(tmp_path) == straight


# -- without a cluster --------------------------------------------------------------------------------------------
def test_without_ray_a_sentence_says_how_to_install_it(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TacitError, match=re.escape(INSTALL)):
        runner.run(study, tmp_path / "out", executor="ray")
    assert not (tmp_path / "out").exists()
    assert INSTALL.removeprefix("pip install ") in (Path(__file__).parents[3] / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    "options,words",
    [
        ({"address": "ray://127.0.0.1:10001"}, "client"),
        ({"device": "tpu"}, "auto, cpu, cuda, mps"),
        ({"device": "mps"}, "not known to Ray"),
        ({"gpus": 0.0}, "gpus is 0.0"),
        ({"gpus": 1.5}, "gpus is 1.5"),
        ({"workers": 0}, "workers=0"),
        ({"attempts": 0}, "attempts=0"),
    ],
)
def test_wrong_options_are_sentences_before_ray_is_started(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TacitError, match=words):
        RayExecutor(**options)


def test_an_address_where_nobody_answers_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuses(**_: object) -> None:
        raise ConnectionError("Could not read the cluster.\nlong story")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuses)
    monkeypatch.setattr("tacit.studies.execute.ray_executor._check_head", lambda address: None)
    with pytest.raises(TacitError, match=r"answers at 'auto': Could not read the cluster\. Start"):
        RayExecutor(1, address="auto")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_silent_address_is_refused_before_ray_asks_it_for_minutes(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    asked: list[object] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: asked.append(options))
    monkeypatch.setattr("tacit.studies.execute.ray_executor.CONNECT_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(TacitError, match=rf"no Ray cluster answers at '{host}:{port}'"):
        RayExecutor(1, address=f"{host}:{port}")
    assert not asked


def test_an_address_that_takes_a_call_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray would ask for minutes"))
    monkeypatch.setattr("tacit.studies.execute.ray_executor.CONNECT_SECONDS", 2.0)
    with socket.create_server(("0.0.0.0", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(TacitError, match=rf"no Ray cluster answers at '{address}': no answer within 2 s"):
            RayExecutor(1, address=address)


def test_a_cluster_that_wants_another_token_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Ray 2.60 writes when the token is missing or wrong."""
    refusal = subprocess.CompletedProcess([], 1, "", "AuthenticationError: Unauthenticated: InvalidAuthToken\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: refusal)
    with pytest.raises(PermissionError, match="it wants a token; set RAY_AUTH_MODE to token and RAY_AUTH_TOKEN"):
        _check_head("head:6379")


def test_sigterm_while_ray_starts_is_the_studys_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def starts(**_: object) -> None:  # as Ray's own handler, which is in place by then
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    before, shut = signal.getsignal(signal.SIGTERM), []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", starts)
    monkeypatch.setattr(ray, "shutdown", lambda: shut.append(True))
    with pytest.raises(Terminated):
        RayExecutor(1)
    assert shut
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_ctrl_c_does_not_interrupt_the_end_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    ended = []

    def shutdown() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)  # an exception of a handler would be raised here
        ended.append(True)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", shutdown)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0})
    RayExecutor(1).close()
    assert ended
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize(
    "name,text,words,broken",
    [
        ("ActorUnavailableError", "temporarily unavailable: Socket closed", "with its machine", False),
        ("ActorDiedError", "died because its node has died", "with its machine", False),
        ("ActorDiedError", "its worker process has died. the OOM killer", "killed, or crashed", False),
        ("OutOfMemoryError", "node was low on memory", "low on memory", False),
        ("ActorDiedError", "creation task:\nModuleNotFoundError: No module named 'tacit'", "install the same", True),
    ],
)
def test_how_a_worker_was_lost_is_said_in_words(name: str, text: str, words: str, broken: bool) -> None:
    how, is_broken = _ending(type(name, (Exception,), {})(text))
    assert words in how
    assert is_broken is broken
