"""Rows of numbers reach TensorBoard, and trackers with the calls of wandb."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import tacit
from tacit.sinks import Tracker, write


class Run:
    """As a run of wandb, or the module trackio."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], *, step: int) -> None:
        self.points.append((step, values))


class Writer:
    """As TensorBoard's SummaryWriter."""

    def __init__(self) -> None:
        self.points: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        assert isinstance(value, float)
        self.points.append((name, value, step))


ROW: dict[str, Any] = {"penalty": 0.5, "steps": 3, "error": None, "method": "gram", "loss": float("nan"), "flag": True}


def test_a_tracker_gets_the_finite_numbers_of_a_row_in_one_call() -> None:
    run = Run()
    write(Tracker(run), ROW, step=7)
    assert run.points == [(7, {"tacit/penalty": 0.5, "tacit/steps": 3.0})]


def test_tensorboard_gets_the_finite_numbers_one_by_one() -> None:
    writer = Writer()
    write(writer, ROW, step=7)
    assert writer.points == [("tacit/penalty", 0.5, 7), ("tacit/steps", 3.0, 7)]


def test_a_row_without_numbers_writes_nothing() -> None:
    run, writer = Run(), Writer()
    write(Tracker(run), {"error": None}, step=1)
    write(writer, {"error": None}, step=1)
    assert run.points == writer.points == []


def test_the_recorder_writes_to_a_tracker() -> None:
    run, model = Run(), nn.Linear(2, 1)
    recorder = tacit.Recorder(model, batch_size=4, train_size=8, every=10, window=2, writer=Tracker(run))
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(4, 2)).square().mean().backward()
        recorder.after_backward()
    row = recorder.rows[0]
    found = {name: value for _, point in run.points for name, value in point.items()}
    assert found["tacit/gradient_covariance_trace"] == row["gradient_covariance_trace"]
