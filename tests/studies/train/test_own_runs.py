"""Own datasets, models, schedules and other optimizers: trained as a plain torch loop trains them, resumed bitwise."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tacit._util.errors import InputError
from tacit.batching import epoch_batches
from tacit.studies.data.load import load
from tacit.studies.describe.spec import RunSpec, make_run
from tacit.studies.describe.study import load_study, parse_study
from tacit.studies.train.packing import Fleet, pack
from tacit.studies.train.training import Training
from tacit.studies.train.trial import try_own_code

MODULE = """
import numpy as np, torch
from torch import nn

def load():
    draws = np.random.default_rng(0)
    inputs = draws.normal(size=(96, 1, 6, 6))
    targets = (inputs.mean((1, 2, 3)) > 0).astype(int) + (inputs[:, 0, 0, 0] > 0.5)
    return inputs[:64], targets[:64], inputs[64:], targets[64:]

class Net(nn.Module):
    def __init__(self, channels, dropout, norm):
        super().__init__()
        self.convolution = nn.Conv2d(1, channels, 3)
        self.norm = nn.BatchNorm2d(channels) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(channels * 16, 3)
    def forward(self, inputs):
        hidden = torch.tanh(self.norm(self.convolution(inputs)))
        return self.head(self.dropout(hidden.flatten(1)))

def make_model(channels=2, dropout=0.0, norm=False):
    return Net(channels, dropout, norm)

def halves(step, steps):
    return 1.0 if step < steps / 2 else 0.5

