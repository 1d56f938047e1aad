"""What Transformers' `Trainer` multiplies the mean loss of a batch with, when it counts tokens over several batches.

    L = w Ĉ,   w = W (tokens that this batch predicts) / (tokens counted in all batches of the step)

on W devices, with Ĉ the mean over the tokens that this batch predicts. A causal language model predicts all labels but
the first; `Trainer` counts so for most of them, and counts every label for others (GPT-2). And many models ignore the
count (BERT, T5): their L is Ĉ, so that `Trainer` adds up the means of accumulated batches without dividing. Which of
these holds is read off the loss, computed both ways, once. A loss of one's own leaves W out where it never asks for it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from tacit._util.errors import InputError
from tacit.integrations.replaced import replaced
from tacit.penalty.pieces import rows_of

Share = Callable[[Mapping[str, Any], float], float]  # of a batch in a step, from its inputs and the step's tokens
Rule = tuple[Share, bool]  # and whether the loss is multiplied with the number of devices
_log = logging.getLogger("tacit")


class TokenWeights:
    """The weight w of each batch of one trainer."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        shares: list[Share] = [self._counted_by_trainer, _labels_but_the_first, _all]
        self.rules: list[Rule] = [(share, across) for across in (True, False) for share in shares]  # still possible

    def of(self, inputs: Mapping[str, Any], all_items: Any, compute_loss: Callable[[Any, Any], Tensor]) -> float:
        """w; `compute_loss(inputs, num_items_in_batch)` is the plain loss, of the model without wrappers."""
        if all_items is None:
            return 1.0
        weights = self._weights(inputs, float(all_items))
        if len(set(weights)) > 1:
            weights = self._choose(inputs, all_items, compute_loss, weights)
        if weights[0] == 0:
            raise InputError("a batch has no token to predict (every label is -100); expected at least one.")
        return weights[0]

    def tell_rules_apart(
        self, inputs: Mapping[str, Any], all_items: Any, compute_loss: Callable[[Any, Any], Tensor]
    ) -> None:
        """By one row: a batch with all tokens of its step has the same weight by every rule, and its rows do not."""
        if all_items is not None and len(self.rules) > 1:
            with suppress(InputError):  # a row without a token to predict tells nothing
                self.of(rows_of((inputs,), torch.zeros(1, dtype=torch.int64))[0], all_items, compute_loss)

    def of_rows(self, inputs: Mapping[str, Any], all_items: Any) -> float:
        """w of some rows of a batch whose w is known; 1 where they predict no token, and their loss is 0."""
        return 1.0 if all_items is None else self._weights(inputs, float(all_items))[0] or 1.0

    @property
    def _devices(self) -> int:
        across = self.trainer.args.average_tokens_across_devices
        return int(self.trainer.accelerator.num_processes) if across else 1

    def _weights(self, inputs: Mapping[str, Any], all_items: float) -> list[float]:
        return [share(inputs, all_items) * (self._devices if across else 1) for share, across in self.rules]

    def _choose(
        self,
        inputs: Mapping[str, Any],
        all_items: Any,
        compute_loss: Callable[[Any, Any], Tensor],
        weights: list[float],
    ) -> list[float]:
        """Keep rules with L = w Ĉ, by two passes in evaluation mode: they change no buffer and no generator."""
        weighted = float(self._plain(compute_loss, inputs, all_items))
        mean = self._mean(compute_loss, inputs, all_items)
        if not math.isfinite(weighted) or not math.isfinite(mean):  # float16: the scaler skips this step
            return weights
        # Sums in another order: rounding of float32, or of a loss that is in half precision itself.
        rounding = 1e-4 if mean.dtype in (torch.float32, torch.float64) else 0.02
        kept = [
            place
            for place, weight in enumerate(weights)
            if math.isclose(weighted, weight * float(mean), rel_tol=rounding)
        ]
        if not kept and weights[0] == 1:  # the step has this batch alone: its loss is what Trainer minimises
            kept = [0]
        if not kept and weights[0] > 0:
            raise InputError(
                f"the loss of a batch is {weighted:.6g} with num_items_in_batch and {float(mean):.6g} without; "
                f"expected the share of its tokens, {weights[0]:.6g}, as their ratio (a term without tokens breaks it)."
                " Set trainer.model_accepts_loss_kwargs = False: Trainer then takes the mean over accumulated batches."
            )
        if not kept:
            return [0.0]
        self.rules = [self.rules[place] for place in kept]
        if {share for share, _ in self.rules} == {_all}:
            _log.warning(
                "%s ignores num_items_in_batch, so Trainer adds up the mean losses of accumulated batches and does not "
                "divide; trainer.model_accepts_loss_kwargs = False makes it divide",
                type(self.trainer.model).__name__,
            )
        return [weights[place] for place in kept]

    def _mean(self, compute_loss: Callable[[Any, Any], Tensor], inputs: Mapping[str, Any], all_items: Any) -> Tensor:
        """Ĉ: the loss without a count, or over the tokens of this batch alone, where the loss only divides by one."""
        try:
            return self._plain(compute_loss, inputs, None)
        except TypeError:
            own = torch.as_tensor(all_items) * self._counted_by_trainer(inputs, float(all_items))
            with replaced(self.trainer.args, "average_tokens_across_devices", False):
                return self._plain(compute_loss, inputs, own.round().to(torch.int64))

    def _plain(self, compute_loss: Callable[[Any, Any], Tensor], inputs: Mapping[str, Any], items: Any) -> Tensor:
        device = self.trainer.accelerator.device
        forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with torch.no_grad(), _evaluating(self.trainer.model), forked:
            return compute_loss(inputs, items)

    def _counted_by_trainer(self, inputs: Mapping[str, Any], all_items: float) -> float:
        """Counted by `Trainer` itself, on this device alone."""
        with replaced(self.trainer.args, "average_tokens_across_devices", False):
            return float(self.trainer._get_num_items_in_batch([inputs], self.trainer.args.device)) / all_items


def _labels_but_the_first(inputs: Mapping[str, Any], all_items: float) -> float:
    return float(inputs["labels"][..., 1:].ne(-100).sum()) / all_items


def _all(inputs: Mapping[str, Any], all_items: float) -> float:
    return 1.0


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
