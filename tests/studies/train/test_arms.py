"""The penalty on a sample and its rivals: a fleet of them is its runs, against a naive loop in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from in_process import train_fleet
from tacit._util.random_generators import generator
from tacit.batching import epoch_batches
from tacit.penalty.pieces import drawn_rows
from tacit.studies.data.facts import Data
from tacit.studies.describe.spec import RunSpec
from tacit.studies.train import training as training_module
from tacit.studies.train.examples import with_noise
from tacit.studies.train.models import conv1d, mlp
from tacit.studies.train.module_program import Single
from tacit.studies.train.packing import Fleet, pack
from tacit.studies.train.training import Training

SMALL: dict[str, Any] = {
    "train_size": 64, "batch_size": 16, "width": 12, "depth": 2, "evaluations": 4, "updates": 200,
    "learning_rate": 0.02,
}  # fmt: skip
MICRO, ONE = {"micro_batch_size": 4}, {"micro_batch_size": 4, "sampled": 1}
INSIDE, OUTSIDE = {"weight_decay_penalized": True}, {"weight_decay_penalized": False}


def spec(**values: Any) -> RunSpec:
    return RunSpec(**{**SMALL, **values})


def fleet(axis: str, numbers: list[float], **values: Any) -> list[RunSpec]:
    """Both numbers with a decay of their own, and the second with the seed of the first, too."""
    return [
        spec(**{**values, axis: numbers[at], "seed": seed, "weight_decay": values.get("weight_decay", 0.0) * (1 + at)})
        for at, seed in ((0, 0), (1, 1), (1, 0))
    ]


FLEETS = {
    "momentum": fleet("learning_rate", [0.01, 0.03], optimizer="momentum", weight_decay=0.01),
    "nesterov": fleet("learning_rate", [0.01, 0.03], optimizer="nesterov", momentum=0.5),
    "adam": fleet("learning_rate", [0.001, 0.003], optimizer="adam", weight_decay=0.01),
    "adamw": fleet("learning_rate", [0.001, 0.003], optimizer="adamw", weight_decay=0.1, schedule="cosine"),
    "label smoothing": fleet("learning_rate", [0.01, 0.1], label_smoothing=0.2),
    "label smoothing, adamw": fleet("learning_rate", [0.001, 0.003], label_smoothing=0.1, optimizer="adamw"),
    "label noise": fleet("learning_rate", [0.01, 0.1], label_noise=0.3, label_smoothing=0.1),
    "penalty, momentum": fleet("strength", [0.1, 0.3], optimizer="momentum", learning_rate=0.005, weight_decay=0.05),
    "micro-batches": fleet("strength", [0.1, 0.3], **MICRO, weight_decay=0.05),
    "micro-batches, decay outside": fleet("strength", [0.1, 0.3], **MICRO, **OUTSIDE, weight_decay=0.05),
    "micro-batches, adamw": fleet(
        "strength", [0.1, 0.3], **MICRO, optimizer="adamw", learning_rate=0.001, weight_decay=0.05
    ),
    "sampled": fleet("strength", [0.1, 0.3], **ONE, weight_decay=0.05),
    "sampled, smoothed, until the half": fleet("strength", [0.1, 0.2], **ONE, label_smoothing=0.1, penalty_until=0.5),
    "sampled, n-step": fleet("strength", [0.1, 0.2], **ONE, inner_steps=2),
    "sampled of 3, which does not divide 16": fleet("strength", [0.1, 0.2], micro_batch_size=3, sampled=4),
    "sampled, adamw": fleet("strength", [0.1, 0.3], **ONE, optimizer="adamw", learning_rate=0.001, weight_decay=0.05),
    "sampled, momentum, decay outside": fleet(
        "strength", [0.1, 0.2], **ONE, **OUTSIDE, optimizer="momentum", learning_rate=0.005, weight_decay=0.05
    ),
    "relative": fleet("relative", [0.1, 0.4], **ONE, weight_decay=0.05),
    "relative, whole, decay outside": fleet("relative", [0.1, 0.4], **MICRO, **OUTSIDE, weight_decay=0.05),
    "relative, momentum": fleet("relative", [0.1, 0.4], **ONE, optimizer="momentum", learning_rate=0.005),
    "convolutions, sampled": fleet("strength", [0.05, 0.1], model="conv1d", width=5, **ONE, learning_rate=0.01),
    "convolutions, micro-batches": fleet("strength", [0.05, 0.1], model="conv1d", width=5, **MICRO, learning_rate=0.01),
    "convolutions, SAM": fleet("sam_radius", [0.05, 0.2], model="conv1d", width=5, sam_rows=4, optimizer="momentum"),
    "SAM": fleet("sam_radius", [0.05, 0.2], weight_decay=0.05),
    "SAM, 4 rows": fleet("sam_radius", [0.05, 0.2], sam_rows=4, weight_decay=0.05, label_smoothing=0.1),
    "SAM, 4 rows, adamw": fleet("sam_radius", [0.05, 0.2], sam_rows=4, optimizer="adamw", learning_rate=0.001),
    "SAM, momentum": fleet("sam_radius", [0.05, 0.2], optimizer="momentum", learning_rate=0.005),
}


class Naive:
    """The plain loop: one model, torch's own optimizer, double backward, float64; no code of the package but draws."""

    def __init__(self, run: RunSpec, data: Data) -> None:
        self.run = run
        draws = generator(run.seed, "init")
        if run.model == "mlp":
            self.model = mlp([40, *[run.width] * run.depth, 10], draws).double()
        else:
            self.model = conv1d(40, width=run.width, depth=run.depth, generator=draws).double()
        self.parameters = list(self.model.parameters())
        self.inputs = torch.tensor(data.train_inputs[: run.train_size]).double()
        self.labels = with_noise(torch.tensor(data.train_targets[: run.train_size]), run.label_noise, 10)
        inside = run.weight_decay_penalized and run.optimizer != "adamw"
        self.inside, self.outside = (run.weight_decay, 0.0) if inside else (0.0, run.weight_decay)
        makers = {
            "momentum": lambda p, **k: torch.optim.SGD(p, momentum=run.momentum_used, **k),
            "nesterov": lambda p, **k: torch.optim.SGD(p, momentum=run.momentum_used, nesterov=True, **k),
            "sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
        }  # fmt: skip
        self.optimizer = makers[run.optimizer](self.parameters, lr=1.0, weight_decay=self.outside)
        self.means, self.weight, self.applied = [0.0, 0.0], 0.0, 2.0**-14

    def loss(self, rows: Tensor) -> Tensor:
        smoothing = self.run.label_smoothing
        value = F.cross_entropy(self.model(self.inputs[rows]), self.labels[rows], label_smoothing=smoothing)
        return value + self.inside / 2 * sum(parameter.square().sum() for parameter in self.parameters)  # type: ignore[no-any-return]

    def gradient(self, rows: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(self.loss(rows), self.parameters))

    def halves(self, rows: Tensor) -> list[Tensor]:
        """½ H g of one micro-batch."""
        g = torch.autograd.grad(self.loss(rows), self.parameters, create_graph=True)
        return list(torch.autograd.grad(sum(part.square().sum() for part in g) / 4, self.parameters))  # type: ignore[arg-type]

    def update(self, batch: Tensor, number: int, rate: float) -> None:
        run = self.run
        found = self.gradient(batch)
        if run.sam_radius:
            rows = batch
            if run.sam_rows:
                rows = batch[drawn_rows(len(batch), run.sam_rows, seed=run.seed, worker=0, call=number)]
            inside, self.inside = self.inside, 0.0  # no decay in SAM's direction, and at ω, not where it moved
            direction = self.gradient(rows)
            before = [parameter.detach().clone() for parameter in self.parameters]
            scale = run.sam_radius / norm(direction)
            with torch.no_grad():
                for parameter, part in zip(self.parameters, direction, strict=True):
                    parameter += scale * part
            found = self.gradient(batch)
            with torch.no_grad():
                for parameter, value in zip(self.parameters, before, strict=True):
                    parameter.copy_(value)
            self.inside = inside
            found = [part + inside * value for part, value in zip(found, before, strict=True)]
        elif (run.strength or run.relative) and number < round(run.penalty_until * run.total_updates):
            pieces = batch.split(run.micro_batch_size or len(batch))
            if run.sampled:
                assert run.micro_batch_size
                count = run.sampled * run.micro_batch_size
                chosen = batch[drawn_rows(len(batch), count, seed=run.seed, worker=0, call=number)]
                pieces = chosen.split(run.micro_batch_size)
            parts = [sum(each) / len(pieces) for each in zip(*[self.halves(piece) for piece in pieces], strict=True)]
            strength = run.strength
            if run.relative:
                strength = self.relative_strength(norm(found), norm(parts))  # type: ignore[arg-type]
            found = [a + strength * b for a, b in zip(found, parts, strict=True)]
        for parameter, part in zip(self.parameters, found, strict=True):
            parameter.grad = part
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()

    def relative_strength(self, gradient: float, product: float) -> float:
        """λ of this update, from those before it; then the means of both norms, corrected for their start."""
        strength = self.applied
        if self.weight > 0 or self.means[0] > 0:
            wanted = self.run.relative * self.means[0] / self.means[1]
            strength = min(max(wanted, 2.0**-34), 1.0, 16 * self.applied)
        if self.weight == 0 and 16 * strength * product < self.run.relative * gradient:
            self.means = [gradient, product]  # of a λ that was a guess: for the next update only
        else:
            self.weight = 0.98 * self.weight + 0.02
            gain = 0.02 / self.weight
            self.means = [
                (1 - gain) * mean + gain * new for mean, new in zip(self.means, (gradient, product), strict=True)
            ]
        self.applied = strength
        return strength

    def train(self, training: Training) -> nn.Module:
        run, number = self.run, 0
        for position in range(run.minibatches):
            epoch, within = divmod(position, run.batches_per_epoch)
            batch = epoch_batches(run.train_size, run.batch_size, order=run.order, seed=run.seed, epoch=epoch)[within]
            for _ in range(run.inner_steps):
                self.update(batch, number, training._rates_at(position)[training.runs.index(run)])
                number += 1
        return self.model


