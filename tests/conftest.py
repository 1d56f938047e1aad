"""One thread per process (xdist runs two), a cache of the tests' own, and the data: made here, or found if anywhere."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tacit import InputError, cli
from tacit.studies.data.facts import Data
from tacit.studies.data.load import load
from tacit.studies.train import devices
from typed_commands import Ended, Typed

torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell started this in the background: tests of Ctrl-C need it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def process_as_it_starts() -> None:
    """Handlers of signals and the level of the logger as in a new process: a Ray cluster that a test starts in this
    process leaves its own handler of SIGTERM behind, and a test that silences the logger silences those after it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger("tacit").setLevel(logging.NOTSET)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """`typed("status", folder)` is `tacit status folder`, through `main`: that turns bad input into a sentence and exit
    code 2, and typer's CliRunner stops before it."""

    def typed(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["tacit", *map(str, words)])
        capsys.readouterr()  # what the test itself printed
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Ended(int(ended.value.code or 0), *capsys.readouterr())

    return typed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where tests that take `device` compute: cpu, cuda, cuda:1")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of `--device`; tests that take it are skipped, with the reason, where it is not."""
    try:
        return devices.choose(request.config.getoption("--device"), kinds=("cuda", "cpu"))  # float64: not on MPS
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with CIFAR-10 and Fashion-MNIST: TACIT_DATA, or ../shared/datasets beside the checkout."""
    for found in (os.environ.get("TACIT_DATA"), Path(__file__).parents[2] / "shared" / "datasets"):
        if found and Path(found).is_dir():
            return Path(found)
    pytest.skip("no CIFAR-10 or Fashion-MNIST here: set TACIT_DATA to the folder that holds them")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("TACIT_CACHE")
    os.environ["TACIT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["TACIT_CACHE"]
    else:
        os.environ["TACIT_CACHE"] = before


@pytest.fixture(scope="session")
def data(own_cache: None) -> Data:
    return load("mnist1d")
