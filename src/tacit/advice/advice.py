"""`Advice`: how to move to another batch size or rate: a sentence, numbers, and objects ready to train with."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tacit._util.errors import InputError
from tacit._util.plural import ordinal
from tacit.advice.finite_rate import CALIBRATION
from tacit.advice.optimizers import Momentum
from tacit.advice.price import Alternative, Price, measure_price
from tacit.diagnostics.estimates import Estimate
from tacit.edges import stability_limit
from tacit.penalty import GradientPenalty

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

LARGEST_RATIO = 1.0  # of the penalty's part of a step to the plain part: where the first order ends, λh/2 = 1
LINEAR_UP_TO = 0.1  # linear scaling is called right while C_reg's two terms are a tenth apart or more


@dataclass(frozen=True, kw_only=True)
class Advice:
    """How to move from (ε, B) to (ε', B') without losing implicit regularization: a sentence, then the numbers.

    Numbers are floats, None where curvature or noise were not measured. `intervals` has (low, high) of each by its
    name, at the confidence of the measurement. A strength is never below 0: there no penalty is needed. Where a sample
    is too small for a number, it is NaN and `decided` is False.

    - `matched_learning_rate`: the ε' of equal implicit regularization at B' with no explicit term, to first order;
    - `strength`: the λ that makes up the difference at `new_learning_rate`, on micro-batches of `micro_batch_size`, of
      which a step penalises `sampled` drawn ones (None: all). Where curvature was measured with `finite_rate_factor` F
      (`new_finite_rate_factor` at ε'), and `held` to a share of `largest_stable_strength`, λ* of just this penalty;
    - `first_order_strength`: the same λ without either, as the paper's theorem has it; `noise_dominated_strength` its
      short form where noise rules.
    """

    learning_rate: float
    batch_size: int
    new_learning_rate: float
    new_batch_size: int
    micro_batch_size: int
    sampled: int | None
    every: int
    matched_learning_rate: float
    strength: float
    first_order_strength: float
    noise_dominated_strength: float
    linear_scaling_stops: float | None
    stability: float | None
    largest_stable_strength: float | None
    largest_stable_learning_rate: float | None
    finite_rate_factor: float | None
    new_finite_rate_factor: float | None
    intervals: dict[str, tuple[float, float]]
    decided: bool
    held: bool
    momentum: Momentum
    weight_decay: float | None
    alternatives: tuple[Alternative, ...] = field(repr=False)
    notes: tuple[str, ...]

    def penalty(self, model: nn.Module, **options: Any) -> GradientPenalty:
        """`tacit.GradientPenalty` with the advised strength and micro-batches; `options` are its other arguments.

        It has `largest_ratio=1`: the penalty's part of a step is at most about as large as the loss's own. λ* is known
        where it was measured; a network is sharper when it is new, and sharpens later up to the edge of whatever step
        it is trained with, where a fixed λ lost runs. `largest_ratio=None` applies λ as it is.

        Other micro-batches, `sampled` or `every` are refused: λ and its edge depend on them, so `match` has to know.
        """
        self._require_decision()
        advised = {"micro_batch_size": self.micro_batch_size, "sampled": self.sampled, "every": self.every}
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
        self, model: nn.Module, loss_fn: Callable[[Tensor, Tensor], Tensor], *batch: Tensor, seconds: float = 1.0
    ) -> Price:
        """What the advised step costs on this model, timed here, and which setting of equal regularization costs less.

        `batch` is inputs and targets of one large minibatch; `seconds` is about what the timing takes.
        """
        self._require_decision()
        advised = (self.every, self.micro_batch_size, self.sampled)
        return measure_price(self.alternatives, advised, model, loss_fn, *batch, seconds=seconds)

    def _require_decision(self) -> None:
        if not self.decided:
            raise InputError(f"the advice has no strength yet: {self.notes[0]}")

    # -- text ---------------------------------------------------------------------------------------------------------
    @property
    def sentence(self) -> str:
        """What to do, in one sentence, and of what kind each number is."""
        move = f"From ε = {self.learning_rate:g}, B = {self.batch_size} to B' = {self.new_batch_size}"
        if not self.decided:
            return f"{move}: can't tell from this sample."
        rate, matched = self.new_learning_rate, self.matched_learning_rate
        linear = self.learning_rate * self.new_batch_size / self.batch_size
        near = abs(matched / linear - 1) <= LINEAR_UP_TO
        scaling = "linear scaling holds" if near else f"linear scaling would say {linear:.4g}"
        penalty = f"at ε' = {rate:.4g} no penalty is needed"
        if self.strength > 0:
            verb = "keep" if rate == self.learning_rate else "set"
            kind = " (held at the edge)" if self.held else "" if self.finite_rate_factor is None else " (calibrated)"
            penalty = f"{verb} ε' = {rate:.4g} and add a penalty of λ = {self.strength:.4g}{kind} on {self._where}"
        elif self.held:
            penalty = f"at ε' = {rate:.4g} no penalty is stable, nor is the step without one"
        # In the recorded experiment rates beyond the edge trained on one task and failed on the other.
        largest = self.largest_stable_learning_rate
        if largest is not None and matched >= largest:
            edge = "2/λ_max" if self.momentum.beta == 0 else "the edge"
            return (
                f"{move}: {penalty}; the rate that needs none to first order, ε' = {matched:.4g} ({scaling}), is "
                f"beyond {edge} = {largest:.3g} and may diverge."
            )
        return f"{move}: use ε' = {matched:.4g}, the first-order match ({scaling}), or {penalty}."

    @property
    def _where(self) -> str:
        batches = self.new_batch_size // self.micro_batch_size
        drawn = "" if self.sampled is None else f"{self.sampled} drawn of {batches} "
        steps = "" if self.every == 1 else f" on every {ordinal(self.every)} step"
        return f"{drawn}micro-batches of {self.micro_batch_size}{steps}"

    def __str__(self) -> str:
        plain = self.momentum.beta == 0
        own = "" if plain else f"; {self.momentum}"
        noise = "b(ε/B − ε'/B')" if plain else "b(ρε_e/B − ρ'ε_e'/B')"
        limit = stability_limit(momentum=self.momentum.beta, nesterov=self.momentum.nesterov)
        strength = (
            f"makes up {'a part of ' * self.held}the difference at ε' = {self.new_learning_rate:g}, {self._where}"
        )
        if self.strength == 0:
            strength = f"no penalty is {'stable' if self.held else 'needed'} at ε' = {self.new_learning_rate:g}"
        first = f"to first order (Eq. 22); if noise rules {noise} = {self.noise_dominated_strength:.4g}"
        rows = [("ε'", "matched_learning_rate", f"equal regularization to first order, no penalty (Eq. 22){own}")]
        if self.finite_rate_factor is None or self.new_finite_rate_factor is None:
            rows.append(("λ", "strength", f"{strength}; {first}"))
        else:
            now, then = f"F = {self.finite_rate_factor:.3g}", f"{self.new_finite_rate_factor:.3g} at ε'"
            same = self.learning_rate == self.new_learning_rate
            how = (
                f"{CALIBRATION:g} F λ₁, {now}"
                if same
                else f"λ₁ with noise times {CALIBRATION:g} F, {now} at ε and {then}"
            )
            strength = f"{strength}; λ = {how}{', then held' * self.held}"
            rows += [("λ", "strength", strength), ("λ₁", "first_order_strength", first)]
        if self.largest_stable_strength is not None:
            edge = "λ must stay below" if self.largest_stable_strength > 0 else "the step is unstable without a penalty"
            name = "λ*" if self.sampled is None else f"λ*({self.sampled})"
            rows.append((name, "largest_stable_strength", edge))
        scale = "Γ/‖∇C‖²" if plain else "ρΓ/a‖∇C‖²"
        # The series that ends at ελ = 1 is that of plain SGD; with momentum nothing as short is true.
        stable = f"{'below 1: inside the theory; ' * plain}above {limit:.3g}: unstable"
        rows += [
            (scale, "linear_scaling_stops", "batch size where linear scaling stops"),
            ("ε'·λ_max", "stability", stable),
        ]
        lines = [f"  {symbol:<10} {self._shown(name):<34} {words}" for symbol, name, words in rows if self._shown(name)]
        return "\n".join([self.sentence, *lines, *[f"  note: {note}" for note in self.notes]])

    def _shown(self, name: str) -> str:
        value = getattr(self, name)
        return "" if value is None else str(Estimate(value, *self.intervals.get(name, (value, value))))

    def to_json(self) -> str:
        return json.dumps(_finite({"sentence": self.sentence, **asdict(self)}), ensure_ascii=False, indent=1)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
