"""Losses of one's own in Transformers' `Trainer`: penalised wherever they are written, or refused before a step."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tacit

pytest.importorskip("transformers", reason="transformers is not installed; make integrations runs this")

import transformers
from transformers_runs import CLOSE, STRENGTH, WORDS, Penalised, by_hand, difference, gpt2, llama, token_mean, train

PENALTY = {"strength": STRENGTH}
Mixin = tacit.transformers.PenaltyMixin


def own_loss(*bases: type) -> type:
    """The override of most tutorials: it takes the labels out and ignores the count."""

    class OwnLoss(*bases):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            logits = outputs.logits[:, :-1].reshape(-1, WORDS)
            loss = nn.functional.cross_entropy(logits, labels[:, 1:].reshape(-1), label_smoothing=0.3)
            return (loss, outputs) if return_outputs else loss

    return OwnLoss


def added_term(*bases: type) -> type:
    class AddedTerm(*bases):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
            return super().compute_loss(model, inputs, *arguments, **named) + _square(self.model)

    return AddedTerm


def loss_of_outputs(*bases: type) -> type:
    class LossOfOutputs(*bases):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **named)
            loss = 0.5 * loss + 0.02 * outputs.logits.square().mean()
            return (loss, outputs) if return_outputs else loss

    return LossOfOutputs


def _square(model: Any) -> Tensor:
    return 0.01 * model.lm_head.weight.square().sum()


BY_HAND = {
    own_loss: functools.partial(token_mean, smoothing=0.3),
    added_term: lambda model, inputs, labels: token_mean(model, inputs, labels) + _square(model),
    loss_of_outputs: lambda model, inputs, labels: (
        0.5 * token_mean(model, inputs, labels) + 0.02 * model(input_ids=inputs).logits.square().mean()
    ),
}
PLACES = {
    "with the mixin": lambda own: own(Mixin, transformers.Trainer),
    "in a class below it": lambda own: type("Below", (Mixin, own(transformers.Trainer)), {}),
    "in a class above it": lambda own: own(Penalised),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("own", BY_HAND)
def test_an_own_loss_is_penalised_wherever_it_is_written(own: Any, place: str, tmp_path: Path) -> None:
    model, wanted, plain = llama(), llama(), llama()
    train(model, tmp_path, kind=PLACES[place](own), penalty=PENALTY, gradient_accumulation_steps=1)
    by_hand(wanted, loss_of=BY_HAND[own], accumulation=1)
    by_hand(plain, loss_of=BY_HAND[own], accumulation=1, strength=0.0)
    assert difference(model, wanted) < CLOSE
    assert difference(plain, wanted) > 100 * CLOSE


def test_a_loss_that_ignores_the_count_adds_up_accumulated_batches_as_trainer_does(tmp_path: Path) -> None:
    model, wanted = llama(), llama()
    train(model, tmp_path, kind=own_loss(Mixin, transformers.Trainer), penalty=PENALTY)
    by_hand(wanted, loss_of=BY_HAND[own_loss], weight_of=lambda labels, step: 1.0)
    assert difference(model, wanted) < CLOSE


@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_term_without_tokens_is_part_of_the_only_batch_of_a_step(make: Any, tmp_path: Path) -> None:
    """GPT-2: Trainer counts one label more than the model predicts, and divides the tokens' part alone."""
    model, wanted = make(), make()
    train(model, tmp_path, kind=added_term(Mixin, transformers.Trainer), penalty=PENALTY, gradient_accumulation_steps=1)

    def loss(model: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        counted = labels[:, 0 if make is gpt2 else 1 :].ne(-100).sum()
        share = labels[:, 1:].ne(-100).sum() / counted
        return share * token_mean(model, inputs, labels) + _square(model)

    by_hand(wanted, loss_of=loss, accumulation=1, weight_of=lambda labels, step: 1.0)
    assert difference(model, wanted) < CLOSE


def test_a_term_without_tokens_under_accumulation_is_refused_and_the_remedy_works(tmp_path: Path) -> None:
    kind = added_term(Mixin, transformers.Trainer)
    with pytest.raises(tacit.InputError, match=r"Set trainer\.model_accepts_loss_kwargs = False"):
        train(llama(), tmp_path, kind=kind, penalty=PENALTY)

    class Remedied(kind):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.model_accepts_loss_kwargs = False

    model, wanted = llama(), llama()
    train(model, tmp_path, kind=Remedied, penalty=PENALTY)
    by_hand(wanted, loss_of=BY_HAND[added_term], weight_of=lambda labels, step: 1 / len(step))
    assert difference(model, wanted) < CLOSE


def test_a_loss_that_is_put_onto_the_trainer_later_is_penalised(tmp_path: Path) -> None:
    class Later(Penalised):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            before = self.compute_loss
            self.compute_loss = lambda *arguments, **named: before(*arguments, **named) + _square(self.model)

    model, wanted = llama(), llama()
    train(model, tmp_path, kind=Later, penalty=PENALTY, gradient_accumulation_steps=1)
    by_hand(wanted, loss_of=BY_HAND[added_term], accumulation=1)
    assert difference(model, wanted) < CLOSE


def test_a_loss_that_draws_random_numbers_is_compared_at_the_same_draw(tmp_path: Path) -> None:
    """Its two values, with and without the count, would differ by the draw, and be refused."""

    class Noisy(Penalised):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
            return super().compute_loss(model, inputs, return_outputs, **named) * torch.rand(())

    train(llama(), tmp_path, kind=Noisy, penalty=PENALTY)


def test_what_an_own_loss_logs_is_logged_once_for_each_batch(tmp_path: Path) -> None:
    class Logging(Penalised):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
            self.log({"batch": 1.0})
            return super().compute_loss(model, inputs, return_outputs, **named)

    trainer = train(
        llama(), tmp_path, kind=Logging, penalty={"strength": STRENGTH, "method": "finite_difference", "check_every": 0}
    )
    assert sum("batch" in row for row in trainer.state.log_history) == 4
    assert trainer.log.__func__ is Penalised.log


class OwnStep(Penalised):
    """A training step that calls the penalised loss, and multiplies it."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        model.train()
        loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return loss.detach()


def test_an_own_training_step_that_calls_compute_loss_is_penalised(tmp_path: Path) -> None:
    model, wanted = llama(), llama()
    train(model, tmp_path, kind=OwnStep, penalty=PENALTY)
    by_hand(wanted)
    assert difference(model, wanted) < CLOSE


class SkipsTheLoss(Penalised):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss = model(**inputs).loss
        self.accelerator.backward(loss)
        return loss.detach()


class CallsSuper(Penalised):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return loss.detach()


class AnotherTensor(Penalised):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        loss = model(**inputs).loss
        self.accelerator.backward(loss)
        return loss.detach()


class LossOfUsedOutputs(Penalised):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss, outputs = self.compute_loss(model, inputs, True, num_items_in_batch)
        self.accelerator.backward(loss + outputs.logits.square().mean())
        return loss.detach()


@pytest.mark.parametrize(
    "kind,sentence",
    [
        (SkipsTheLoss, r"no call reached PenaltyMixin .*: InOrder\.training_step does not call self\.compute_loss"),
        (CallsSuper, r"no call reached PenaltyMixin before the first optimizer step.* Use self\.compute_loss\(model"),
        (AnotherTensor, r"called backward on another tensor before the first optimizer step\. Use the loss that self"),
        (LossOfUsedOutputs, r"outputs that the penalised compute_loss returned; .* Make it inside compute_loss"),
    ],
)
def test_a_training_step_that_goes_past_the_penalty_is_refused_before_the_weights_change(
    kind: Any, sentence: str, tmp_path: Path
) -> None:
    model, untouched = llama(), llama()
    with pytest.raises(tacit.InputError, match=sentence):
        train(model, tmp_path, kind=kind, penalty=PENALTY)
    assert difference(model, untouched) == 0


@pytest.mark.parametrize("strength", [0.0, lambda step: 0.1 * (step > 0)])
def test_a_call_at_strength_0_is_a_call(strength: Any, tmp_path: Path) -> None:
    assert train(llama(), tmp_path, kind=Penalised, penalty={"strength": strength}).state.global_step == 2


def test_the_mixin_behind_trainer_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(tacit.InputError, match=r"class T\(Trainer, PenaltyMixin\) .* Use class T\(PenaltyMixin, Tr"):
        type("T", (transformers.Trainer, Mixin), {})

    class Own(transformers.Trainer):
        pass

    with pytest.raises(tacit.InputError, match=r"Use class T\(PenaltyMixin, Own\)"):
        type("T", (Own, Mixin), {})
    type("T", (Mixin, Own), {})
    type("T", (Own, Penalised), {})


def test_a_class_whose_init_goes_past_the_mixin_is_refused_before_training(tmp_path: Path) -> None:
    class Past(Penalised):
        def __init__(self, *arguments: Any, penalty: Any, **named: Any) -> None:
            transformers.Trainer.__init__(self, *arguments, **named)

    with pytest.raises(tacit.InputError, match=r"InOrder\.__init__ did not call that of PenaltyMixin.*Use super"):
        train(llama(), tmp_path, kind=Past, penalty=PENALTY)


@pytest.mark.parametrize("make,counts_first", [(llama, False), (gpt2, True)])
def test_a_loss_function_that_only_divides_by_the_count_is_exact(make: Any, counts_first: bool, tmp_path: Path) -> None:
    """It works in plain Trainer, and raises a TypeError without a count."""

    def token_sum(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs["logits"][:, :-1].reshape(-1, WORDS)
        return nn.functional.cross_entropy(logits, labels[:, 1:].reshape(-1), reduction="sum") / num_items_in_batch

    def by_count(model: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        """Ĉ by the count of Trainer, all that such a loss tells us."""
        first = 0 if counts_first else 1
        return token_mean(model, inputs, labels) * labels[:, 1:].ne(-100).sum() / labels[:, first:].ne(-100).sum()

    def counted(labels: Tensor, step: list[Tensor]) -> float:
        first = 0 if counts_first else 1
        return float(labels[:, first:].ne(-100).sum() / sum(each[:, first:].ne(-100).sum() for each in step))

    model, wanted = make(), make()
    train(model, tmp_path, kind=Penalised, penalty=PENALTY, compute_loss_func=token_sum)
    by_hand(wanted, loss_of=by_count, weight_of=counted)
    assert difference(model, wanted) < CLOSE
