"""`Advice`: how to move to another batch size or rate: a sentence, numbers, and objects ready to train with."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tacit._errors import InputError
from tacit.advice.optimizers import Momentum
from tacit.advice.price import Alternative, Price, measure_price
from tacit.diagnostics.estimates import Estimate
from tacit.penalty import GradientPenalty

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

LARGEST_RATIO = 1.0  # of the penalty's part of a step to the plain part: where the first order ends, λh/2 = 1


@dataclass(frozen=True)
class Line:
    """One number of an advice: its symbol, the estimate, what it means, and the equation it comes from."""

    name: str
    symbol: str
    found: Estimate
    words: str
    equation: str

    def __str__(self) -> str:
        return f"  {self.symbol:<10} {self.found!s:<34} {self.words}\n  {'':<10} {self.equation}"


@dataclass(frozen=True)
class Advice:
    """How to move from (ε, B) to (ε', B') without losing implicit regularization: a sentence, then the numbers.

    Numbers are floats, None where curvature or noise were not measured. `intervals` has (low, high) of each by its
    name, at the confidence of the measurement. A strength is never below 0: there no penalty is needed. Where a sample
    is too small for a number, it is NaN and `decided` is False.

    - `matched_learning_rate`: the ε' of equal implicit regularization at B' with no explicit term, to first order;
    - `strength`: the λ that makes up the difference at `new_learning_rate`, on micro-batches of `micro_batch_size`;
      where curvature was measured with `finite_rate_factor`, and held to a share of `largest_stable_strength`;
    - `first_order_strength`: the same λ without either, as the paper's theorem has it; `noise_dominated_strength` its
      short form where noise rules.
    """

    sentence: str
    learning_rate: float
    batch_size: int
    new_learning_rate: float
    new_batch_size: int
    micro_batch_size: int
    matched_learning_rate: float
    strength: float
    first_order_strength: float
    noise_dominated_strength: float
    linear_scaling_stops: float | None
    stability: float | None
    intervals: dict[str, tuple[float, float]]
    decided: bool
    lines: tuple[Line, ...] = field(repr=False, default=())
    notes: tuple[str, ...] = ()
    momentum: Momentum = field(default_factory=Momentum)
    weight_decay: float | None = 0.0
    every: int = 1
    finite_rate_factor: float | None = None
    largest_stable_strength: float | None = None
    alternatives: tuple[Alternative, ...] = field(repr=False, default=())

    def penalty(self, model: nn.Module, **options: Any) -> GradientPenalty:
        """`tacit.GradientPenalty` with the advised strength and micro-batches; `options` are its other arguments.

        It has `largest_ratio=1`: the penalty's part of a step is at most about as large as the loss's own. λ* is known
        where it was measured; a network is sharper when it is new, and sharpens later up to the edge of whatever step
        it is trained with, where a fixed λ lost runs. `largest_ratio=None` applies λ as it is.

        Other micro-batches or another `every` are refused: λ and its edge depend on both, so `match` has to know them.
        """
        self._require_decision()
        advised = {"micro_batch_size": self.micro_batch_size, "every": self.every}
        for name, value in advised.items():
            if options.get(name, value) != value:
                raise InputError(
                    f"{name}={options[name]!r}, but this λ was advised for {name}={value}; "
                    f"use tacit.match(…, {name}={options[name]!r}).penalty(model)."
                )
        options = {**advised, "largest_ratio": LARGEST_RATIO, **options}
        if options["every"] == 1:
            del options["every"]  # `probability` may be among the options
        return GradientPenalty(model, self.strength, **options)

    def optimizer(self, parameters: Iterable[Tensor] | Iterable[dict[str, Any]], **options: Any) -> torch.optim.SGD:
        """torch.optim.SGD with the advised rate, and momentum and weight decay of the optimizer that was given.

        `options` are its other arguments. Weight decay that differed between groups cannot be carried over: give it.
        """
        import torch

        if self.weight_decay is None and "weight_decay" not in options:
            raise InputError("the parameter groups differed in weight decay; expected weight_decay=… here.")
        same = {"momentum": self.momentum.beta, "nesterov": self.momentum.nesterov, "weight_decay": self.weight_decay}
        options = {**same, **options}
        return torch.optim.SGD(parameters, lr=self.new_learning_rate, **options)

    def price(
        self,
        model: nn.Module,
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        *batch: Tensor,
        seconds: float = 1.0,
        sampled: int | None = None,
    ) -> Price:
        """What the advised step costs on this model, timed here, and which setting of equal regularization costs less.

        `batch` is inputs and targets of one large minibatch; `seconds` is about what the timing takes. With `sampled=q`
        the same strengths on q drawn micro-batches are timed too, apart from the others: their edge is not predicted.
        """
        self._require_decision()
        advised = (self.every, self.micro_batch_size)
        return measure_price(self.alternatives, advised, model, loss_fn, *batch, seconds=seconds, sampled=sampled)

    def _require_decision(self) -> None:
        if not self.decided:
            raise InputError(f"the advice has no strength yet: {self.notes[0]}")

    def to_json(self) -> str:
        kept = {key: value for key, value in asdict(self).items() if key != "lines"}
        kept["equations"] = {line.name: line.equation for line in self.lines}
        kept["alternatives"] = [asdict(each) for each in self.alternatives]
        return json.dumps(_finite(kept), ensure_ascii=False, indent=1)

    def __str__(self) -> str:
        return "\n".join([self.sentence, *map(str, self.lines), *[f"  note: {note}" for note in self.notes]])


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
