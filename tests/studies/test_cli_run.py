"""`tacit run` and `tacit status`, as a user types them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from in_process import wait_for
from tacit._util.errors import TacitError
from tacit.studies.describe.library import find_study_file, library_folder
from tacit.studies.describe.study import load_study, parse_study
from tacit.studies.execute.signals import Terminated, terminable, uninterrupted
from tacit.studies.plan import Plan, make_plan
from tacit.studies.progress import ProgressBar
from tacit.studies.runner import run
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.store.status import stopped_message
from tacit.studies.train.packing import pack
from typed_commands import Typed

STUDY = """
name = "small"
question = "Does it run?"
[fixed]
train_size = 64
batch_size = 16
width = 8
depth = 1
epochs = 20
evaluations = 2
[grid]
learning_rate = [0.1, 0.2]
seeds = "0:2"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(STUDY)
    return path


def test_a_study_runs_and_its_status_says_so(file: Path, data: object, typed: Typed) -> None:
    folder = file.parent / "out"
    ended = typed("run", file, "learning_rate=0.1,0.2,1e6", "--into", folder, "--workers", 1)
    assert ended.code == 0
    assert ended.out == f"6 rows (2 diverged) in {folder}; next: tacit report {folder}\n"
    assert ended.err.startswith("small: 6 runs in 1 fleet, 480 updates, ")
    status = typed("status", folder)
    assert status.code == 0
    assert "100% done" in status.out
    assert "6 of 6 have a row" in status.out
    assert "2 diverged" in status.out


def test_a_dry_run_says_how_much_and_writes_nothing(file: Path, data: object, typed: Typed) -> None:
    folder = file.parent / "out"
    ended = typed("run", file, "--into", folder, "--dry-run")
    assert ended.code == 0
    assert ended.out.startswith("small: 4 runs in 1 fleet, ")
    assert not folder.exists()


def test_the_status_of_a_folder_without_a_study_is_a_sentence(tmp_path: Path, typed: Typed) -> None:
    assert "holds no study" in typed("status", tmp_path).refusal()


def test_a_folder_that_cannot_be_written_is_a_sentence(file: Path, data: object, typed: Typed) -> None:
    assert typed("run", file, "--into", file / "inside").refusal()


def started(file: Path, folder: Path) -> subprocess.Popen[str]:
    tacit = [sys.executable, "-c", "from tacit.cli import main; main()"]
    words = ["run", str(file), "epochs=200000", "--into", str(folder), "--workers", "1"]
    return subprocess.Popen([*tacit, *words], stderr=subprocess.PIPE, text=True, env=os.environ)


@pytest.mark.parametrize("sent,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_study_says_what_is_stored_and_how_to_go_on(
    sent: signal.Signals, code: int, file: Path, data: object
) -> None:
    folder = file.parent / "out"
    process = started(file, folder)
    (fleet,) = pack(load_study(file, overrides=["epochs=200000"]).runs)
    wait_for(ResultsFolder(folder).fleet_folder(fleet.id).exists)  # made when the worker tells of progress
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err.endswith("stopped; 1 checkpoint stored: run the same command again to go on.\n")
    assert "Traceback" not in err
    assert ResultsFolder(folder).checkpoint_path(fleet.id).exists()


def test_a_study_stopped_before_its_first_checkpoint_does_not_speak_of_one(tmp_path: Path, file: Path) -> None:
    folder = ResultsFolder(tmp_path / "out")
    with folder.locked():
        folder.open_for(load_study(file))
    assert stopped_message(tmp_path / "absent") == stopped_message(folder.path)
    assert (
        stopped_message(folder.path)
        == "stopped before the first checkpoint: nothing is stored yet; run the same command again to go on."
    )


def test_a_folder_that_cannot_be_read_does_not_change_how_a_stop_ends(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ResultsFolder(tmp_path / "study")
    with folder.locked():
        folder.open_for(load_study(file))

    def unreadable(self: ResultsFolder) -> list[str]:
        raise TacitError("fleets cannot be read; try again.")

    monkeypatch.setattr(ResultsFolder, "contents", unreadable)
    said = stopped_message(folder.path)
    assert said == "stopped; fleets cannot be read; try again. Then run the same command again to go on."


def test_a_handler_of_the_callers_own_is_left_alone() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminable():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with pytest.raises(Terminated), terminable():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_stays_sigterm_when_a_library_makes_a_ctrl_c_of_it() -> None:
    def waits_like_ray() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt) as terminated, terminable():
        waits_like_ray()
    assert isinstance(terminated.value, Terminated)
    with pytest.raises(KeyboardInterrupt) as stopped, terminable():
        signal.raise_signal(signal.SIGINT)
    assert not isinstance(stopped.value, Terminated)


def test_what_is_under_way_is_finished_before_a_signal_is_handled() -> None:
    done: list[int] = []

    def steps(*sent: signal.Signals) -> None:
        for step, number in enumerate(sent):
            os.kill(os.getpid(), number)
            done.append(step)

    with pytest.raises(Terminated), terminable(), uninterrupted():
        steps(signal.SIGTERM)
    assert done == [0]
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        steps(signal.SIGINT, signal.SIGINT)  # the second one is heard at once
    assert done == [0, 0]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # as before


