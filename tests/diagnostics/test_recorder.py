"""`Recorder`: training is bitwise the same with it, and its rows mean what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from cases import batch_norm_net, labels, numbers, spread
from tacit.diagnostics.recorder import cheap_row

INPUTS, TARGETS = numbers(64, 3, seed=1, dtype=torch.float32), labels(64, 3, 2)


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3))


def plain_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3))


def train(model: nn.Module, recorder: Any = None, steps: int = 20, *, keep: bool = False) -> dict[str, Tensor]:
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        batch = torch.randperm(64)[:8]
        optimizer.zero_grad(set_to_none=not keep)
        F.cross_entropy(model(INPUTS[batch]), TARGETS[batch]).backward()
        if recorder is not None:
            recorder.after_backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("make", [plain_net, batch_norm_net, dropout_net])
def test_weights_buffers_and_random_numbers_are_bitwise_the_same_with_and_without(make: Any) -> None:
    without = train(spread(make()))
    after = torch.get_rng_state()
    model = spread(make())
    whole = {"full": 7, "loss_fn": F.cross_entropy, "dataset": (INPUTS, TARGETS), "sample": 16}
    full: dict[str, Any] = {} if make is dropout_net else whole
    recorder = tacit.Recorder(model, batch_size=8, train_size=64, every=5, window=3, **full)
    with_it = train(model, recorder)
    assert all(torch.equal(without[name], with_it[name]) for name in without)
    assert torch.equal(after, torch.get_rng_state())
    assert len(recorder.rows) == 4 + (0 if make is dropout_net else 3)


def test_gradients_that_are_zeroed_in_place_give_the_same_rows() -> None:
    rows = []
    for keep in (False, True):
        model = spread(plain_net())
        recorder = tacit.Recorder(model, batch_size=8, train_size=64, every=5, window=3)
        train(model, recorder, keep=keep)
        rows.append(recorder.rows)
    assert rows[0] == rows[1]


def test_a_full_measurement_of_a_random_model_is_refused_and_draws_nothing() -> None:
    model = dropout_net()
    recorder = tacit.Recorder(
        model, batch_size=8, train_size=64, full=1, loss_fn=F.cross_entropy, dataset=(INPUTS, TARGETS)
    )
    F.cross_entropy(model(INPUTS), TARGETS).backward()
    before = torch.get_rng_state()
    with pytest.raises(tacit.InputError, match="deterministic"):
        recorder.after_backward()
    assert torch.equal(before, torch.get_rng_state())


def test_the_cheap_row_solves_the_two_equations_it_is_made_of() -> None:
    size, batch, window, squared_norm, gamma = 1000, 10, 4, 2.0, 300.0

    def expected(b: int) -> float:
        return squared_norm + (size - b) / (size - 1) * gamma / b

    row = cheap_row([expected(batch)] * window, expected(batch * window), batch_size=batch, train_size=size)
    assert row["gradient_covariance_trace"] == pytest.approx(gamma, rel=1e-12)
    assert row["full_gradient_squared_norm"] == pytest.approx(squared_norm, rel=1e-10)
    assert row["implicit_regularizer"] == pytest.approx(expected(batch) / 4, rel=1e-12)
    assert row["noise_scale"] == pytest.approx(gamma / squared_norm, rel=1e-10)


def test_over_many_windows_at_fixed_weights_the_cheap_rows_average_to_the_full_measurement() -> None:
    model = spread(plain_net())
    recorder = tacit.Recorder(model, batch_size=4, train_size=64, every=8, window=8)
    draws = torch.Generator().manual_seed(0)
    for _ in range(100):
        for batch in torch.randperm(64, generator=draws)[:32].split(4):
            model.zero_grad()
            F.cross_entropy(model(INPUTS[batch]), TARGETS[batch]).backward()
            recorder.after_backward()
    exact = tacit.measure(model, F.cross_entropy, (INPUTS, TARGETS), batch_size=4)
    found = torch.tensor([row["gradient_covariance_trace"] for row in recorder.rows])
    assert len(found) == 100
    error = float(found.std() / 10)
    assert abs(float(found.mean()) - exact.gradient_covariance_trace.value) < 4 * error


def test_rows_are_json_lines_and_scalars_go_to_the_writer(tmp_path: Path) -> None:
    class Writer:
        def __init__(self) -> None:
            self.seen: list[tuple[str, float, int]] = []

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.seen.append((name, value, step))

    writer, model = Writer(), spread(plain_net())
    path = tmp_path / "rows.jsonl"
    recorder = tacit.Recorder(
        model, batch_size=8, train_size=64, every=lambda step: step in (2, 9), window=2, path=path, writer=writer
    )
    train(model, recorder)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == recorder.rows
    assert [row["step"] for row in rows] == [3, 10]
    assert ("tacit/gradient_covariance_trace", rows[0]["gradient_covariance_trace"], 3) in writer.seen


def test_a_layer_that_some_steps_leave_out_counts_as_zero_there() -> None:
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    recorder = tacit.Recorder(model, batch_size=8, train_size=64, every=2, window=2)
    squares, total = [], torch.zeros(24)
    for step in range(2):
        model.zero_grad()
        F.cross_entropy(model[step](INPUTS[:8]), TARGETS[:8]).backward()
        recorder.after_backward()
        flat = [torch.zeros(p.shape) if p.grad is None else p.grad for p in model.parameters()]
        gradient = torch.cat([part.reshape(-1) for part in flat])
        squares.append(float(gradient.square().sum()))
        total += gradient
    expected = cheap_row(squares, float(total.square().sum()) / 4, batch_size=8, train_size=64)
    assert recorder.rows[0]["gradient_covariance_trace"] == pytest.approx(
        expected["gradient_covariance_trace"], rel=1e-5
    )


def test_sparse_gradients_are_read() -> None:
    rows = []
    for sparse in (True, False):
        model = spread(nn.EmbeddingBag(5, 3, sparse=sparse, mode="sum"))
        recorder = tacit.Recorder(model, batch_size=8, train_size=64, every=2, window=2)
        for start in (0, 8):
            model.zero_grad()
            F.cross_entropy(model(TARGETS[start : start + 8].reshape(8, 1)), TARGETS[:8]).backward()
            recorder.after_backward()
        rows.append(recorder.rows[0]["gradient_covariance_trace"])
    assert rows[0] == pytest.approx(rows[1], rel=1e-6)


def test_the_rows_of_a_run_that_diverged_are_still_json(tmp_path: Path) -> None:
    model, path = spread(plain_net()), tmp_path / "rows.jsonl"
    recorder = tacit.Recorder(model, batch_size=8, train_size=64, every=2, window=2, path=path)
    for _ in range(2):
        (float("nan") * F.cross_entropy(model(INPUTS[:8]), TARGETS[:8])).backward()
        recorder.after_backward()
    assert "NaN" not in path.read_text()
    assert json.loads(path.read_text())["gradient_covariance_trace"] is None


def penalised_training(recorder: Any, penalty: Any, model: nn.Module, *, as_tensor: bool = False) -> None:
    """Batches at fixed parameters, so that rows do not depend on how many steps a window takes."""
    for start in range(0, 64, 8):
        model.zero_grad()
        x, y = INPUTS[start : start + 8], TARGETS[start : start + 8]
        if as_tensor:
            penalty.loss(lambda x=x, y=y: F.cross_entropy(model(x), y)).backward()
        else:
            penalty.backward(lambda x=x, y=y: F.cross_entropy(model(x), y))
        recorder.after_backward()


@pytest.mark.parametrize("as_tensor", [False, True])
def test_penalised_gradients_are_left_out_of_the_window(as_tensor: bool) -> None:
    model = spread(plain_net())
    recorder = tacit.Recorder(model, batch_size=8, train_size=64, every=64, window=4)
    penalised_training(recorder, tacit.GradientPenalty(model, 1.0, every=2), model, as_tensor=as_tensor)
    expected = tacit.Recorder(model, batch_size=8, train_size=64, every=64, window=4)
    for start in range(8, 64, 16):  # the plain steps are every second one, from the second
        model.zero_grad()
        F.cross_entropy(model(INPUTS[start : start + 8]), TARGETS[start : start + 8]).backward()
        expected.after_backward()
    assert len(recorder.rows) == len(expected.rows) == 1
    assert recorder.rows[0]["gradient_covariance_trace"] == expected.rows[0]["gradient_covariance_trace"]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_window_of_penalised_gradients_is_refused(as_tensor: bool) -> None:
    model = spread(plain_net())
    recorder = tacit.Recorder(model, batch_size=8, train_size=64, every=64, window=4)
    with pytest.raises(tacit.InputError, match="are those of a loss with a penalty of strength 1, and those of the 3"):
        penalised_training(recorder, tacit.GradientPenalty(model, 1.0), model, as_tensor=as_tensor)


def test_accumulated_calls_are_penalised_when_one_of_them_is() -> None:
    model = spread(plain_net())
    penalty = tacit.GradientPenalty(model, 1.0, every=2)
    recorders = [tacit.Recorder(model, batch_size=16, train_size=64, every=64, window=4) for _ in range(2)]
    for step in range(4):
        model.zero_grad()
        for start in (0, 8):  # the first carries the penalty, the last is plain
            x, y = INPUTS[start : start + 8], TARGETS[start : start + 8]
            penalty.backward(lambda x=x, y=y: F.cross_entropy(model(x), y) / 2)
        for recorder in recorders:  # each asks for itself
            if step < 3:
                recorder.after_backward()
            else:
                with pytest.raises(tacit.InputError, match="a penalty of strength 2, and those of the 3 steps before"):
                    recorder.after_backward()


def test_full_measurements_go_on_under_a_penalty() -> None:
    model = spread(plain_net())
    options: dict[str, Any] = {"full": 4, "loss_fn": F.cross_entropy, "dataset": (INPUTS, TARGETS), "sample": None}
    recorder = tacit.Recorder(model, batch_size=8, train_size=64, every=64, window=4, **options)
    penalised_training(recorder, tacit.GradientPenalty(model, 1.0), model)
    assert [row["kind"] for row in recorder.rows] == ["full", "full"]
    seen = tacit.measure(model, F.cross_entropy, (INPUTS, TARGETS), batch_size=8, sample=None)
    assert recorder.rows[0]["gradient_covariance_trace"] == pytest.approx(seen.gradient_covariance_trace.value)


def test_a_penalty_of_strength_zero_leaves_plain_gradients() -> None:
    model = spread(plain_net())
    recorder = tacit.Recorder(model, batch_size=8, train_size=64, every=64, window=4)
    penalised_training(recorder, tacit.GradientPenalty(model, 0.0), model)
    assert len(recorder.rows) == 1


def test_the_gradients_that_factored_sgd_never_forms_are_not_taken_for_zeros() -> None:
    model = spread(plain_net())
    optimizer = tacit.FactoredSGD(model, lr=0.1)
    recorder = tacit.Recorder(model, batch_size=8, train_size=64, every=64, window=2)
    for _ in range(2):
        optimizer.step(lambda: F.cross_entropy(model(INPUTS[:8]), TARGETS[:8]))
        if recorder.steps == 0:
            recorder.after_backward()
    with pytest.raises(tacit.InputError, match="never formed by FactoredSGD"):
        recorder.after_backward()


def test_a_resumed_recorder_goes_on_in_the_middle_of_a_window() -> None:
    whole_model, model = spread(plain_net()), spread(plain_net())
    whole = tacit.Recorder(whole_model, batch_size=8, train_size=64, every=5, window=3)
    train(whole_model, whole, 12)
    first = tacit.Recorder(model, batch_size=8, train_size=64, every=5, window=3)
    resumed = tacit.Recorder(model, batch_size=8, train_size=64, every=5, window=3)

    class Both:
        """The first recorder up to the seventh step, in a window; then one that is given its state."""

        calls = 0

        def after_backward(self) -> None:
            if self.calls == 7:
                resumed.load_state_dict(first.state_dict())
            (first if self.calls < 7 else resumed).after_backward()
            self.calls += 1

    train(model, Both(), 12)
    assert resumed.rows == whole.rows
    assert resumed.steps == 12