def norm(parts: list[Tensor]) -> float:
    return float(torch.cat([part.flatten() for part in parts]).norm())


@pytest.mark.parametrize("name", FLEETS)
def test_two_hundred_updates_of_a_fleet_are_those_of_a_naive_loop(name: str, data: Data) -> None:
    (packed,) = pack(FLEETS[name])
    training = Training(packed, data, dtype=torch.float64)
    training.advance()
    for number, run in enumerate(packed.runs):
        model = Naive(run, data).train(training)
        # Rounding of 1e-16 grows over 200 updates of a kinked loss; a wrong coefficient shows at 1e-3.
        found = training.program.weights(number)
        for name, wanted in model.state_dict().items():
            torch.testing.assert_close(found[name], wanted, rtol=1e-6, atol=1e-8)


ALONE = {
    "micro-batches": {"strength": 0.3, **MICRO, "weight_decay": 0.05},
    "micro-batches, until": {"strength": 0.3, **MICRO, "weight_decay": 0.05, "penalty_until": 0.3},
    "sampled": {"strength": 0.3, **ONE, "weight_decay": 0.05, "label_smoothing": 0.1},
    "relative": {"relative": 0.4, **ONE, "weight_decay": 0.05},
    "relative, whole minibatch": {"relative": 0.2, "optimizer": "momentum", "learning_rate": 0.005},
    "relative, micro-batches, until": {"relative": 0.4, **MICRO, "penalty_until": 0.5},
    "SAM": {"sam_radius": 0.1, "weight_decay": 0.05, "optimizer": "momentum", "learning_rate": 0.005},
    "SAM, 4 rows": {"sam_radius": 0.1, "sam_rows": 4, "weight_decay": 0.05, "label_smoothing": 0.1},
    "sampled of 3, adamw": {
        "strength": 0.3, "micro_batch_size": 3, "sampled": 2, "optimizer": "adamw", "learning_rate": 0.001
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_a_run_of_its_own_takes_the_packages_steps_which_are_those_of_the_fleet(
    name: str, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = spec(**ALONE[name])
    together = Training(Fleet((run,)), data, dtype=torch.float64)
    monkeypatch.setattr(training_module.program, "make", Single)
    alone, resumed = (Training(Fleet((run,)), data, dtype=torch.float64) for _ in range(2))
    together.advance()
    alone.advance(until=41)
    resumed.restore(alone.checkpoint())
    alone.advance()
    resumed.advance()
    # Rounding of 1e-16 grows over 200 updates of a kinked loss; a wrong coefficient shows at 1e-3.
    wanted = together.program.weights(0)
    for parameter, again in zip(alone.program.weights(0).items(), resumed.program.weights(0).values(), strict=True):
        torch.testing.assert_close(parameter[1], wanted[parameter[0]], rtol=1e-6, atol=1e-8)
        assert torch.equal(parameter[1], again)


def test_label_noise_is_in_the_same_training_labels_of_every_seed_and_in_no_test_label(data: Data) -> None:
    clean, *noisy = (
        Training(Fleet((spec(label_noise=share, seed=seed),)), data) for share, seed in ((0.0, 0), (0.3, 0), (0.3, 1))
    )
    assert torch.equal(noisy[0].train.targets, noisy[1].train.targets)
    assert 0 < int((noisy[0].train.targets != clean.train.targets).sum()) <= round(0.3 * 64)
    assert torch.equal(noisy[0].test.targets, clean.test.targets)


def test_no_smoothing_and_no_noise_leave_labels_and_losses_alone(data: Data) -> None:
    training = Training(Fleet((spec(),)), data)
    assert training.train.targets.tolist() == data.train_targets[:64].tolist()
    assert torch.equal(training.program.targets, torch.eye(10))  # type: ignore[attr-defined]


@pytest.mark.parametrize("stop", [1, 67])
@pytest.mark.parametrize("name", ["adamw", "nesterov", "sampled, momentum, decay outside", "relative", "SAM, 4 rows"])
def test_a_checkpoint_of_an_arm_at_any_minibatch_changes_no_bit(name: str, stop: int, data: Data) -> None:
    together = Fleet(tuple(FLEETS[name]))
    training = Training(together, data)
    training.advance(until=stop)
    assert train_fleet(together, data, resume=training.checkpoint()) == train_fleet(together, data)
