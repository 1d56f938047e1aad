"""What Transformers' `Trainer` multiplies the mean loss of a batch with, when it counts tokens over several batches.

    L = (token sum of this batch) / (tokens counted in all batches of the step) = w Ĉ

with Ĉ the mean over the tokens that this batch predicts. A causal language model predicts all labels but the first;
`Trainer` counts so for most of them, and counts every label for others (GPT-2). Which of the two counts belongs to Ĉ is
found by computing the loss both ways, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tacit._errors import InputError

Counter = Callable[[Mapping[str, Any]], int]


class TokenWeights:
    """The weight w of each batch of one trainer."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.counters: list[Counter] = [self._trainers_count, _labels_but_the_first]  # those still possible
        self.checked = False

    def of(self, inputs: Mapping[str, Any], all_items: Any, compute_loss: Callable[..., Any]) -> float:
        """w; `compute_loss` is the trainer's, of the model without wrappers: no other rank needs to take part."""
        if all_items is None:
            return 1.0
        counts = [counter(inputs) for counter in self.counters]
        if not self.checked or len(set(counts)) > 1:
            self._choose(inputs, all_items, compute_loss, counts)
            counts = [self.counters[0](inputs)]
        return self._weight(counts[0], all_items)

    def _weight(self, own_items: int, all_items: Any) -> float:
        if own_items == 0:
            raise InputError("a batch has no token to predict (every label is -100); expected at least one.")
        across = self.trainer.args.average_tokens_across_devices
        return own_items / float(all_items) * (self.trainer.accelerator.num_processes if across else 1)

    def _choose(
        self, inputs: Mapping[str, Any], all_items: Any, compute_loss: Callable[..., Any], counts: list[int]
    ) -> None:
        """Keep counters of L = w Ĉ, by two passes in evaluation mode: they use no random number, change no buffer."""
        with torch.no_grad(), _evaluating(self.trainer.model):
            weighted = float(compute_loss(dict(inputs), num_items_in_batch=all_items))
            mean = compute_loss(dict(inputs))
        # Sums in another order: rounding of float32, or of a loss that is in half precision itself.
        rounding = 1e-4 if mean.dtype in (torch.float32, torch.float64) else 0.02
        weights = [self._weight(count, all_items) for count in counts]
        fits = [math.isclose(weighted, weight * float(mean), rel_tol=rounding) for weight in weights]
        self.counters = [counter for counter, fit in zip(self.counters, fits, strict=True) if fit]
        if not self.counters:
            raise InputError(
                f"the loss of a batch is {weighted:.6g} with num_items_in_batch and {float(mean):.6g} without; their "
                f"ratio should be {weights[0]:.6g}, this batch's share of the tokens. Divide the token sum by "
                "num_items_in_batch in the loss function, or set trainer.model_accepts_loss_kwargs = False."
            )
        self.checked = True

    def _trainers_count(self, inputs: Mapping[str, Any]) -> int:
        """Counted by `Trainer` itself, on this device alone."""
        arguments = self.trainer.args
        across, arguments.average_tokens_across_devices = arguments.average_tokens_across_devices, False
        try:
            return int(self.trainer._get_num_items_in_batch([inputs], arguments.device))
        finally:
            arguments.average_tokens_across_devices = across


def _labels_but_the_first(inputs: Mapping[str, Any]) -> int:
    return int(inputs["labels"][..., 1:].ne(-100).sum())


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