def wrong_shape(): return nn.Flatten()
def two(): return 1, 2
"""
BASE: dict[str, Any] = {
    "dataset": "own_study_code:load", "model": "own_study_code:make_model", "learning_rate": 0.1, "epochs": 3,
    "train_size": 64, "batch_size": 16, "evaluations": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "own_study_code", raising=False)
    (tmp_path / "own_study_code.py").write_text(MODULE)
    return tmp_path


def trained(run: RunSpec, *, stop_at: int | None = None) -> Training:
    training = Training(Fleet((run,)), load(run.dataset), dtype=torch.float64)
    if stop_at is not None:
        training.advance(until=stop_at)
        again = Training(Fleet((run,)), load(run.dataset), dtype=torch.float64)
        again.restore(training.checkpoint())
        training = again
    training.advance()
    return training


def reference(run: RunSpec, optimizer: Any, *, factor: Any = lambda step, steps: 1.0) -> list[Tensor]:
    """The same run as a plain torch loop with the penalty by double backward; no code of the package but the order."""
    start = Training(Fleet((run,)), load(run.dataset), dtype=torch.float64).program.model  # type: ignore[attr-defined]
    model = copy.deepcopy(start)
    data = load(run.dataset)
    inputs, targets = torch.tensor(data.train_inputs).double(), torch.tensor(data.train_targets)
    chosen = optimizer(model.parameters())
    step = 0
    for epoch in range(run.epochs or 0):
        for batch in epoch_batches(run.train_size, run.batch_size, order="shuffled", seed=run.seed, epoch=epoch):
            chosen.param_groups[0]["lr"] = run.learning_rate * factor(step, run.minibatches)
            loss = F.cross_entropy(model(inputs[batch]), targets[batch])
            gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            penalized = loss + run.strength / 4 * sum((g * g).sum() for g in gradients)
            chosen.zero_grad()
            penalized.backward()
            chosen.step()
            step += 1
    return [parameter.detach() for parameter in model.parameters()]


OPTIMIZERS: list[tuple[dict[str, Any], Any]] = [
    ({}, lambda p: torch.optim.SGD(p, lr=0.1)),
    ({"optimizer": "momentum"}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    ({"optimizer": "nesterov", "momentum": 0.5}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, nesterov=True)),
    ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.1)),
    ({"optimizer": "adamw", "weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1)),
]


@pytest.mark.parametrize("strength", [0.0, 0.2])
@pytest.mark.parametrize(("values", "optimizer"), OPTIMIZERS, ids=[str(values) for values, _ in OPTIMIZERS])
def test_an_own_model_ends_where_a_plain_torch_loop_ends(
    values: dict[str, Any], optimizer: Any, strength: float
) -> None:
    run = make_run({**BASE, **values, "strength": strength})
    for mine, wanted in zip(trained(run).program.tensors(), reference(run, optimizer), strict=False):
        # float64, 12 updates; Adam divides by small second moments, which carries rounding to about 1e-10
        assert torch.allclose(mine, wanted, rtol=1e-8, atol=1e-9)


def test_an_own_schedule_multiplies_the_rate() -> None:
    run = make_run({**BASE, "schedule": "own_study_code:halves"})
    wanted = reference(run, OPTIMIZERS[0][1], factor=lambda step, steps: 1.0 if step < steps / 2 else 0.5)
    for mine, expected in zip(trained(run).program.tensors(), wanted, strict=True):
        assert torch.allclose(mine, expected, rtol=1e-10, atol=1e-12)


RESUMED: list[dict[str, Any]] = [
    *[{**values, "strength": 0.1} for values, _ in OPTIMIZERS],
    {"strength": 0.1, "micro_batch_size": 4},
    {"strength": 0.1, "micro_batch_size": 4, "sampled": 2, "optimizer": "adamw"},
    {"relative": 0.4, "micro_batch_size": 4, "sampled": 1},
    {"relative": 0.4, "optimizer": "momentum"},
    {"sam_radius": 0.1},
    {"sam_radius": 0.1, "sam_rows": 4, "optimizer": "momentum"},
]


@pytest.mark.parametrize("stop_at", [1, 5])
@pytest.mark.parametrize("values", RESUMED, ids=str)
def test_a_resumed_run_with_dropout_and_norm_ends_with_the_same_bits(values: dict[str, Any], stop_at: int) -> None:
    arguments = {"dropout": 0.3, "norm": True}
    run = make_run({**BASE, **values, "model_arguments": arguments})
    whole, resumed = trained(run), trained(run, stop_at=stop_at)
    assert all(torch.equal(a, b) for a, b in zip(whole.program.tensors(), resumed.program.tensors(), strict=True))
    assert whole.rows() == resumed.rows()


def test_training_an_own_model_leaves_torchs_global_generator_alone() -> None:
    run = make_run({**BASE, "model_arguments": {"dropout": 0.3}})
    before = torch.get_rng_state()
    trained(run)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_own_dataset_trains_the_built_in_mlp_as_a_fleet() -> None:
    runs = [make_run({**BASE, "model": "mlp", "width": 8, "seed": seed}) for seed in range(3)]
    (fleet,) = pack(runs)
    training = Training(fleet, load(runs[0].dataset))
    training.advance()
    assert [row["status"] for row in training.rows()] == ["finished"] * 3


def test_runs_of_an_own_model_train_one_by_one() -> None:
    assert [len(fleet.runs) for fleet in pack([make_run({**BASE, "seed": seed}) for seed in range(3)])] == [1, 1, 1]


STUDY = """
name = "own"
[fixed]
dataset = "own_study_code:load"
model = "own_study_code:make_model"
model_arguments = { channels = 2 }
learning_rate = 0.1
epochs = 1
train_size = 64
batch_size = 16
evaluations = 1
[grid]
seeds = "0:2"
"""


def test_a_changed_module_makes_other_runs_and_a_stored_study_is_read_without_it(folder: Path) -> None:
    (folder / "own.toml").write_text(STUDY)
    study = load_study("own.toml")
    (folder / "own_study_code.py").write_text(MODULE + "# changed\n")
    changed = load_study("own.toml")
    assert {run.hash for run in study.runs}.isdisjoint(run.hash for run in changed.runs)
    (folder / "own_study_code.py").unlink()
    stored = parse_study(study.model_dump())  # as from study.json on another machine
    assert [run.hash for run in stored.runs] == [run.hash for run in study.runs]


def test_only_the_code_that_a_run_uses_is_part_of_its_identity() -> None:
    code = {"own_study_code:load": "a" * 16, "other:model": "b" * 16}
    assert make_run({**BASE, "own_code": code}).own_code == {"own_study_code:load": "a" * 16}
    assert make_run({"learning_rate": 0.1, "epochs": 1, "own_code": code}).own_code is None


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"dataset": "own_study_code:two"}, "returned a tuple; expected four arrays"),
    ({"dataset": "own_study_code:missing"}, "has no function missing"),
    ({"model": "own_study_code:wrong_shape"}, "without trainable parameters"),
    ({"model_arguments": {"chanels": 2}}, "raised TypeError"),
    ({"train_size": 128}, "has 64 training and 32 test examples; found train_size 128"),
    ({"augmentation": "shift"}, "augmentation shift is for signals"),
]


@pytest.mark.parametrize(("values", "sentence"), WRONG, ids=[str(values) for values, _ in WRONG])
def test_own_code_that_cannot_work_is_refused_before_a_worker_starts(values: dict[str, Any], sentence: str) -> None:
    raw = {"name": "own", "fixed": {**BASE, **values}}
    from tacit._util.own_code import source_hashes

    raw["fixed"]["own_code"] = source_hashes({raw["fixed"]["dataset"], raw["fixed"]["model"]})
    with pytest.raises(InputError, match=sentence):
        try_own_code(parse_study(raw).runs)


NAMES: list[tuple[dict[str, Any], str]] = [
    ({"dataset": "imagenet"}, "dataset is 'imagenet'; expected one of 'mnist1d'"),
    ({"optimizer": "lion"}, "optimizer is 'lion'; expected 'sgd', 'momentum'"),
    ({"momentum": 0.9}, "momentum is 0.9 and optimizer is sgd"),
    ({"optimizer": "momentum", "momentum": 1.0}, "expected a number less than 1"),
    ({"model": "mlp", "model_arguments": {"a": 1}}, "it is for a model of your own"),
    ({"optimizer": "adam", "inner_steps": 2}, "n-step SGD is SGD"),
    ({"augmentation": "crop_flip"}, "it is not for a dataset of your own"),
]


@pytest.mark.parametrize(("values", "sentence"), NAMES, ids=[str(values) for values, _ in NAMES])
def test_wrong_values_are_refused_by_name(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_run({**BASE, **values})


def test_the_built_in_model_with_momentum_trains_too() -> None:
    run = make_run({"learning_rate": 0.05, "epochs": 1, "train_size": 64, "batch_size": 16, "evaluations": 1,
                    "width": 8, "optimizer": "momentum"})  # fmt: skip
    training = Training(Fleet((run,)), load("mnist1d"))
    training.advance()
    assert np.isfinite(training.rows()[0]["full_loss"])
