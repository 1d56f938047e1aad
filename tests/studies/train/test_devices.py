"""The device: named by TACIT_DEVICE or chosen by one rule, and refused in a sentence when it is not there."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from tacit import InputError
from tacit.studies.execute.machine import cores, trains_on
from tacit.studies.runner import make_executor
from tacit.studies.train import devices


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with nothing but its processor."""
    monkeypatch.delenv("TACIT_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    return monkeypatch


def test_without_anything_else_it_is_the_processor(machine: pytest.MonkeyPatch) -> None:
    assert devices.choose() == torch.device("cpu")
    assert devices.describe(devices.choose()) == "cpu"


def test_mps_is_preferred_to_the_processor(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.choose() == torch.device("mps")


def test_cuda_is_preferred_to_all_and_computes_in_float32(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.cuda, "is_available", lambda: True)
    machine.setattr(torch.backends.mps, "is_available", lambda: True)
    machine.delenv("TACIT_TF32", raising=False)
    for name in ("allow_tf32", "deterministic", "benchmark"):
        machine.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))  # put back afterwards
    before = torch.get_float32_matmul_precision()
    try:
        assert devices.choose() == torch.device("cuda")
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_variable_has_the_last_word(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.backends.mps, "is_available", lambda: True)
    machine.setenv("TACIT_DEVICE", "cpu")
    assert devices.choose() == torch.device("cpu")
    machine.setenv("TACIT_DEVICE", "auto")
    assert devices.choose() == torch.device("mps")


def test_an_argument_wins_over_the_variable_and_may_allow_fewer_kinds(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.backends.mps, "is_available", lambda: True)
    machine.setenv("TACIT_DEVICE", "mps")
    assert devices.choose("cpu") == torch.device("cpu")
    assert devices.choose("auto", kinds=("cuda", "cpu")) == torch.device("cpu")
    with pytest.raises(InputError, match="'mps'; expected auto, cuda, cpu or"):
        devices.choose("mps", kinds=("cuda", "cpu"))


@pytest.mark.parametrize("wanted,words", [("gpu", "expected auto"), ("meta", "expected"), ("cuda:0", "use auto or")])
def test_what_is_not_there_is_refused_in_a_sentence(wanted: str, words: str, machine: pytest.MonkeyPatch) -> None:
    machine.setenv("TACIT_DEVICE", wanted)
    with pytest.raises(InputError, match=words):
        devices.choose()


# -- what the study's process assumes of its workers -----------------------------------------------------------------
def test_workers_are_as_many_as_cores_and_one_on_a_gpu(machine: pytest.MonkeyPatch) -> None:
    with closing(make_executor("local")) as executor:
        assert executor.workers == cores()
    machine.setattr("tacit.studies.execute.machine.version", lambda name: "2.13.0+cu130")
    machine.setattr(torch.cuda, "is_available", lambda: True)
    with closing(make_executor("local")) as executor:  # auto
        assert executor.workers == 1
    with closing(make_executor("local", 4, device="cuda")) as executor:
        assert executor.workers == 4
    with closing(make_executor("local", device="cpu")) as executor:
        assert executor.workers == cores()


def test_the_variable_names_what_workers_train_on(machine: pytest.MonkeyPatch) -> None:
    assert trains_on(None) == trains_on("auto") == "cpu"
    machine.setenv("TACIT_DEVICE", "cuda:1")
    assert trains_on(None) == "cuda"
    assert trains_on("cpu") == "cpu"
