"""A fleet of convolutional networks: the same models, updates and rows as one `nn.Module` after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from in_process import train_fleet
from tacit import InputError
from tacit._util.random_generators import generator
from tacit.studies.data.facts import Data
from tacit.studies.describe.spec import RunSpec, make_run
from tacit.studies.train import batched_conv1d, batched_mlp, operations
from tacit.studies.train import training as training_module
from tacit.studies.train.batched_program import Batched
from tacit.studies.train.models import conv1d
from tacit.studies.train.module_program import Single
from tacit.studies.train.packing import Fleet, has_run_axis, pack
from tacit.studies.train.training import Training

CONV: dict[str, Any] = {
    "model": "conv1d", "train_size": 64, "batch_size": 16, "width": 6, "depth": 3, "evaluations": 2,
    "learning_rate": 0.05, "updates": 50,
}  # fmt: skip
SAME = {
    "plain": {},
    "weight decay": {"weight_decay": 0.05},
    "penalty": {"strength": 0.3},
    "penalty, shifted signals": {"strength": 0.3, "augmentation": "shift"},
    "penalty, weight decay inside": {"strength": 0.3, "weight_decay": 0.05},
    "penalty, weight decay outside": {"strength": 0.3, "weight_decay": 0.05, "weight_decay_penalized": False},
    "n-step, two layers": {"inner_steps": 2, "schedule": "paper_decay", "strength": 0.2, "depth": 2},
    "one layer": {"strength": 0.3, "depth": 1},
    "wide: the Gram form": {"strength": 0.01, "width": 80, "batch_size": 2, "updates": 10, "learning_rate": 0.01},
}


def spec(**changes: Any) -> RunSpec:
    return RunSpec(**{**CONV, **changes})


@pytest.fixture(scope="module")
def signals() -> Data:
    draws = np.random.default_rng(0)
    return Data(
        draws.normal(size=(4000, 40)), draws.integers(0, 10, 4000), draws.normal(size=(1000, 40)),
        draws.integers(0, 10, 1000),
    )  # fmt: skip


@pytest.mark.parametrize("length,width,depth", [(40, 25, 3), (40, 4, 6), (9, 3, 2)])
def test_a_fleet_starts_as_the_plain_models_of_its_seeds(length: int, width: int, depth: int) -> None:
    layers = batched_conv1d.initialise(
        length, width=width, depth=depth, classes=10, seeds=[3, 4], dtype=torch.float64
    )  # fmt: skip
    inputs = torch.randn(7, length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = batched_mlp.outputs(layers, inputs.expand(2, -1, -1))
    for run, seed in enumerate((3, 4)):
        model = conv1d(length, width=width, depth=depth, generator=generator(seed, "init")).double()
        torch.testing.assert_close(found[run], model(inputs).detach(), rtol=1e-12, atol=1e-13)  # float64 rounding


@pytest.mark.parametrize("length,channels,kernel", [(40, 1, 5), (19, 4, 3), (10, 2, 3)])
def test_a_link_and_its_transpose_are_adjoint(length: int, channels: int, kernel: int) -> None:
    draws = torch.Generator().manual_seed(0)
    link = batched_conv1d.Windows(length, channels, kernel)
    rows = torch.randn(2, 3 * length, channels, dtype=torch.float64, generator=draws)
    windows = torch.randn(link.forward(rows).shape, dtype=torch.float64, generator=draws)
    left, right = (link.forward(rows) * windows).sum(), (rows * link.transposed(windows)).sum()
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SAME)
def test_fifty_updates_are_the_same_in_both_programs(name: str, signals: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    run = spec(**SAME[name])
    made = []
    for program in (Single, Batched):
        with monkeypatch.context() as patched:
            patched.setattr(training_module.program, "make", program)
            training = Training(Fleet((run,)), signals, dtype=torch.float64)
        training.advance()
        made.append(training)
    one, many = made
    modules = [m for m in one.program.model.modules() if isinstance(m, nn.Conv1d | nn.Linear)]  # type: ignore[attr-defined]
    layers = many.program.layers  # type: ignore[attr-defined]
    # Rounding of 1e-16 grows over fifty updates of a kinked loss; a wrong coefficient shows at 1e-3.
    for module, weight, bias in zip(modules[:-1], layers.weights, layers.biases, strict=False):
        torch.testing.assert_close(module.weight.detach().flatten(1).T, weight[0], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(module.bias.detach(), bias[0, 0], rtol=1e-9, atol=1e-11)
    (left,), (right,) = one.rows(), many.rows()
    assert left["full_loss"] == pytest.approx(right["full_loss"], rel=1e-9)
    assert left["implicit_regularizer"] == pytest.approx(right["implicit_regularizer"], rel=1e-8)
    assert left["history"]["test_accuracy"] == right["history"]["test_accuracy"]


def test_a_run_does_not_depend_on_its_company(signals: Data) -> None:
    runs = [spec(strength=strength, seed=seed) for strength in (0.05, 0.5) for seed in (0, 1)]
    alone = train_fleet(Fleet((runs[2],)), signals, dtype=torch.float64)[0]
    together = train_fleet(Fleet(tuple(runs)), signals, dtype=torch.float64)[2]
    assert together["full_loss"] == pytest.approx(alone["full_loss"], rel=1e-10)


@pytest.mark.parametrize("stop", [1, 33])
@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_a_checkpoint_at_any_minibatch_changes_no_bit(stop: int, strength: float, signals: Data) -> None:
    fleet = Fleet(tuple(spec(strength=strength, seed=seed, augmentation="shift") for seed in (0, 1)))
    training = Training(fleet, signals)
    training.advance(until=stop)
    assert train_fleet(fleet, signals, resume=training.checkpoint()) == train_fleet(fleet, signals)


def test_runs_of_one_shape_train_as_a_fleet_and_not_with_mlps() -> None:
    runs = [spec(seed=seed) for seed in range(4)]
    mlps = [spec(model="mlp", seed=seed) for seed in range(4)]
    assert has_run_axis(runs[0])
    assert sorted(len(fleet.runs) for fleet in pack([*runs, *mlps])) == [4, 4]


@pytest.mark.parametrize("width,depth", [(25, 3), (4, 1), (3, 6)])
def test_operations_are_those_that_happen(width: int, depth: int) -> None:
    model, seen = conv1d(40, width=width, depth=depth), []

    def look(module: nn.Module, _: object, output: torch.Tensor) -> None:
        assert isinstance(module, nn.Conv1d | nn.Linear)
        seen.append(module.weight[0].numel() * output[0].numel())

    for module in model:
        if isinstance(module, nn.Conv1d | nn.Linear):
            module.register_forward_hook(look)
    model(torch.zeros(1, 40))
    found = operations.count(spec(width=width, depth=depth))
    assert (found.multiply_adds, found.layers) == (sum(seen), len(seen))
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    "changes,words",
    [({"dataset": "fashion_mnist"}, "whose examples are images"), ({"depth": 7}, "use at most 6")],
)
def test_what_a_convolution_on_signals_cannot_do_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_run({**CONV, **changes})
