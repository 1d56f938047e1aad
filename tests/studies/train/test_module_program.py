"""The program of one `nn.Module`: the same updates as the batched one, exact penalties of Wide-ResNets, no bit lost."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from in_process import train_fleet
from oracles import penalised_gradient
from tacit._util.random_generators import generator
from tacit.studies.data.datasets import FACTS
from tacit.studies.data.facts import Data
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train import module_program as single
from tacit.studies.train import training as training_module
from tacit.studies.train.batched_program import Batched
from tacit.studies.train.models import SkipInitBlock
from tacit.studies.train.module_program import Single
from tacit.studies.train.packing import Fleet
from tacit.studies.train.training import Training

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"train_size": 64, "batch_size": 16, "width": 12, "depth": 2, "evaluations": 2}
WIDE: dict[str, Any] = {
    "dataset": "cifar10", "model": "wide_resnet", "depth": 10, "width": 1, "image_size": 8, "train_size": 16,
    "test_size": 10, "batch_size": 4, "evaluations": 3, "updates": 12, "augmentation": "crop_flip",
    "learning_rate": 0.02, "weight_decay": 5e-4,
}  # fmt: skip


def pictures(name: str) -> Data:
    draws, shape = np.random.default_rng(1), FACTS[name].shape
    return Data(
        draws.integers(0, 256, (64, *shape), dtype=np.uint8), draws.integers(0, 10, 64),
        draws.integers(0, 256, (20, *shape), dtype=np.uint8), draws.integers(0, 10, 20),
    )  # fmt: skip


def trained(run: RunSpec, data: Data, program: type, monkeypatch: pytest.MonkeyPatch) -> Training:
    with monkeypatch.context() as patched:
        patched.setattr(training_module.program, "make", program)
        training = Training(Fleet((run,)), data, dtype=torch.float64)
    training.advance()
    return training


# -- one program against the other ----------------------------------------------------------------------------------
SAME = {
    "plain": {},
    "weight decay": {"weight_decay": 0.05},
    "penalty": {"strength": 0.3},
    "penalty, weight decay inside": {"strength": 0.3, "weight_decay": 0.05},
    "penalty, weight decay outside": {"strength": 0.3, "weight_decay": 0.05, "weight_decay_penalized": False},
    "momentum": {"optimizer": "momentum", "weight_decay": 0.05, "strength": 0.3, "learning_rate": 0.01},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.05, "learning_rate": 0.001},
    "label smoothing": {"label_smoothing": 0.1, "strength": 0.3},
    "label noise": {"label_noise": 0.3, "optimizer": "momentum", "learning_rate": 0.01},
    "n-step": {"inner_steps": 2, "schedule": "paper_decay", "strength": 0.2, "weight_decay": 0.02},
}


@pytest.mark.parametrize("name", SAME)
def test_fifty_updates_of_an_mlp_are_the_same_in_both_programs(
    name: str, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunSpec(**{**SMALL, "learning_rate": 0.05, "updates": 50, **SAME[name]})
    one, many = (trained(run, data, program, monkeypatch) for program in (Single, Batched))
    linear = [module for module in one.program.model.modules() if isinstance(module, nn.Linear)]  # type: ignore[attr-defined]
    layers = many.program.layers  # type: ignore[attr-defined]
    # Rounding of 1e-16 grows over fifty updates of a kinked loss; a wrong coefficient shows at 1e-3.
    for layer, weight, bias in zip(linear, layers.weights, layers.biases, strict=True):
        torch.testing.assert_close(layer.weight.detach().T, weight[0], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(layer.bias.detach(), bias[0, 0], rtol=1e-9, atol=1e-11)
    (left,), (right,) = one.rows(), many.rows()
    assert left["full_loss"] == pytest.approx(right["full_loss"], rel=1e-9)
    assert left["implicit_regularizer"] == pytest.approx(right["implicit_regularizer"], rel=1e-8)
    assert left["history"]["test_accuracy"] == right["history"]["test_accuracy"]


def test_augmented_members_of_a_fleet_are_the_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        RunSpec(
            **{**SMALL, "dataset": "fashion_mnist", "train_size": 32, "test_size": 10, "augmentation": "crop_flip"},
            learning_rate=0.01, updates=6, seed=seed, image_size=14,
        )
        for seed in (0, 1)
    ]  # fmt: skip
    together = train_fleet(Fleet(tuple(runs)), pictures("fashion_mnist"), dtype=torch.float64)
    for run, row in zip(runs, together, strict=True):
        (alone,) = trained(run, pictures("fashion_mnist"), Single, monkeypatch).rows()
        assert row["full_loss"] == pytest.approx(alone["full_loss"], rel=1e-10)
        assert row["implicit_regularizer"] == pytest.approx(alone["implicit_regularizer"], rel=1e-9)
    assert together[0]["full_loss"] != together[1]["full_loss"]


# -- the penalty of a Wide-ResNet -----------------------------------------------------------------------------------
def small_wide_resnet() -> nn.Module:
    """The blocks of the real one with fewer channels, so that a Hessian can be written out; no scalar at 0."""
    model = nn.Sequential(
        nn.Conv2d(3, 2, 3, padding=1), SkipInitBlock(2, 2, stride=1), SkipInitBlock(2, 3, stride=2),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10),
    )  # fmt: skip
    draws = generator(0, "init")
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.5, generator=draws)
    return model


def minibatch(rows: int, size: int) -> tuple[Tensor, Tensor]:
    draws = generator(0, "probe")
    inputs = torch.randn(rows, 3, size, size, generator=draws, dtype=torch.float64)
    return inputs, torch.randint(10, (rows,), generator=draws)


def gradient_of_an_update(run: RunSpec, inputs: Tensor, labels: Tensor) -> tuple[dict[str, Tensor], Single]:
    """What one update at rate 1 takes away from each parameter."""
    program = Single((run,), FACTS[run.dataset], device=CPU, dtype=torch.float64)
    with torch.no_grad():
        for parameter in program.model.parameters():
            if parameter.dim() == 0 and not parameter:
                parameter.fill_(0.3)
    before = {name: value.detach().clone() for name, value in program.model.named_parameters()}
    program.update(inputs, labels, rates=[1.0])
    taken = {name: before[name] - value.detach() for name, value in program.model.named_parameters()}
    with torch.no_grad():
        for name, value in program.model.named_parameters():
            value.copy_(before[name])
    return taken, program


@pytest.mark.parametrize("inside", [True, False], ids=["decay inside the norm", "decay outside"])
def test_a_penalised_update_with_skipinit_blocks_by_autograd_is_the_oracles(
    inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "build", lambda run, facts: small_wide_resnet())
    run, decay = RunSpec(**{**WIDE, "strength": 0.4, "weight_decay": 0.05, "weight_decay_penalized": inside}), 0.05
    inputs, labels = minibatch(3, 5)
    found, _ = gradient_of_an_update(run, inputs, labels)

    def loss_of(model: nn.Module) -> Tensor:
        squares = sum(parameter.square().sum() for parameter in model.parameters())
        return F.cross_entropy(model(inputs), labels) + (decay / 2 * squares if inside else 0.0)

    wanted = penalised_gradient(small_wide_resnet(), loss_of, 0.4)
    for name, parameter in small_wide_resnet().double().named_parameters():
        outside = 0.0 if inside else decay * parameter.detach()
        torch.testing.assert_close(found[name], wanted[name] + outside, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("inside", [True, False], ids=["decay inside the norm", "decay outside"])
def test_a_penalised_update_of_wrn_10_1_is_the_slope_of_the_penalised_loss(inside: bool) -> None:
    run = RunSpec(**{**WIDE, "strength": 0.4, "weight_decay": 0.05, "weight_decay_penalized": inside})
    inputs, labels = minibatch(2, 8)
    found, program = gradient_of_an_update(run, inputs, labels)
    parameters = list(program.model.parameters())

    def penalised_loss() -> float:
        squares = sum(parameter.square().sum() for parameter in parameters)
        loss = F.cross_entropy(program.model(inputs), labels)
        whole = loss + 0.05 / 2 * squares
        gradients = torch.autograd.grad(whole if inside else loss, parameters, retain_graph=True)
        return (whole + 0.4 / 4 * sum(gradient.square().sum() for gradient in gradients)).item()

    for seed in range(2):
        draws = generator(seed, "probe")
        along = [torch.randn(p.shape, generator=draws, dtype=torch.float64) for p in parameters]
        values = []
        for step in (1e-7, -2e-7, 1e-7):  # there, to the other side, and back
            with torch.no_grad():
                torch._foreach_add_(parameters, along, alpha=step)
            values.append(penalised_loss())
        slope = (values[0] - values[1]) / 2e-7
        wanted = sum(float((found[name] * a).sum()) for (name, _), a in zip(found.items(), along, strict=True))
        # The difference of two float64 losses of size 10 over 1e-7 keeps eight digits.
        assert slope == pytest.approx(wanted, rel=1e-6)


def test_a_plain_update_with_weight_decay_is_that_of_torch_sgd() -> None:
    run = RunSpec(**{**WIDE, "weight_decay": 0.05})
    inputs, labels = minibatch(2, 8)
    found, program = gradient_of_an_update(run, inputs, labels)
    F.cross_entropy(program.model(inputs), labels).backward()
    optimizer = torch.optim.SGD(program.model.parameters(), lr=1.0, weight_decay=0.05)
    before = {name: value.detach().clone() for name, value in program.model.named_parameters()}
    optimizer.step()
    for name, value in program.model.named_parameters():
        torch.testing.assert_close(found[name], before[name] - value.detach(), rtol=1e-12, atol=1e-13)


# -- whole runs -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("strength", [0.0, 0.05])
def test_a_checkpoint_of_a_wide_resnet_at_any_minibatch_changes_no_bit(strength: float) -> None:
    fleet, data = Fleet((RunSpec(**{**WIDE, "strength": strength}),)), pictures("cifar10")
    straight = train_fleet(fleet, data)
    for stop in (1, 4, 11):
        training = Training(fleet, data)
        training.advance(until=stop)
        assert train_fleet(fleet, data, resume=training.checkpoint()) == straight
    assert straight[0]["status"] == "finished"


def test_inner_steps_stay_on_one_augmented_minibatch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    update = Single.update

    def spy(self: Single, inputs: Tensor, labels: Tensor, **options: Any) -> Tensor:
        seen.append(inputs.clone())
        return update(self, inputs, labels, **options)

    monkeypatch.setattr(Single, "update", spy)
    Training(Fleet((RunSpec(**{**WIDE, "inner_steps": 2}),)), pictures("cifar10")).advance(until=3)
    same = [torch.equal(a, b) for a, b in itertools.pairwise(seen)]
    assert same == [True, False, True, False, True]


def test_c_reg_is_that_of_the_last_epochs_augmented_minibatches() -> None:
    training = Training(Fleet((RunSpec(**{**WIDE, "updates": 8}),)), pictures("cifar10"), dtype=torch.float64)
    training.advance()
    model = training.program.model  # type: ignore[attr-defined]
    norms = []
    for position in range(4, 8):
        inputs, labels = training._batch(position)
        squares = sum(parameter.square().sum() for parameter in model.parameters())
        loss = F.cross_entropy(model(inputs), labels) + 5e-4 / 2 * squares
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norms.append(sum(float(gradient.square().sum()) for gradient in gradients))
    assert training.rows()[0]["implicit_regularizer"] == pytest.approx(sum(norms) / 16, rel=1e-9)


@pytest.mark.parametrize("strength", [0.0, 1e3])
def test_a_diverging_wide_resnet_is_a_result(strength: float) -> None:
    run = RunSpec(**{**WIDE, "learning_rate": 1e4, "strength": strength, "evaluations": 12})
    (row,) = train_fleet(Fleet((run,)), pictures("cifar10"))
    assert row["status"] == "diverged"
    assert row["diverged_at"] < 12
    assert row["full_loss"] is None


@pytest.mark.parametrize("model", [{}, {"model": "mlp", "width": 8, "depth": 2}], ids=["wide_resnet", "mlp"])
@pytest.mark.parametrize("strength", [0.0, 0.05])
def test_bfloat16_is_near_float32_and_not_equal_to_it(model: dict[str, Any], strength: float) -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        run = RunSpec(**{**WIDE, **model, "strength": strength, "precision": precision, "updates": 4})
        training = Training(Fleet((run,)), pictures("cifar10"))
        training.advance()
        assert {tensor.dtype for tensor in training.program.tensors()} == {torch.float32}
        losses.append(training.rows()[0]["full_loss"])
    # bfloat16 has 8 significant bits; four small updates keep the losses within a few of its steps.
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


def test_the_test_set_is_cut_to_its_first_images() -> None:
    data = pictures("cifar10")
    run = RunSpec(**{**WIDE, "updates": 4, "evaluations": 1})
    cut = Data(data.train_inputs, data.train_targets, data.test_inputs[:10], data.test_targets[:10])
    assert train_fleet(Fleet((run,)), data) == train_fleet(Fleet((run,)), cut)
