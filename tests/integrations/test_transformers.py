"""Transformers' mixin and callback: token weights, logs, state, refusals. The matrix compares weights."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tacit

pytest.importorskip("transformers", reason="transformers is not installed; make integrations runs this")

import transformers
import transformers_runs
from transformers_runs import (
    CLOSE,
    RATE,
    STRENGTH,
    TOKENS,
    WORDS,
    Penalised,
    by_hand,
    difference,
    gpt2,
    llama,
    rows,
    token_mean,
    train,
)


@pytest.mark.parametrize("make,counts_first", [(llama, False), (gpt2, True)])
def test_token_weights_are_exact_with_unequal_lengths(make: Any, counts_first: bool, tmp_path: Path) -> None:
    """Trainer counts the tokens that Llama predicts, and for GPT-2 also the first label of each row."""
    model, wanted = make(), make()
    train(model, tmp_path, kind=Penalised, penalty={"strength": STRENGTH})
    by_hand(wanted, counts_first_label=counts_first)
    assert difference(model, wanted) < CLOSE


def test_a_penalty_on_the_loss_of_compute_loss_is_wrong_and_the_mixin_is_not(tmp_path: Path) -> None:
    """Why there is a mixin: the loss is divided by the tokens of all accumulated batches."""

    class Naive(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
            penalty = tacit.GradientPenalty(model, STRENGTH)
            return penalty.loss(lambda: transformers.Trainer.compute_loss(self, model, inputs, *arguments, **named))

    naive, wanted = llama(), llama()
    train(naive, tmp_path, kind=Naive)
    by_hand(wanted)
    assert difference(naive, wanted) > 100 * CLOSE


def test_without_strength_the_mixin_changes_nothing(tmp_path: Path) -> None:
    model, wanted = llama(), llama()
    train(model, tmp_path, kind=Penalised, penalty={"strength": 0.0})
    train(wanted, tmp_path)
    assert difference(model, wanted) < 1e-6  # weights are multiplied and divided by w: rounding of float32


def test_label_smoothing_keeps_the_labels_for_the_next_pass(tmp_path: Path) -> None:
    model, wanted = llama(), llama()
    train(model, tmp_path, kind=Penalised, penalty={"strength": STRENGTH}, label_smoothing_factor=0.2)
    by_hand(wanted, loss_of=functools.partial(token_mean, smoothing=0.2))
    assert difference(model, wanted) < CLOSE


def test_a_model_that_ignores_the_token_count_is_weighted_as_trainer_weights_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """BERT: `Trainer` leaves the division to the model, and the model does not divide; the means are added up."""

    def bert() -> Any:
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=WORDS, max_position_embeddings=TOKENS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=12, initializer_range=0.3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return transformers.BertForMaskedLM(config)

    model, wanted, plain = bert(), bert(), bert()
    train(model, tmp_path, kind=Penalised, penalty={"strength": STRENGTH})
    assert "BertForMaskedLM ignores num_items_in_batch" in caplog.text
    by_hand(
        wanted,
        loss_of=lambda model, inputs, labels: model(input_ids=inputs, labels=labels).loss,
        weight_of=lambda labels, step: 1.0,
    )
    assert difference(model, wanted) < CLOSE
    train(plain, tmp_path)
    assert difference(plain, wanted) > 100 * CLOSE


def test_a_loss_with_a_term_that_no_token_has_is_refused_by_name(tmp_path: Path) -> None:
    """As the auxiliary loss of mixtures of experts: no weight of this batch makes it part of a mean."""

    def with_auxiliary(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        how = "mean" if num_items_in_batch is None else "sum"
        logits = outputs["logits"][:, :-1].reshape(-1, WORDS)
        loss = nn.functional.cross_entropy(logits, labels[:, 1:].reshape(-1), reduction=how)
        return (loss if num_items_in_batch is None else loss / num_items_in_batch) + 0.1

    with pytest.raises(tacit.InputError, match=r"expected the share of its tokens, 0\.\d+, as their ratio"):
        train(llama(), tmp_path, kind=Penalised, penalty={"strength": STRENGTH}, compute_loss_func=with_auxiliary)


def test_a_loss_function_that_divides_by_the_token_count_is_exact(tmp_path: Path) -> None:
    def token_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        how = "mean" if num_items_in_batch is None else "sum"
        logits = outputs["logits"][:, :-1].reshape(-1, WORDS)
        loss = nn.functional.cross_entropy(logits, labels[:, 1:].reshape(-1), reduction=how)
        return loss if num_items_in_batch is None else loss / num_items_in_batch

    model, wanted = llama(), llama()
    train(model, tmp_path, kind=Penalised, penalty={"strength": STRENGTH}, compute_loss_func=token_loss)
    by_hand(wanted)
    assert difference(model, wanted) < CLOSE


def test_a_batch_without_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows()
    empty = [{**row, "labels": torch.full((TOKENS,), -100)} if i in (2, 3) else row for i, row in enumerate(whole)]
    monkeypatch.setattr(transformers_runs, "rows", lambda: empty)
    with pytest.raises(tacit.InputError, match="a batch has no token to predict"):
        train(llama(), tmp_path, kind=Penalised, penalty={"strength": STRENGTH})


def test_checkpoints_hold_the_step_and_the_coin_as_json(tmp_path: Path) -> None:
    penalty = {"strength": STRENGTH, "probability": 0.5}
    trainer = train(llama(), tmp_path, kind=Penalised, penalty=penalty, save_strategy="steps", save_steps=1)
    stored = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
    assert stored["stateful_callbacks"]["TacitPenalty"]["attributes"]["steps"] == 4
    seed = trainer.gradient_penalty.state_dict()["seed"]
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert trainer.gradient_penalty.steps == 4
    assert trainer.gradient_penalty.state_dict()["seed"] == seed
    trainer.train()
    assert trainer.gradient_penalty.steps == 4


def test_a_model_made_for_each_training_is_penalised(tmp_path: Path) -> None:
    def init() -> Any:
        return llama()

    trainer = train(None, tmp_path, kind=Penalised, penalty={"strength": STRENGTH}, model_init=init)
    assert trainer.gradient_penalty.model is trainer.model
    assert float(trainer.gradient_penalty.last.penalty) > 0


@pytest.mark.parametrize(
    "penalty,sentence",
    [
        (0.1, "penalty=0.1; expected a dict with either the strength or the radius"),
        ({"strength": 0.1, "metod": "gram"}, "option 'metod' is unknown"),
        ({"strength": 0.1, "micro_batch_size": 2}, "micro_batch_size=2 without sampled.*gradient_accumulation_steps"),
    ],
)
def test_wrong_options_are_refused_before_the_trainer_is_made(penalty: Any, sentence: str) -> None:
    with pytest.raises(tacit.InputError, match=sentence):
        Penalised(penalty=penalty)


@pytest.mark.parametrize(
    "settings,sentence",
    [
        ({"optim": "lomo"}, "optim=.*lomo.* updates parameters inside backward"),
        ({"use_liger_kernel": True}, "use_liger"),
    ],
)
def test_settings_without_a_second_derivative_are_refused_by_name(settings: Any, sentence: str, tmp_path: Path) -> None:
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    for name, value in settings.items():  # set afterwards: Trainer itself asks for packages that are not here
        setattr(arguments, name, value)
    with pytest.raises(tacit.InputError, match=sentence):
        Penalised(model=llama(), args=arguments, train_dataset=rows(), penalty={"strength": STRENGTH})


def test_trainers_of_trl_are_refused_by_name(tmp_path: Path) -> None:
    other = type("SFTTrainer", (transformers.Trainer,), {"__module__": "trl.trainer.sft_trainer"})
    kind = type("Mixed", (tacit.transformers.PenaltyMixin, other), {})
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    with pytest.raises(tacit.InputError, match="the trainer is TRL's SFTTrainer; its fused loss has no second"):
        kind(model=llama(), args=arguments, train_dataset=rows(), penalty={"strength": STRENGTH})


def test_closure_optimizers_are_refused_by_name(tmp_path: Path) -> None:
    model = llama()
    optimizer = tacit.NStepSGD(model.parameters(), lr=RATE, inner_steps=2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    with pytest.raises(tacit.InputError, match="the optimizer is NStepSGD, which needs a closure"):
        Penalised(model=model, args=arguments, optimizers=(optimizer, schedule), penalty={"strength": STRENGTH})


def test_the_noise_scale_is_read_before_clipping(tmp_path: Path) -> None:
    callbacks: list[Any] = []

    def noise(trainer: Any) -> Any:
        callbacks.append(tacit.transformers.NoiseScale(trainer, every=2, window=2))
        return callbacks[0]

    clipped, free = llama(), llama()
    trainer = train(clipped, tmp_path, callback=noise, max_grad_norm=1e-3, logging_steps=1)
    (row,) = callbacks[0].recorder.rows
    assert row["batch_size"] == 4
    assert "training_step" not in trainer.__dict__
    logged = [entry for entry in trainer.state.log_history if "tacit/gradient_covariance_trace" in entry]
    assert [entry["tacit/gradient_covariance_trace"] for entry in logged] == [row["gradient_covariance_trace"]]
    # The first of the two steps starts from the same weights as without clipping; gradients are far above the limit.
    callbacks.clear()
    train(free, tmp_path, callback=noise)
    assert row["implicit_regularizer"] > 1e-3
    assert row["implicit_regularizer"] == pytest.approx(callbacks[0].recorder.rows[0]["implicit_regularizer"], rel=0.5)


def test_the_noise_scale_of_penalised_gradients_is_refused(tmp_path: Path) -> None:
    def noise(trainer: Any) -> Any:
        return tacit.transformers.NoiseScale(trainer, every=2, window=2)

    with pytest.raises(tacit.InputError, match=r"a penalty of strength 0\.5, .* the window needs plain ones"):
        train(llama(), tmp_path, kind=Penalised, penalty={"strength": STRENGTH}, callback=noise)
