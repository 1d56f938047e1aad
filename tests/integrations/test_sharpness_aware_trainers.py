"""`SharpnessAware` in Lightning, Fabric and Transformers: which pass is logged and returned, and what is refused.

The matrix compares weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import tacit
from tacit.penalty.pieces import drawn_rows

pytest.importorskip("lightning", reason="lightning is not installed; make integrations runs this")
pytest.importorskip("transformers", reason="transformers is not installed; make integrations runs this")

from test_lightning import BATCH, EXAMPLES, Classifier, Manual, Replacing, assert_same_weights, data, fit, pl
from transformers_runs import Penalised, llama, train

RADIUS = 0.4
STEPS = EXAMPLES // BATCH


def falling(step: int) -> float:
    return RADIUS / (1 + step)


def from_second_step(step: int) -> float:
    return RADIUS if step else 0.0


def by_hand(
    module: Any, radius: Any, *, sampled: int | None = None, accumulated: int = 1
) -> tuple[list[float], list[float]]:
    """Return: the loss at the moved parameters and the length of the direction, of each batch."""
    optimizer, parameters = torch.optim.SGD(module.parameters(), lr=0.1), list(module.parameters())
    losses, lengths = [], []
    for call, (inputs, targets) in enumerate(DataLoader(data(), batch_size=BATCH)):
        of = slice(None) if sampled in (None, BATCH) else drawn_rows(BATCH, sampled, seed=0, call=call)
        direction = torch.autograd.grad(F.cross_entropy(module.network(inputs[of]), targets[of]), parameters)
        length = sum(part.square().sum() for part in direction).sqrt()
        before = [parameter.detach().clone() for parameter in parameters]
        with torch.no_grad():
            for parameter, part in zip(parameters, direction, strict=True):
                parameter += radius(call // accumulated) / length * part
        loss = F.cross_entropy(module.network(inputs), targets)
        (loss / accumulated).backward()
        losses.append(loss.item())
        lengths.append(length.item())
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
        if (call + 1) % accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses, lengths


class Logging(Classifier):
    def training_step(self, batch: Any, index: int) -> Any:
        loss = super().training_step(batch, index)
        self.log("seen", loss)
        return {"loss": loss, "seen": loss.detach()}


class Outputs(pl.Callback):
    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *others: Any) -> None:
        seen = trainer.callback_metrics["seen"]
        self.rows.append((float(outputs["loss"]), float(outputs["seen"]), float(seen)))


@pytest.mark.parametrize("radius", [falling, from_second_step])
@pytest.mark.parametrize("sampled", [None, 2, BATCH])
def test_lightning_returns_and_logs_the_whole_batch_at_the_moved_parameters_once(sampled: Any, radius: Any) -> None:
    module, wanted, outputs = Logging(), Classifier(), Outputs()
    trainer = fit(module, tacit.lightning.SharpnessAware(radius, sampled=sampled), outputs)
    losses, _ = by_hand(wanted, radius, sampled=sampled)
    assert_same_weights(module, wanted)
    assert module.calls == 2 * STEPS - (radius(0) == 0)
    assert trainer.callback_metrics["calls"] == STEPS  # each batch is logged once
    for row, loss in zip(outputs.rows, losses, strict=True):
        assert row == pytest.approx((loss, loss, loss), rel=1e-6)


@pytest.mark.parametrize("log_every", [1, 2])
def test_lightning_logs_the_mean_length_of_the_directions_since_the_last_log(log_every: int, tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)
    rows: list[dict[str, float]] = []
    logger.log_metrics = lambda metrics, step=None: rows.append(dict(metrics))
    module, wanted = Classifier(), Classifier()
    callback = tacit.lightning.SharpnessAware(falling, sampled=2, progress_bar=True)
    trainer = fit(module, callback, logger=logger, log_every_n_steps=log_every, accumulate_grad_batches=2)
    _, lengths = by_hand(wanted, falling, sampled=2, accumulated=2)
    assert_same_weights(module, wanted)
    found = [row["tacit/direction_norm"] for row in rows if "tacit/direction_norm" in row]
    size = 2 * log_every
    assert found == pytest.approx([sum(lengths[k : k + size]) / size for k in range(0, STEPS, size)], rel=1e-6)
    assert {name for row in rows for name in row if name.startswith("tacit/")} == {"tacit/direction_norm"}
    assert "tacit/direction_norm" in trainer.progress_bar_metrics


def test_lightning_stores_the_number_of_calls_and_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    module, callback = Classifier(), tacit.lightning.SharpnessAware(RADIUS, sampled=2, seed=3)
    fit(module, callback).save_checkpoint(tmp_path / "state.ckpt")
    stored = torch.load(tmp_path / "state.ckpt", weights_only=True)["callbacks"]
    assert [value for name, value in stored.items() if "SharpnessAware" in name] == [{"steps": STEPS, "seed": 3}]
    assert callback.sam is None
    assert "training_step" not in module.__dict__


@pytest.mark.parametrize(
    "options,sentence",
    [
        ({"radius": "far"}, "radius='far'"),
        ({"radius": 0.1, "sampled": 0}, "sampled=0"),
        ({"radius": 0.1, "rows": 2}, "option 'rows' is unknown; expected one of check_every, .*sampled, seed"),
        ({"radius": 0.1, "micro_batch_size": 2}, "option 'micro_batch_size' is unknown"),
    ],
)
def test_wrong_options_are_refused_before_there_is_a_model(options: Any, sentence: str) -> None:
    with pytest.raises(tacit.InputError, match=sentence):
        tacit.lightning.SharpnessAware(**options)
    with pytest.raises(tacit.InputError, match=sentence):
        Penalised(penalty=options)


class Iterating(Classifier):
    def training_step(self, dataloader_iter: Any) -> Any:
        batch, *_ = next(dataloader_iter)
        return F.cross_entropy(self.network(batch[0]), batch[1])


@pytest.mark.parametrize(
    "module,others,sentence",
    [
        (Manual, [], r"Make a tacit\.SharpnessAware and call self\.manual_backward\(sam\.loss\(closure\)\)"),
        (lambda: Classifier(torch.optim.LBFGS), [], "the gradient that it gets here is not that of the loss"),
        (Iterating, [], r"SharpnessAware runs it several times, .* Use training_step\(self, batch, batch_idx\)"),
        (Classifier, [Replacing()], "no call reached SharpnessAware before the first optimizer step"),
        (Classifier, [tacit.lightning.Penalty(0.1)], "callbacks SharpnessAware and Penalty .* expected one of them"),
    ],
)
def test_lightning_refuses_what_would_be_wrong(module: Any, others: list[Any], sentence: str) -> None:
    made = module()
    before = [parameter.detach().clone() for parameter in made.parameters()]
    with pytest.raises(tacit.InputError, match=sentence):
        fit(made, tacit.lightning.SharpnessAware(RADIUS), *others)
    assert all(map(torch.equal, before, made.parameters()))


def test_fabric_takes_a_model_that_it_has_set_up_and_its_own_backward() -> None:
    from lightning.fabric import Fabric

    with pytest.raises(tacit.InputError, match="model is a Linear that Fabric has not set up"):
        tacit.lightning.FabricSharpnessAware(nn.Linear(2, 1), RADIUS)
    fabric = Fabric(accelerator="cpu", precision="bf16-mixed")
    model = fabric.setup(nn.Linear(2, 1))
    sam = tacit.lightning.FabricSharpnessAware(model, radius=RADIUS)
    with pytest.raises(tacit.InputError, match=r"^FabricSharpnessAware\.backward .* fabric\.backward\(sam\.loss"):
        sam.backward(lambda: model(torch.ones(1, 2)).sum())
    with pytest.raises(RuntimeError, match=r"fabric\.backward"):
        sam.loss(lambda: model(torch.ones(1, 2)).sum()).backward()
    fabric.backward(sam.loss(lambda: model(torch.ones(1, 2)).sum()))
    assert model.module.bias.grad is not None


class Telling(Penalised):
    """Logs the loss of each call of compute_loss that may log."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **named)
        self.log({"own": float(loss)})
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("sampled", [None, 1, 2])
def test_transformers_logs_the_whole_batch_at_the_moved_parameters_once(sampled: Any, tmp_path: Path) -> None:
    run = {"gradient_accumulation_steps": 1, "max_steps": 4, "logging_steps": 1}
    penalty = {"radius": RADIUS} if sampled is None else {"radius": RADIUS, "sampled": sampled}
    trainer = train(llama(), tmp_path, kind=Telling, penalty=penalty, **run)
    own = [row["own"] for row in trainer.state.log_history if "own" in row]
    rows = [row for row in trainer.state.log_history if "tacit/direction_norm" in row]
    plain = train(llama(), tmp_path, **run).state.log_history
    assert len(own) == len(rows) == 4
    assert own == pytest.approx([row["loss"] for row in rows], rel=1e-3)
    assert rows[0]["loss"] > plain[0]["loss"] + 0.05  # uphill of where the plain pass is
    assert {name for row in rows for name in row if name.startswith("tacit/")} == {"tacit/direction_norm"}


