"""Lightning's callbacks: what they log, store, leave behind and refuse. The matrix compares their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import tacit

pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed; make integrations runs this")

STRENGTH = 0.3
EXAMPLES, BATCH = 16, 4


def data() -> TensorDataset:
    numbers = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, 5, generator=numbers, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(0, 3, (EXAMPLES,), generator=numbers))


class Classifier(pl.LightningModule):
    def __init__(self, optimizer: Any = torch.optim.SGD, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
        self.make_optimizer = lambda parameters: optimizer(parameters, **{"lr": 0.1, **settings})
        self.calls = 0

    def training_step(self, batch: Any, index: int) -> Any:
        self.calls += 1
        loss = F.cross_entropy(self.network(batch[0]), batch[1])
        self.log("calls", 1.0, on_step=False, on_epoch=True, reduce_fx="sum")
        return loss

    def configure_optimizers(self) -> Any:
        return self.make_optimizer(self.parameters())


def fit(module: Any, *callbacks: Any, **settings: Any) -> Any:
    trainer = pl.Trainer(
        **{"accelerator": "cpu", "max_epochs": 1, "logger": False, "enable_checkpointing": False,
        "callbacks": list(callbacks), "enable_progress_bar": False, "enable_model_summary": False, **settings}
    )  # fmt: skip
    trainer.fit(module, DataLoader(data(), batch_size=BATCH))
    return trainer


def by_hand(module: Any, strength: float, *, steps: int = EXAMPLES // BATCH) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    parameters = list(module.parameters())
    for inputs, targets in list(DataLoader(data(), batch_size=BATCH))[:steps]:
        loss = F.cross_entropy(module.network(inputs), targets)
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        objective = loss + strength / 4 * sum(part.square().sum() for part in first)
        for parameter, gradient in zip(parameters, torch.autograd.grad(objective, parameters), strict=True):
            parameter.grad = gradient
        optimizer.step()


def assert_same_weights(left: nn.Module, right: nn.Module) -> None:
    for one, other in zip(left.parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("wrapping", ["loss", "dict"])
def test_the_callback_trains_on_the_penalised_loss(wrapping: str) -> None:
    class Module(Classifier):
        def training_step(self, batch: Any, index: int) -> Any:
            loss = super().training_step(batch, index)
            return loss if wrapping == "loss" else {"loss": loss, "index": index}

    module, wanted = Module(), Classifier()
    fit(module, tacit.lightning.Penalty(STRENGTH))
    by_hand(wanted, STRENGTH)
    assert_same_weights(module, wanted)


def test_the_penalty_in_backward_is_wrong_under_accumulation_and_the_callback_is_not() -> None:
    """Why there is a callback: the loss that reaches `backward` is divided, so its squared norm is divided twice."""

    class InBackward(Classifier):
        def backward(self, loss: Tensor, *arguments: Any, **named: Any) -> None:
            tacit.GradientPenalty(self, STRENGTH).backward(lambda: loss)

    naive, module, wanted = InBackward(), Classifier(), Classifier()
    fit(naive, accumulate_grad_batches=4)
    fit(module, tacit.lightning.Penalty(STRENGTH), accumulate_grad_batches=4)
    parameters = list(wanted.parameters())
    for inputs, targets in DataLoader(data(), batch_size=BATCH):
        loss = F.cross_entropy(wanted.network(inputs), targets)
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        (0.25 * (loss + STRENGTH / 4 * sum(part.square().sum() for part in first))).backward()
    torch.optim.SGD(parameters, lr=0.1).step()
    assert_same_weights(module, wanted)
    with pytest.raises(AssertionError):
        assert_same_weights(naive, wanted)


def test_the_penalty_is_logged_beside_what_the_module_logs() -> None:
    callback = tacit.lightning.Penalty(STRENGTH)
    trainer = fit(Classifier(), callback)
    seen = trainer.callback_metrics
    torch.testing.assert_close(seen["tacit/penalty"], STRENGTH / 4 * seen["tacit/gradient_squared_norm"])
    assert seen["calls"] == EXAMPLES // BATCH
    assert "tacit/penalty" not in fit(Classifier(), tacit.lightning.Penalty(STRENGTH, log=False)).callback_metrics


def test_what_a_step_logs_counts_once_though_an_approximate_method_runs_it_several_times() -> None:
    module = Classifier()
    trainer = fit(module, tacit.lightning.Penalty(STRENGTH, method="finite_difference"))
    assert module.calls > EXAMPLES // BATCH
    assert trainer.callback_metrics["calls"] == EXAMPLES // BATCH
    assert "log" not in module.__dict__


def test_a_batch_without_a_loss_is_skipped() -> None:
    class Module(Classifier):
        def training_step(self, batch: Any, index: int) -> Any:
            loss = super().training_step(batch, index)
            return None if index >= 2 else loss

    module, wanted = Module(), Classifier()
    fit(module, tacit.lightning.Penalty(STRENGTH))
    by_hand(wanted, STRENGTH, steps=2)
    assert_same_weights(module, wanted)


def test_the_module_is_left_as_it_was() -> None:
    module = Classifier()
    fit(module, tacit.lightning.Penalty(STRENGTH))
    assert "training_step" not in module.__dict__

    class Raising(Classifier):
        def training_step(self, batch: Any, index: int) -> Any:
            raise KeyError("broken")

    module = Raising()
    with pytest.raises(KeyError):
        fit(module, tacit.lightning.Penalty(STRENGTH))
    assert "training_step" not in module.__dict__


def test_checkpoints_hold_the_step_and_the_coin(tmp_path: Path) -> None:
    first = tacit.lightning.Penalty(STRENGTH, probability=0.5)
    fit(Classifier(), first).save_checkpoint(tmp_path / "state.ckpt")
    stored = torch.load(tmp_path / "state.ckpt", weights_only=True)["callbacks"]
    (state,) = [value for name, value in stored.items() if "Penalty" in name]
    assert state["steps"] == EXAMPLES // BATCH
    second = tacit.lightning.Penalty(STRENGTH, probability=0.5)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, callbacks=[second],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Classifier(), DataLoader(data(), batch_size=BATCH), ckpt_path=tmp_path / "state.ckpt")
    assert second.state_dict()["steps"] == 2 * (EXAMPLES // BATCH)
    third = tacit.GradientPenalty(nn.Linear(1, 1), STRENGTH, probability=0.5)
    for _ in range(2 * (EXAMPLES // BATCH)):
        third.loss(lambda: third.model(torch.ones(1, 1)).sum())
    assert second.state_dict()["seed"] == third.state_dict()["seed"]


class Manual(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


def factored(parameters: Any, **settings: Any) -> Any:
    return tacit.FactoredSGD(nn.Linear(1, 1), lr=0.1, strength=0.1)


@pytest.mark.parametrize(
    "module,settings,sentence",
    [
        (lambda: Manual(), {}, r"Manual uses manual optimization.*self\.manual_backward\(penalty\.loss\(closure\)\)"),
        (lambda: Classifier(torch.optim.LBFGS), {}, "LBFGS searches along the loss, and the gradient that it gets"),
        (lambda: Classifier(factored), {}, "FactoredSGD applies the penalty itself"),
        (
            lambda: Classifier(tacit.NStepSGD, inner_steps=2),
            {"accumulate_grad_batches": 2},
            "NStepSGD .* found accumulate_grad_batches=2, expected 1",
        ),
    ],
)
def test_what_would_be_wrong_is_refused_by_name(module: Any, settings: Any, sentence: str) -> None:
    with pytest.raises(tacit.InputError, match=sentence):
        fit(module(), tacit.lightning.Penalty(STRENGTH), **settings)


def test_closure_optimizers_are_refused_in_float16() -> None:
    from lightning.pytorch.plugins import MixedPrecision

    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    with pytest.raises(
        tacit.InputError, match="NStepSGD evaluates a closure, and precision='16-mixed' calls step with"
    ):
        fit(Classifier(tacit.NStepSGD, inner_steps=2), tacit.lightning.Penalty(STRENGTH), plugins=[plugin])


def test_an_untested_strategy_is_refused_by_name() -> None:
    from lightning.pytorch.strategies import Strategy

    from tacit.integrations.lightning_refusals import refuse_strategy

    class ShardingStrategy(Strategy):
        pass

    ShardingStrategy.__abstractmethods__ = frozenset()
    with pytest.raises(tacit.InputError, match=r"the strategy is ShardingStrategy; .* Use strategy='ddp'"):
        refuse_strategy(ShardingStrategy())


@pytest.mark.parametrize(
    "options,sentence",
    [
        ({"strength": -1.0}, "strength=-1"),
        ({"strength": 0.1, "metod": "gram"}, "option 'metod' is unknown"),
        ({"strength": 0.1, "method": "best"}, "method='best' is unknown"),
        (
            {"strength": 0.1, "micro_batch_size": 2},
            "micro_batch_size=2 without sampled.*use smaller batches with accumulate_grad_bat",
        ),
    ],
)
def test_wrong_options_are_refused_when_the_callback_is_made(options: Any, sentence: str) -> None:
    with pytest.raises(tacit.InputError, match=sentence):
        tacit.lightning.Penalty(**options)


def test_fabric_takes_only_a_model_that_it_has_set_up() -> None:
    from lightning.fabric import Fabric

    with pytest.raises(tacit.InputError, match="model is a Linear that Fabric has not set up"):
        tacit.lightning.FabricPenalty(nn.Linear(2, 1), STRENGTH)
    penalty = tacit.lightning.FabricPenalty(Fabric(accelerator="cpu").setup(nn.Linear(2, 1)), STRENGTH)
    with pytest.raises(tacit.InputError, match=r"Use fabric\.backward\(penalty\.loss\(closure\)\)"):
        penalty.backward(lambda: penalty.model(torch.ones(1, 2)).sum())
    assert list(penalty.parameters) == ["weight", "bias"]


def test_fabric_still_refuses_a_backward_of_its_own_in_mixed_precision() -> None:
    from lightning.fabric import Fabric

    model = Fabric(accelerator="cpu", precision="bf16-mixed").setup(nn.Linear(2, 1))
    tacit.lightning.FabricPenalty(model, STRENGTH).loss(lambda: model(torch.ones(1, 2)).sum())
    with pytest.raises(RuntimeError, match=r"fabric\.backward"):
        model(torch.ones(1, 2)).sum().backward()
    penalised = tacit.lightning.FabricPenalty(model, STRENGTH).loss(lambda: model(torch.ones(1, 2)).sum())
    with pytest.raises(RuntimeError, match=r"fabric\.backward"):
        penalised.backward()


@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_noise_scale_is_that_of_a_recorder_in_a_plain_loop(accumulated: int) -> None:
    """Clipping is on, and comes after the gradients were read."""
    callback = tacit.lightning.NoiseScale(every=2, window=2)
    module, plain = Classifier(), Classifier()
    trainer = fit(module, callback, gradient_clip_val=0.01, accumulate_grad_batches=accumulated)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    recorder = tacit.Recorder(plain, batch_size=BATCH * accumulated, train_size=EXAMPLES, every=2, window=2)
    for inputs, targets in DataLoader(data(), batch_size=BATCH * accumulated):
        optimizer.zero_grad()
        F.cross_entropy(plain.network(inputs), targets).backward()
        recorder.after_backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
        optimizer.step()
    assert len(callback.recorder.rows) == 2 // accumulated
    for found, wanted in zip(callback.recorder.rows, recorder.rows, strict=True):
        assert found.pop("kind") == wanted.pop("kind")
        assert found == pytest.approx(wanted, rel=1e-9)
    assert trainer.callback_metrics["tacit/gradient_covariance_trace"] == pytest.approx(
        recorder.rows[-1]["gradient_covariance_trace"]
    )


def test_the_noise_scale_leaves_penalised_gradients_out() -> None:
    """Steps 1 and 3 of 4 are plain; a recorder that reads these gradients only must find the same."""
    callback = tacit.lightning.NoiseScale(every=100, window=2)
    fit(Classifier(), tacit.lightning.Penalty(STRENGTH, every=2), callback)
    plain = Classifier()
    penalty, optimizer = tacit.GradientPenalty(plain, STRENGTH, every=2), torch.optim.SGD(plain.parameters(), lr=0.1)
    squares, total = [], 0.0
    for step, (inputs, targets) in enumerate(DataLoader(data(), batch_size=BATCH)):
        optimizer.zero_grad()
        penalty.backward(lambda: F.cross_entropy(plain.network(inputs), targets))  # noqa: B023
        if step % 2:
            gradient = torch.cat([parameter.grad.reshape(-1) for parameter in plain.parameters()])
            squares.append(float(gradient @ gradient))
            total = total + gradient
        optimizer.step()
    (row,) = callback.recorder.rows
    assert row["implicit_regularizer"] == pytest.approx(sum(squares) / 2 / 4, rel=1e-9)
    variance = (sum(squares) / 2 - float(total @ total) / 4) / (1 / BATCH - 1 / (2 * BATCH))
    assert row["gradient_covariance_trace"] == pytest.approx((EXAMPLES - 1) / EXAMPLES * variance, rel=1e-9)


def test_checkpoints_hold_the_rows_of_the_noise_scale(tmp_path: Path) -> None:
    first, second = (tacit.lightning.NoiseScale(every=2, window=2) for _ in range(2))
    fit(Classifier(), first).save_checkpoint(tmp_path / "state.ckpt")
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, callbacks=[second],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Classifier(), DataLoader(data(), batch_size=BATCH), ckpt_path=tmp_path / "state.ckpt")
    assert second.recorder.rows[:2] == first.recorder.rows
    assert [row["step"] for row in second.recorder.rows] == [1, 3, 5, 7]


def test_a_second_fit_goes_on_counting_steps() -> None:
    callback = tacit.lightning.Penalty(STRENGTH)
    for runs in (1, 2):
        fit(Classifier(), callback)
        assert callback.state_dict()["steps"] == runs * (EXAMPLES // BATCH)
        assert callback.penalty is None


def by_hand_in_groups(module: Any, strengths: list[float], *, accumulated: int) -> list[tuple[float, float, float]]:
    """One number per batch: its strength. Return (penalty, squared norm, share of the gradient) of each batch."""
    optimizer, parameters = torch.optim.SGD(module.parameters(), lr=0.1), list(module.parameters())
    seen = []
    for place, (inputs, targets) in enumerate(DataLoader(data(), batch_size=BATCH)):
        loss = F.cross_entropy(module.network(inputs), targets)
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        norm = sum(part.square().sum() for part in first)
        term = strengths[place] / 4 * norm
        second = torch.autograd.grad(term, parameters, retain_graph=True)
        share = (sum(part.square().sum() for part in second) / norm).sqrt()
        seen.append((float(term.detach()), float(norm.detach()), float(share.detach())))
        ((loss + term) / accumulated).backward()
        if (place + 1) % accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()
    return seen


def falling(step: int) -> float:
    return STRENGTH / (1 + step)


@pytest.mark.parametrize("every,strengths", [(1, [0, 0, 1, 1]), (2, [0, 0, None, None])])
def test_schedules_and_every_count_optimizer_steps(every: int, strengths: list[Any]) -> None:
    module, wanted = Classifier(), Classifier()
    fit(module, tacit.lightning.Penalty(falling, every=every), accumulate_grad_batches=2)
    by_hand_in_groups(wanted, [0.0 if step is None else every * falling(step) for step in strengths], accumulated=2)
    assert_same_weights(module, wanted)


@pytest.mark.parametrize("log_every", [1, 2])
def test_the_log_is_the_mean_over_penalised_batches_since_the_last(log_every: int, tmp_path: Path) -> None:
    """Two batches a step and every second step penalised: the last batch of a log alone would have 0."""
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)
    rows: list[dict[str, float]] = []
    logger.log_metrics = lambda metrics, step=None: rows.append(dict(metrics))
    penalty = tacit.lightning.Penalty(STRENGTH, every=2, method="double_backward")
    fit(Classifier(), penalty, logger=logger, log_every_n_steps=log_every, accumulate_grad_batches=2)
    seen = by_hand_in_groups(Classifier(), [2 * STRENGTH] * 2 + [0.0] * 2, accumulated=2)[:2]
    steps = [row for row in rows if "tacit/penalty" in row]
    assert len(steps) == 2 // log_every
    row = steps[0]
    for place, name in enumerate(("penalty", "gradient_squared_norm", "gradient_share")):
        assert row[f"tacit/{name}"] == pytest.approx(sum(each[place] for each in seen) / 2, rel=1e-6)
    assert row["tacit/penalised_share"] == 1 / log_every
    assert steps[-1]["tacit/penalised_share"] == (0.0 if log_every == 1 else 0.5)


def test_the_penalty_is_in_the_progress_bar_on_request() -> None:
    shown = fit(Classifier(), tacit.lightning.Penalty(STRENGTH, progress_bar=True)).progress_bar_metrics
    assert {"tacit/penalty", "tacit/gradient_share"} <= set(shown)
    assert "tacit/penalty" not in fit(Classifier(), tacit.lightning.Penalty(STRENGTH)).progress_bar_metrics


def test_logging_reads_no_number_off_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Waits(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    waits, log = Waits(), tacit.lightning.Penalty._log

    def counted(*arguments: Any) -> None:
        with waits:
            log(*arguments)

    monkeypatch.setattr(tacit.lightning.Penalty, "_log", counted)
    fit(Classifier(), tacit.lightning.Penalty(STRENGTH, every=2))
    assert waits.count == 0
    with waits:
        float(torch.ones(()))
    assert waits.count == 1


def test_a_strength_passed_anew_wins_on_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit(Classifier(), tacit.lightning.Penalty(0.5)).save_checkpoint(tmp_path / "state.ckpt")
    again = tacit.lightning.Penalty(50.0)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, callbacks=[again],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Classifier(), DataLoader(data(), batch_size=BATCH), ckpt_path=tmp_path / "state.ckpt")
    assert again.state_dict()["strength"] == 50.0
    assert again.state_dict()["steps"] == 2 * (EXAMPLES // BATCH)
    assert "the strength passed now, 50; the checkpoint's was 0.5" in caplog.text


class Replacing(pl.Callback):
    """Puts another training_step onto the module once training has begun."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.training_step = lambda batch, batch_idx: F.cross_entropy(pl_module.network(batch[0]), batch[1])


