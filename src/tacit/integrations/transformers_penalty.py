"""The penalty, or SAM, in the `Trainer` of Transformers, as a mixin: callbacks cannot replace its loss.

The loss of one batch is a token sum over the tokens of all batches that one optimizer step accumulates:

    L = w Ĉ,   w = W (own tokens) / (all tokens),   Ĉ the mean loss of this batch on one of W devices

and an optimizer step adds up the gradients of w (Ĉ + (λ/4)‖∇Ĉ‖²). A penalty of L itself would carry w² in place of w.

The mixin puts a `compute_loss` onto the trainer itself, around the one that its class has, wherever that is in the
order of classes: a loss of one's own, and terms added to that of `super()`, are penalised too.
"""

from __future__ import annotations

import base64
import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from tacit._util.errors import InputError
from tacit.integrations.frameworks import load
from tacit.integrations.options import (
    CallsOfStep,
    GradientRule,
    check_options,
    finds_direction,
    logs_share,
    needs_batch,
)
from tacit.integrations.replaced import nothing, replaced
from tacit.integrations.step_means import StepMeans
from tacit.integrations.token_weights import TokenWeights
from tacit.integrations.transformers_refusals import (
    refuse_missing_init,
    refuse_order,
    refuse_settings,
    refuse_unreached_penalty,
)
from tacit.integrations.used_outputs import refusing_backward
from tacit.penalty import GradientPenalty, PenaltyRecord, SharpnessAware, SharpnessAwareRecord

_transformers: Any = load("transformers")
_KEYS = {GradientPenalty: "TacitPenalty", SharpnessAware: "TacitSharpnessAware"}  # in trainer_state.json


