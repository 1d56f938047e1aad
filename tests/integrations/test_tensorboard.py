"""Rows of a penalty and of a recorder, read back from TensorBoard's files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import tacit

pytest.importorskip("tensorboard", reason="tensorboard is not installed; make integrations runs this")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {name: [(event.step, event.value) for event in found.Scalars(name)] for name in found.Tags()["scalars"]}


def test_rows_of_the_penalty_are_charts(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    model, writer = nn.Linear(3, 1), SummaryWriter(str(tmp_path))
    penalty = tacit.GradientPenalty(model, strength=0.5, every=2)  # a step without a penalty has fewer numbers
    values = []
    for step in range(3):
        penalty.backward(lambda: model(torch.ones(2, 3)).square().mean())
        tacit.sinks.write(writer, penalty.last.to_row(), step)
        values.append(float(penalty.last.penalty))
    writer.close()
    found = scalars(tmp_path)
    assert [step for step, _ in found["tacit/penalty"]] == [0, 1, 2]
    assert [value for _, value in found["tacit/penalty"]] == pytest.approx(values)
    assert values[1] == 0 < values[0]
    assert [step for step, _ in found["tacit/gradient_squared_norm"]] == [0, 2]
    assert "tacit/method" not in found


def test_rows_of_the_recorder_are_charts(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    model, writer = nn.Linear(2, 1), SummaryWriter(str(tmp_path))
    recorder = tacit.Recorder(model, batch_size=4, train_size=8, every=10, window=2, writer=writer)
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(4, 2)).square().mean().backward()
        recorder.after_backward()
    writer.close()
    ((step, value),) = scalars(tmp_path)["tacit/gradient_covariance_trace"]
    assert step == 1
    assert value == pytest.approx(recorder.rows[0]["gradient_covariance_trace"])
