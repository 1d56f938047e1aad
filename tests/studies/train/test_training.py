"""A fleet is its runs: same weights as single loops, same rows when interrupted, neighbours untouched."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tacit
from in_process import train_fleet
from tacit._util.random_generators import generator
from tacit.batching import ORDERS, epoch_batches
from tacit.schedules import SCHEDULES, cosine, paper_decay
from tacit.studies.data.facts import Data
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train import training as training_module
from tacit.studies.train.checkpoint import DamagedCheckpointError
from tacit.studies.train.models import mlp
from tacit.studies.train.packing import Fleet
from tacit.studies.train.training import HISTORY, Training

SMALL: dict[str, Any] = {"train_size": 64, "batch_size": 16, "width": 12, "depth": 2, "evaluations": 5}


def spec(**values: Any) -> RunSpec:
    return RunSpec(**{**SMALL, "learning_rate": 0.05, "updates": 50, **values})


def single_run(run: RunSpec, data: Data) -> torch.nn.Sequential:
    """The plain loop: one model, autograd, double backward, float64."""
    model = mlp([40, *[run.width] * run.depth, 10], generator(run.seed, "init")).double()
    parameters = list(model.parameters())
    inputs, targets = torch.tensor(data.train_inputs).double(), torch.tensor(data.train_targets)
    batches_per_epoch = run.train_size // run.batch_size
    for position in range(run.minibatches):
        epoch, within = divmod(position, batches_per_epoch)
        batch = epoch_batches(run.train_size, run.batch_size, order=run.order, seed=run.seed, epoch=epoch)[within]
        rate = run.learning_rate / run.inner_steps
        if run.schedule != "constant":
            rate *= {"paper_decay": paper_decay, "cosine": cosine}[run.schedule](position, run.minibatches)
        for _ in range(run.inner_steps):
            loss = F.cross_entropy(model(inputs[batch]), targets[batch])
            loss = loss + run.weight_decay / 2 * sum(parameter.square().sum() for parameter in parameters)
            gradients = torch.autograd.grad(loss, parameters, create_graph=True)
            norm = sum(gradient.square().sum() for gradient in gradients)
            total = torch.autograd.grad(loss + run.strength / 4 * norm, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, total, strict=True):
                    parameter -= rate * gradient
    return model


FLEETS = {
    "plain": [spec(learning_rate=rate, seed=seed) for rate in (0.02, 0.3) for seed in (0, 1)],
    "penalized": [spec(strength=strength, seed=seed) for strength in (0.05, 0.5) for seed in (0, 1)],
    "weight decay": [spec(strength=0.3, weight_decay=decay) for decay in (0.0, 0.01, 0.1)],
    "n-step with decay": [spec(inner_steps=2, schedule="paper_decay", strength=0.1, seed=seed) for seed in (3, 4)],
    "every order": [spec(order=order, seed=7) for order in ORDERS],
    "mixed schedules": [spec(schedule=name) for name in SCHEDULES],
}


@pytest.mark.parametrize("name", FLEETS)
def test_fifty_updates_of_a_fleet_are_fifty_updates_of_each_run(name: str, data: Data) -> None:
    training = Training(Fleet(tuple(FLEETS[name])), data, dtype=torch.float64)
    training.advance()
    for number, run in enumerate(FLEETS[name]):
        assert run.total_updates == 50
        linear = [module for module in single_run(run, data) if isinstance(module, torch.nn.Linear)]
        # Rounding of 1e-16 grows over fifty updates of a kinked loss; a wrong coefficient shows at 1e-3.
        layers = training.program.layers  # type: ignore[attr-defined]
        for layer, weight, bias in zip(linear, layers.weights, layers.biases, strict=True):
            torch.testing.assert_close(weight[number], layer.weight.detach().T, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(bias[number, 0], layer.bias.detach(), rtol=1e-9, atol=1e-11)


def test_c_and_c_reg_of_a_row_are_those_of_a_problem(data: Data) -> None:
    run = spec(strength=0.3, weight_decay=0.01, epochs=10, updates=None, seed=5)
    row = train_fleet(Fleet((run, spec(strength=0.3, epochs=10, updates=None))), data, dtype=torch.float64)[0]
    last_epoch = epoch_batches(64, 16, order="shuffled", seed=5, epoch=9)
    dataset = (torch.tensor(data.train_inputs[:64]).double(), torch.tensor(data.train_targets[:64]))
    problem = tacit.Problem(
        single_run(run, data), F.cross_entropy, dataset, batches=last_epoch, weight_decay=0.01, dtype=torch.float64
    )
    norms = [
        sum(part.square().sum() for part in problem.minibatch_gradient(k).values()) for k in range(len(last_epoch))
    ]
    assert row["full_loss"] == pytest.approx(problem.full_loss().item(), rel=1e-9)
    assert row["implicit_regularizer"] == pytest.approx((sum(norms) / (4 * len(norms))).item(), rel=1e-8)


def test_accuracies_are_those_of_the_single_model(data: Data) -> None:
    run = spec(learning_rate=0.3, epochs=30, updates=None)
    row = train_fleet(Fleet((run,)), data, dtype=torch.float64)[0]
    model = single_run(run, data)
    seen = model(torch.tensor(data.test_inputs).double()).argmax(1) == torch.tensor(data.test_targets)
    assert row["final_test_accuracy"] == pytest.approx(seen.double().mean().item(), abs=1e-12)
    assert row["best_test_accuracy"] == max(row["history"]["test_accuracy"])
    assert row["final_train_accuracy"] == row["history"]["train_accuracy"][-1]


def test_evaluations_are_evenly_spaced_and_end_at_the_end(data: Data) -> None:
    row = train_fleet(Fleet((spec(inner_steps=2, updates=80, evaluations=5),)), data)[0]
    assert row["history"]["updates"] == [16, 32, 48, 64, 80]
    assert row["history"]["epochs"] == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert (row["updates"], row["epochs"]) == (80, 10.0)
    assert set(row["history"]) == set(HISTORY)


@pytest.mark.parametrize("stop", [1, 7, 33, 49])
def test_a_checkpoint_at_any_minibatch_changes_no_bit(stop: int, data: Data) -> None:
    fleet = Fleet(tuple(FLEETS["penalized"]))
    straight = train_fleet(fleet, data)
    training = Training(fleet, data)
    training.advance(until=stop)
    resumed = train_fleet(fleet, data, resume=training.checkpoint())
    assert resumed == straight


def test_cpu_time_of_earlier_processes_counts_after_a_resume(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 17.0, 100.0, 103.5])  # a process begins and stops, another begins and ends
    monkeypatch.setattr(training_module.time, "process_time", lambda: next(clock))
    fleet = Fleet(tuple(FLEETS["penalized"]))
    content = Training(fleet, data).checkpoint()
    second = Training(fleet, data)
    second.restore(content)
    assert second.cpu_seconds == 7.0 + 3.5


def test_a_run_does_not_depend_on_its_company(data: Data) -> None:
    runs = FLEETS["penalized"]
    alone = train_fleet(Fleet((runs[2],)), data, dtype=torch.float64)[0]
    together = train_fleet(Fleet(tuple(runs)), data, dtype=torch.float64)[2]
    assert together["full_loss"] == pytest.approx(alone["full_loss"], rel=1e-10)


@pytest.mark.parametrize("strength", [0.0, 0.2])
def test_a_diverging_run_leaves_its_neighbours_untouched(strength: float, data: Data) -> None:
    def rows(rate: float) -> list[dict[str, Any]]:
        middle = spec(learning_rate=rate, strength=strength, updates=200, seed=1)
        around = [spec(strength=strength, updates=200, seed=seed) for seed in (0, 2)]
        found = train_fleet(Fleet((around[0], middle, around[1])), data)
        return [{key: value for key, value in row.items() if key != "fleet"} for row in found]

    calm, wild = rows(0.05), rows(1e4)
    assert [row["status"] for row in calm] == ["finished"] * 3
    assert [row["status"] for row in wild] == ["finished", "diverged", "finished"]
    assert [calm[0], calm[2]] == [wild[0], wild[2]]


def test_a_diverged_run_keeps_what_was_seen_and_says_when(data: Data) -> None:
    training = Training(Fleet((spec(updates=200), spec(updates=200, seed=1))), data)
    training.advance(until=80)
    training.program.layers.weights[0][1].fill_(float("inf"))
    training.advance()
    fine, diverged = training.rows()
    assert (fine["status"], fine["diverged_at"]) == ("finished", None)
    assert (diverged["status"], diverged["diverged_at"], diverged["updates"]) == ("diverged", 100, 100)
    assert diverged["history"]["updates"] == [40, 80]
    assert diverged["best_test_accuracy"] == max(diverged["history"]["test_accuracy"])
    assert [diverged[key] for key in ("final_test_accuracy", "full_loss", "implicit_regularizer")] == [None] * 3


def test_a_fleet_whose_runs_all_diverged_stops_early(data: Data) -> None:
    training = Training(Fleet((spec(learning_rate=1e5, updates=2000),)), data)
    training.advance()
    assert training.position <= 50
    assert training.rows()[0]["status"] == "diverged"


def test_a_damaged_checkpoint_is_refused(data: Data) -> None:
    fleet = Fleet(tuple(FLEETS["plain"]))
    training = Training(fleet, data)
    training.advance(until=5)
    good = training.checkpoint()
    flipped = bytearray(good)
    flipped[-7] ^= 1
    counters = good.replace(b'\\"position\\": 5', b'\\"position\\": 9')
    assert counters != good
    for bad in (good[:-10], bytes(flipped), counters, b"", b"nonsense" * 40, good[:4]):
        with pytest.raises(DamagedCheckpointError):
            Training(fleet, data).restore(bad)


def test_a_checkpoint_of_another_fleet_is_refused(data: Data) -> None:
    content = Training(Fleet(tuple(FLEETS["plain"])), data).checkpoint()
    with pytest.raises(DamagedCheckpointError):
        Training(Fleet(tuple(FLEETS["plain"][:2])), data).restore(content)


def test_the_orders_and_schedules_of_a_run_are_those_of_the_library() -> None:
    fields = RunSpec.model_fields
    assert fields["order"].annotation.__args__ == ORDERS  # type: ignore[union-attr]
    for name in SCHEDULES:
        assert spec(schedule=name).schedule == name


def test_training_leaves_the_data_alone(data: Data) -> None:
    before = {field.name: getattr(data, field.name).copy() for field in dataclasses.fields(data)}
    train_fleet(Fleet((spec(),)), data)
    assert all((getattr(data, name) == value).all() for name, value in before.items())
