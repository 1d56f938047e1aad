"""The penalty in the `Trainer` of Transformers, as a mixin: callbacks cannot replace its loss.

The loss of one batch is a token sum over the tokens of all batches that one optimizer step accumulates:

    L = w Ĉ,   w = W (own tokens) / (all tokens),   Ĉ the mean loss of this batch on one of W devices

and an optimizer step adds up the gradients of w (Ĉ + (λ/4)‖∇Ĉ‖²). A penalty of L itself would carry w² in place of w.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tacit._errors import InputError
from tacit.integrations.frameworks import load
from tacit.integrations.options import check_penalty_options
from tacit.integrations.token_weights import TokenWeights
from tacit.integrations.transformers_refusals import refuse_settings
from tacit.penalty import GradientPenalty

_transformers: Any = load("transformers")
_KEY = "TacitPenalty"  # in trainer_state.json


class PenaltyMixin:
    """`class MyTrainer(PenaltyMixin, Trainer)`, then `MyTrainer(…, penalty=dict(strength=2**-6))`.

    Training minimises Ĉ + (λ/4)‖∇Ĉ‖² in place of Ĉ, for the mean loss Ĉ of each batch of
    `per_device_train_batch_size` examples; an optimizer step takes the mean over accumulated batches and devices, with
    the token weights that `Trainer` uses. Evaluation is left alone. `penalty` holds the arguments of
    `tacit.GradientPenalty` without the model; `self.gradient_penalty` is the object. `tacit/penalty` is logged beside
    the loss, and checkpoints hold the penalty's state.
    """

    model: Any  # these two are made by Trainer
    accelerator: Any

    def __init__(self, *arguments: Any, penalty: Mapping[str, Any], **named: Any) -> None:
        if not isinstance(penalty, Mapping) or "strength" not in penalty:
            raise InputError(f"penalty={penalty!r}; expected a dict with the strength, such as dict(strength=2**-6).")
        options = {name: value for name, value in penalty.items() if name != "strength"}
        check_penalty_options(penalty["strength"], options, accumulation="gradient_accumulation_steps")
        super().__init__(*arguments, **named)
        refuse_settings(self)
        self._penalty_arguments = dict(penalty)
        self.gradient_penalty = GradientPenalty(self.model, **penalty)
        self.add_callback(_State(self))  # type: ignore[attr-defined]
        self._token_weights = TokenWeights(self)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None, **named: Any
    ) -> Any:
        def compute(**more: Any) -> Any:
            # A copy, since label smoothing takes the labels out.
            return super(PenaltyMixin, self).compute_loss(  # type: ignore[misc]
                model, dict(inputs), num_items_in_batch=num_items_in_batch, **named, **more
            )

        if not torch.is_grad_enabled():
            return compute(return_outputs=return_outputs)
        plain = functools.partial(super().compute_loss, self.accelerator.unwrap_model(model))  # type: ignore[misc]
        weight = self._token_weights.of(inputs, num_items_in_batch, plain)
        seen: list[Any] = []

        def closure() -> Tensor:
            loss, outputs = compute(return_outputs=True)
            seen.append(outputs)
            return loss / weight

        penalised = weight * self.gradient_penalty.loss(closure, scaler=self.accelerator.scaler)
        return (penalised, seen[0]) if return_outputs else penalised

    def log(self, logs: dict[str, float], *arguments: Any, **named: Any) -> None:
        last = self.gradient_penalty.last
        if "loss" in logs and last is not None:
            logs = {**logs, "tacit/penalty": float(last.penalty)}
        super().log(logs, *arguments, **named)  # type: ignore[misc]


class _State(_transformers.TrainerCallback):  # type: ignore[misc]
    """Keeps the penalty's state in `trainer_state.json`, which every checkpoint has."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        # Anew, since `model_init` makes another model for each training, and each training starts at step 0.
        self.trainer.gradient_penalty = GradientPenalty(self.trainer.model, **self.trainer._penalty_arguments)
        stored = state.stateful_callbacks.get(_KEY)
        if stored is not None:
            self.trainer.gradient_penalty.load_state_dict(_decoded(stored["attributes"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        attributes = _encoded(self.trainer.gradient_penalty.state_dict())
        state.stateful_callbacks[_KEY] = {"args": {}, "attributes": attributes}


def _encoded(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state as JSON: tensors of bytes in base64."""
    return {
        name: {"base64": base64.b64encode(bytes(value.tolist())).decode()} if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


def _decoded(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: torch.tensor(list(base64.b64decode(value["base64"])), dtype=torch.uint8)
        if isinstance(value, Mapping) and "base64" in value
        else value
        for name, value in state.items()
    }