def test_transformers_logs_the_mean_length_of_the_directions_weighted_as_the_batches_are(tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []

    class Reading(Penalised):
        def training_step(self, *arguments: Any, **named: Any) -> Tensor:
            loss = super().training_step(*arguments, **named)
            last = self.gradient_penalty.last
            seen.append((float(loss / last.loss), float(last.direction_norm)))
            return loss

    trainer = train(llama(), tmp_path, kind=Reading, penalty={"radius": RADIUS}, logging_steps=2)
    (row,) = [row for row in trainer.state.log_history if "tacit/direction_norm" in row]
    assert len(seen) == 4
    weights, lengths = zip(*seen, strict=True)
    mean = sum(weight * length for weight, length in seen) / sum(weights)
    assert row["tacit/direction_norm"] == pytest.approx(mean, rel=1e-5)
    assert mean != pytest.approx(sum(lengths) / 4, rel=1e-3)


@pytest.mark.parametrize("penalty", [{"sampled": 1}, {"strength": 0.1, "radius": 0.05}])
def test_transformers_wants_either_a_strength_or_a_radius(penalty: Any) -> None:
    with pytest.raises(tacit.InputError, match="expected a dict with either the strength or the radius, such as"):
        Penalised(penalty=penalty)


def test_transformers_does_not_take_the_state_of_the_other_method(tmp_path: Path) -> None:
    run = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2}
    train(llama(), tmp_path, kind=Penalised, penalty={"radius": RADIUS, "sampled": 1, "seed": 5}, **run)
    checkpoint = str(tmp_path / "checkpoint-1")
    resumed = {}
    for penalty in ({"radius": RADIUS, "sampled": 1}, {"strength": 0.1}):
        made = Resuming.of(penalty, tmp_path, checkpoint)
        resumed[next(iter(penalty))] = made.gradient_penalty
    assert resumed["radius"].state_dict() == {"steps": 4, "seed": 5}
    assert resumed["strength"].steps == 2


class Resuming(Penalised):
    checkpoint = ""

    @classmethod
    def of(cls, penalty: Any, folder: Path, checkpoint: str) -> Any:
        cls.checkpoint = checkpoint
        return train(llama(), folder, kind=cls, penalty=penalty)

    def train(self) -> Any:
        return super().train(resume_from_checkpoint=self.checkpoint)
