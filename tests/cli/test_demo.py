"""`tacit demo` trains what it prints: its plain arm is a loop without this package, and every arm learns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

from tacit import InputError
from tacit.cli import app, demo

FEW = 20


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "WIDE", 128)
    monkeypatch.setattr(demo, "PRICE_ROUNDS", 1)


def test_the_demo_prints_what_it_measured_within_80_columns_and_writes_a_plot(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "--updates", str(FEW), "--into", str(tmp_path / "a.svg")])
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80  # the last one is a path
    for name in (arm.name for arm in demo.arms()):
        accuracy, seconds, *prices = re.findall(r"\d+\.\d+", next(x for x in done.stdout.splitlines() if name in x))
        assert 5 < float(accuracy) < 60
        assert float(seconds) < 60
        assert len(prices) == 2
    picture = (tmp_path / "a.svg").read_text()
    assert picture.startswith("<svg")
    assert all(arm.name in picture for arm in demo.arms())


def test_the_plain_arm_is_a_loop_of_torch_alone_and_the_others_begin_at_the_same_weights() -> None:
    task = demo.noisy_task()
    inputs, targets, test_inputs, test_targets = task
    model, order = demo.network(demo.WIDTH, 3), torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=2**-6, momentum=0.9)
    done = 0
    while done < FEW:  # an epoch has 15 batches
        for drawn in torch.randperm(len(inputs), generator=order).split(256)[: FEW - done]:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[drawn]), targets[drawn]).backward()
            optimizer.step()
            done += 1
    reached = float((model(test_inputs).argmax(1) == test_targets).double().mean())
    results = [demo.train(arm, task, seed=3, updates=FEW) for arm in demo.arms()]
    assert [result.updates[-1] for result in results] == [FEW] * 3
    assert results[0].accuracies[-1] == reached
    assert len({tuple(result.accuracies) for result in results}) == 3


def test_training_labels_have_the_stated_noise_and_test_labels_are_clean() -> None:
    from tacit.studies.data.load import load

    _, targets, _, test_targets = demo.noisy_task()
    data = load("mnist1d_16k")
    wrong = float((targets.numpy() != data.train_targets[: len(targets)]).mean())
    assert wrong == pytest.approx(0.9 * demo.LABEL_NOISE, abs=0.02)  # a tenth of the new labels is right by chance
    assert (test_targets.numpy() == data.test_targets).all()


def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_trained() -> None:
    failed = CliRunner().invoke(app, ["demo", "--into", "plot.png"])
    assert isinstance(failed.exception, InputError)
    assert "expected .svg" in str(failed.exception)