# -- without torch, and sizes that make no sense --------------------------------------------------------------------
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from tacit.cli import main; main()"


@pytest.mark.parametrize("words", [("reproduce", "--list"), ("run", "small.toml", "--dry-run")])
def test_this_needs_no_torch_on_a_machine_where_nothing_was_measured(words: tuple[str, ...], file: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words], cwd=file.parent, capture_output=True, text=True, check=False,
        env={**os.environ, "TACIT_CACHE": str(file.parent / "empty")},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "runs" in ended.stdout


@pytest.mark.parametrize("words", [("--device", "tpu"), ("--executor", "nosuch")])
def test_a_dry_run_refuses_what_the_run_would_refuse(words: tuple[str, ...], file: Path, typed: Typed) -> None:
    assert f"{words[1]!r} is unknown" in typed("run", file, *words, "--dry-run").refusal()


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_an_absurd_size_is_refused_before_anything_is_written(
    dry: tuple[str, ...], file: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    monkeypatch.setattr("tacit.studies.execute.machine.machine_memory", lambda: 16e9)
    folder = file.parent / "out"
    more = ["depth=64", "learning_rate=0.1", "seeds=0:20"]
    assert "GB" in typed("run", file, "width=65536", *more, "--into", folder, *dry).refusal()
    assert not folder.exists()


def test_a_dry_run_of_years_says_what_it_would_cost(file: Path, typed: Typed) -> None:
    more = ["epochs=1000000000", "width=800", "depth=2", "seeds=0:20"]
    ended = typed("run", file, *more, "--dry-run")
    assert ended.code == 0
    plan, _ = ended.out.splitlines()
    assert plan.startswith("small: 40 runs in ")
    # 40 runs of 10⁹ epochs of 4 minibatches of 16; a forward pass of 40-800-800-10 is 680,000 multiply-adds.
    operations = f"{2 * 3 * 680_000 * 16 * 1.6e11:.1e}".replace("+", "")
    assert plan.endswith(f", 160,000,000,000 updates, {operations} floating-point operations")


def test_without_a_terminal_progress_is_a_line_now_and_then(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = load_study(file)
    display = ProgressBar(line_seconds=0.0)
    display.planned(Plan(study, tuple(pack(study.runs))))
    display.advanced(0.5)
    display.warned("a worker was killed")
    display.ended()
    plan, line, warning = capsys.readouterr().err.splitlines()
    assert plan.startswith("small: 4 runs in 1 fleet, 320 updates, ")
    assert line.startswith("small: 50%, ")
    assert line.endswith(" left")
    assert warning == "a worker was killed"


def test_a_study_runs_from_python_with_one_call(file: Path, data: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    rows = run(file, workers=1, overrides=["seeds=0"])
    assert len(rows) == 2
    assert (file.parent / "runs" / "small" / "studies" / "small.json").exists()


def test_a_study_of_the_package_is_run_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From any folder: the file is inside the package."""
    monkeypatch.chdir(tmp_path)
    named = str(make_plan(find_study_file(Path("mnist1d/quick/rates"))))
    assert named == str(make_plan(library_folder() / "mnist1d" / "quick" / "rates.toml"))


def test_a_file_of_ones_own_comes_before_a_study_of_the_package(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist1d" / "quick").mkdir(parents=True)
    own = tmp_path / "mnist1d" / "quick" / "rates"
    own.write_text(file.read_text())
    assert load_study(find_study_file(Path("mnist1d/quick/rates"))).name == "small"


def test_a_study_is_listed_copied_and_not_copied_over(tmp_path: Path, typed: Typed) -> None:
    listed = typed("studies", "list")
    assert listed.code == 0
    assert "mnist1d/quick/rates" in [line.split()[0] for line in listed.out.splitlines()]  # then what varies
    copy = ("studies", "copy", "mnist1d/quick/rates", "--into", tmp_path)
    assert typed(*copy).code == 0
    assert load_study(tmp_path / "rates.toml") == load_study(library_folder() / "mnist1d" / "quick" / "rates.toml")
    assert "is there already" in typed(*copy).refusal()
    assert "tacit studies list" in typed("studies", "copy", "none/such", "--into", tmp_path).refusal()


def test_the_status_of_a_folder_with_several_results_lists_all_their_studies(
    file: Path, data: object, tmp_path: Path, typed: Typed
) -> None:
    for name in ("one", "two"):
        run(load_study(file, overrides=["seeds=0"]), tmp_path / "all" / name, workers=1)
    folder = ResultsFolder(tmp_path / "all" / "two")
    with folder.locked():
        folder.open_for(parse_study({"name": "later", "fixed": {"learning_rate": 0.1, "epochs": 1}}))
    ended = typed("status", tmp_path / "all")
    assert ended.code == 0
    out = ended.out
    assert f"{tmp_path}/all/one: 1 study, no process is at work" in out
    assert f"next: tacit report {tmp_path}/all/one" in out
    assert f"{tmp_path}/all/two: 2 studies" in out
    assert "later: 0% done" in out
    assert out.count("small: 100% done") == 2
    assert f"next: tacit report {tmp_path}/all/two" not in out
