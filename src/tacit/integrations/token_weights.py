"""What Transformers' `Trainer` multiplies the mean loss of a batch with, when it counts tokens over several batches.

    L = w Ĉ,   w = W (tokens that this batch predicts) / (tokens counted in all batches of the step)

on W devices, with Ĉ the mean over the tokens that this batch predicts. A causal language model predicts all labels but
the first; `Trainer` counts so for most of them, and counts every label for others (GPT-2). And many models ignore the
count (BERT, T5): their L is Ĉ, so that `Trainer` adds up the means of accumulated batches without dividing. Which of
these holds is found by computing the loss both ways, once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tacit._errors import InputError

Share = Callable[[Mapping[str, Any], float], float]  # of a batch in a step, from its inputs and the step's tokens
_log = logging.getLogger("tacit")


class TokenWeights:
    """The weight w of each batch of one trainer."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.rules: list[Share] = [self._counted_by_trainer, _labels_but_the_first, _all]  # those still possible
        self.checked = False

    def of(self, inputs: Mapping[str, Any], all_items: Any, compute_loss: Callable[..., Any]) -> float:
        """w; `compute_loss` is the trainer's, of the model without wrappers: no other rank needs to take part."""
        if all_items is None:
            return 1.0
        shares = [rule(inputs, float(all_items)) for rule in self.rules]
        if not self.checked or len(set(shares)) > 1:
            shares = self._choose(inputs, all_items, compute_loss, shares)
        if shares[0] == 0:
            raise InputError("a batch has no token to predict (every label is -100); expected at least one.")
        return shares[0] * self._devices

    @property
    def _devices(self) -> int:
        across = self.trainer.args.average_tokens_across_devices
        return int(self.trainer.accelerator.num_processes) if across else 1

    def _choose(
        self, inputs: Mapping[str, Any], all_items: Any, compute_loss: Callable[..., Any], shares: list[float]
    ) -> list[float]:
        """Keep rules with L = w Ĉ, by two passes in evaluation mode: they use no random number, change no buffer."""
        with torch.no_grad(), _evaluating(self.trainer.model):
            weighted = float(compute_loss(dict(inputs), num_items_in_batch=all_items))
            mean = compute_loss(dict(inputs))
        # Sums in another order: rounding of float32, or of a loss that is in half precision itself.
        rounding = 1e-4 if mean.dtype in (torch.float32, torch.float64) else 0.02
        wanted = [share * self._devices * float(mean) for share in shares]
        kept = [place for place, value in enumerate(wanted) if math.isclose(weighted, value, rel_tol=rounding)]
        if not kept and shares[0] > 0:
            raise InputError(
                f"the loss of a batch is {weighted:.6g} with num_items_in_batch and {float(mean):.6g} without; "
                f"expected the share of its tokens, {shares[0]:.6g}, as their ratio (an auxiliary loss breaks it). Set "
                "trainer.model_accepts_loss_kwargs = False, or divide the token sum by num_items_in_batch in the loss."
            )
        if not kept:
            return [0.0]
        self.checked, self.rules = True, [self.rules[place] for place in kept]
        if self.rules == [_all]:
            _log.warning(
                "%s ignores num_items_in_batch, so Trainer adds up the mean losses of accumulated batches and does not "
                "divide; trainer.model_accepts_loss_kwargs = False makes it divide",
                type(self.trainer.model).__name__,
            )
        return [shares[place] for place in kept]

    def _counted_by_trainer(self, inputs: Mapping[str, Any], all_items: float) -> float:
        """Counted by `Trainer` itself, on this device alone."""
        arguments = self.trainer.args
        across, arguments.average_tokens_across_devices = arguments.average_tokens_across_devices, False
        try:
            return float(self.trainer._get_num_items_in_batch([inputs], arguments.device)) / all_items
        finally:
            arguments.average_tokens_across_devices = across


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