class OwnBackward(Classifier):
    def backward(self, loss: Tensor, *arguments: Any, **named: Any) -> None:
        F.cross_entropy(self.network(data()[:][0]), data()[:][1]).backward()


@pytest.mark.parametrize(
    "module,others,sentence",
    [
        (Classifier, [Replacing()], r"no call reached the penalty .* Classifier\.training_step was replaced after"),
        (OwnBackward, [], r"OwnBackward\.backward did not go through it .* Call backward on the loss that it gets"),
    ],
)
def test_a_module_that_goes_past_the_penalty_is_refused_before_the_weights_change(
    module: Any, others: list[Any], sentence: str
) -> None:
    made, untouched = module(), module()
    with pytest.raises(tacit.InputError, match=sentence):
        fit(made, tacit.lightning.Penalty(STRENGTH), *others)
    assert_same_weights(made, untouched)


def test_a_training_step_that_was_replaced_before_training_is_penalised() -> None:
    class Early(pl.Callback):
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            own = pl_module.training_step
            pl_module.training_step = lambda batch, batch_idx: 2 * own(batch, batch_idx)

    module, wanted = Classifier(), Classifier()
    fit(module, tacit.lightning.Penalty(STRENGTH), Early())
    parameters, optimizer = list(wanted.parameters()), torch.optim.SGD(wanted.parameters(), lr=0.1)
    for inputs, targets in DataLoader(data(), batch_size=BATCH):
        loss = 2 * F.cross_entropy(wanted.network(inputs), targets)
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        optimizer.zero_grad()
        (loss + STRENGTH / 4 * sum(part.square().sum() for part in first)).backward()
        optimizer.step()
    assert_same_weights(module, wanted)


def test_a_step_that_takes_its_batches_itself_needs_a_method_of_one_pass() -> None:
    class Iterating(Classifier):
        def training_step(self, dataloader_iter: Any) -> Any:
            batch, *_ = next(dataloader_iter)
            return F.cross_entropy(self.network(batch[0]), batch[1])

    with pytest.raises(
        tacit.InputError, match=r"method='finite_difference' runs it several times, .* method='double_backward'"
    ):
        fit(Iterating(), tacit.lightning.Penalty(STRENGTH, method="finite_difference"))
    module, wanted = Iterating(), Classifier()
    fit(module, tacit.lightning.Penalty(STRENGTH, method="double_backward"))
    by_hand(wanted, STRENGTH)
    assert_same_weights(module, wanted)