class PenaltyMixin:
    """`class MyTrainer(PenaltyMixin, Trainer)`, then `MyTrainer(…, penalty=dict(strength=2**-6))`.

    Training minimises Ĉ + (λ/4)‖∇Ĉ‖² in place of Ĉ, for the mean loss Ĉ of each batch of
    `per_device_train_batch_size` examples; an optimizer step takes the mean over accumulated batches and devices, with
    the token weights that `Trainer` uses. Evaluation is left alone. A `compute_loss` of one's own is penalised, in this
    class or another. `penalty` holds the arguments of `tacit.GradientPenalty` without the model;
    `self.gradient_penalty` is the object. `micro_batch_size=b, sampled=q` draws q micro-batches of b examples of each
    batch; `sampled=q` alone takes the penalty of q of the batches that an optimizer step accumulates. Schedules and
    `every` count optimizer steps; the coin of `probability` is one of each batch. Checkpoints hold the penalty's state.

    `penalty=dict(radius=0.05)` has sharpness-aware minimization in its place, with the arguments of
    `tacit.SharpnessAware`: each batch's gradient at ω + ρ g/‖g‖, loss and outputs from there too. `sampled=n` takes g
    from n examples of the batch. `self.gradient_penalty` is then the `SharpnessAware`.

    Beside `loss`, over the same steps and on its scale, `Trainer` logs `tacit/penalty`, the mean over penalised
    batches; `tacit/gradient_share`, the penalty's part of the gradient over the plain part, where it costs nothing; and
    `tacit/penalised_share` where not all batches are penalised. With a radius it is `tacit/direction_norm`, ‖g‖.
    """

    model: Any  # these four are made by Trainer
    accelerator: Any
    state: Any
    compute_loss: Any

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        refuse_order(cls, PenaltyMixin, _transformers.Trainer)

    def __init__(self, *arguments: Any, penalty: Mapping[str, Any], **named: Any) -> None:
        if not isinstance(penalty, Mapping) or ("strength" in penalty) == ("radius" in penalty):
            raise InputError(
                f"penalty={penalty!r}; expected a dict with either the strength or the radius, such as "
                "dict(strength=2**-6) or dict(radius=0.05)."
            )
        self._rule_kind: type[GradientRule] = GradientPenalty if "strength" in penalty else SharpnessAware
        value = "strength" if "strength" in penalty else "radius"
        options = {name: given for name, given in penalty.items() if name != value}
        check_options(self._rule_kind, penalty[value], options, accumulation="gradient_accumulation_steps")
        super().__init__(*arguments, **named)
        refuse_settings(self)
        self._penalty_arguments = dict(penalty)
        self._penalty_calls = self._penalty_gradients = 0  # in this training: losses made, and gradients handed out
        self._inside_penalty = False
        self._penalty_means, self._calls_of_step = StepMeans(), CallsOfStep()
        self.gradient_penalty = self._new_rule()
        self.add_callback(_State(self))  # type: ignore[attr-defined]
        self._token_weights = TokenWeights(self)
        self._penalise_compute_loss()

    def _new_rule(self) -> GradientRule:
        return self._rule_kind(self.model, **self._penalty_arguments)

    def train(self, *arguments: Any, **named: Any) -> Any:
        refuse_missing_init(self)
        return super().train(*arguments, **named)  # type: ignore[misc]

    def log(self, logs: dict[str, float], *arguments: Any, **named: Any) -> None:
        # Only what Trainer itself logs of a training covers the steps since its last one, on every process at once.
        if "loss" in logs and "learning_rate" in logs and self._penalty_means.micro_batches:
            logs = {**logs, **self._numbers_since_last_log()}
        super().log(logs, *arguments, **named)  # type: ignore[misc]

    def _penalise_compute_loss(self) -> None:
        """Put the penalised loss where `training_step` looks for it, around what is there now."""
        now = self.compute_loss
        if not (isinstance(now, functools.partial) and now.func == self._penalised_loss):
            self.compute_loss = functools.partial(self._penalised_loss, now)

    def _penalised_loss(
        self, compute_loss: Callable[..., Any], model: Any, inputs: Any, *arguments: Any, **named: Any
    ) -> Any:
        """As `compute_loss(model, inputs, return_outputs, num_items_in_batch)`, which is called with what is given."""
        if self._inside_penalty or not torch.is_grad_enabled():
            return compute_loss(model, inputs, *arguments, **named)
        return_outputs, items = (*arguments, *(None, None)[len(arguments) :])[:2]
        return_outputs = named.get("return_outputs", return_outputs)
        items = named.get("num_items_in_batch", items)
        penalty, checked = self.gradient_penalty, functools.partial(self._checked_loss, compute_loss)
        weight = self._token_weights.of(inputs, items, checked)
        cut = needs_batch(penalty)
        if cut:
            self._token_weights.tell_rules_apart(inputs, items, checked)
        seen: list[Any] = []
        training = self.model.training

        def closure(batch: Any = inputs) -> Tensor:
            # Drawn rows, looks in evaluation mode, approximate methods and the direction of SAM compute the loss too:
            # what it logs, and the outputs, are those of the whole batch, once.
            whole = batch is inputs and self.model.training == training
            counts = whole and not seen and not finds_direction(penalty)
            with self._computing(silent=not counts):
                # A copy, since label smoothing and many losses take the labels out.
                found = compute_loss(model, copy.copy(batch), *arguments, **named)
            loss, outputs = found if return_outputs else (found, None)
            if counts:
                seen.append(outputs)
            return loss / (weight if batch is inputs else self._token_weights.of_rows(batch, items))

        scaler, step = self.accelerator.scaler, self.state.global_step
        part = self._calls_of_step.next(penalty, step, getattr(self, "current_gradient_accumulation_steps", 1))
        loss = penalty.loss(closure, *[inputs] if cut else [], scaler=scaler, step=step, **part)
        self._penalty_calls += 1
        assert self.gradient_penalty.last is not None
        loss.register_hook(functools.partial(self._count_gradient, self.gradient_penalty.last))
        return (weight * loss, refusing_backward(seen[0])) if return_outputs else weight * loss

    def _checked_loss(self, compute_loss: Callable[..., Any], inputs: Any, items: Any) -> Tensor:
        """The plain loss of the model without wrappers: no other process needs to take part."""
        with self._computing(silent=True):
            return compute_loss(self.accelerator.unwrap_model(self.model), copy.copy(inputs), num_items_in_batch=items)

    def _count_gradient(self, record: PenaltyRecord | SharpnessAwareRecord, factor: Tensor) -> None:
        """`factor` is what backward brings: all that the trainer multiplied the loss with, and the scaler's factor."""
        self._penalty_gradients += 1
        scaler = self.accelerator.scaler
        if scaler is not None and scaler.is_enabled():
            factor = factor / scaler.scale(torch.ones_like(factor))
        self._penalty_means.add(record, factor)

    def _numbers_since_last_log(self) -> dict[str, float]:
        means, processes = self._penalty_means, self.accelerator.num_processes
        rows = self.accelerator.gather(means.packed(self.accelerator.device)[None])
        whole = StepMeans.from_packed(rows.sum(0), optimizer_steps=means.optimizer_steps)
        means.clear()
        logged = ("penalty", "gradient_share", "direction_norm")
        found = {name: float(value) for name, value in whole.means().items() if name in logged}
        if "penalty" in found:  # one optimizer step of one process has several batches, or a part of the tokens
            found["penalty"] *= float(whole.factors) / (processes * max(whole.optimizer_steps, 1))
        if logs_share(self.gradient_penalty, whole.penalised_share):
            found["penalised_share"] = whole.penalised_share
        return {f"tacit/{name}": value for name, value in found.items()}

    @contextmanager
    def _computing(self, *, silent: bool) -> Iterator[None]:
        self._inside_penalty = True
        try:
            with replaced(self, "log", nothing) if silent else nullcontext():
                yield
        finally:
            self._inside_penalty = False


class _State(_transformers.TrainerCallback):  # type: ignore[misc]
    """Keeps the penalty's state in `trainer_state.json`, which every checkpoint has."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        trainer = self.trainer
        # Anew, since `model_init` makes another model for each training, and each training starts at step 0.
        trainer.gradient_penalty = trainer._new_rule()
        trainer._penalty_calls = trainer._penalty_gradients = 0
        trainer._penalty_means.clear()
        trainer._penalise_compute_loss()  # it may have been replaced since the trainer was made
        stored = state.stateful_callbacks.get(_KEYS[trainer._rule_kind])
        if stored is not None:
            trainer.gradient_penalty.load_state_dict(_decoded(stored["attributes"]))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        refuse_unreached_penalty(self.trainer)
        self.trainer._penalty_means.optimizer_steps += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        attributes = _encoded(self.trainer.gradient_penalty.state_dict())
        state.stateful_callbacks[_KEYS[self.trainer._rule_kind]] = {"args": {}, "attributes": attributes}


def _encoded(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state as JSON: tensors of bytes in base64."""
    return {
        name: {"base64": base64.b64encode(value.numpy().tobytes()).decode()} if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


def _decoded(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: torch.tensor(list(base64.b64decode(value["base64"])), dtype=torch.uint8)
        if isinstance(value, Mapping) and "base64" in value
        else value
        for name, value in state.items()
    }
