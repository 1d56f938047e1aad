"""A `Measurement`: the numbers of one point of training, readable, as JSON, or as one row."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

from tacit._util.errors import InputError
from tacit.diagnostics.estimates import Estimate, SampleMoments, estimate, regularizer_statistic
from tacit.diagnostics.self_test import SelfTest
from tacit.diagnostics.spectrum import Spectrum


@dataclass(frozen=True)
class Measurement:
    """What SGD regularizes here: every number an `Estimate` with its interval, None where it has no meaning.

    - `full_loss`: C; `full_gradient_squared_norm`: ‖∇C‖²; `gradient_covariance_trace`: Γ, population form;
    - `implicit_regularizer[B]`: C_reg(B) = (‖∇C‖² + (N−B)/(N−1) Γ/B)/4, the mean over random minibatches (Eq. 22);
    - `noise_scale`: Γ/‖∇C‖², the batch size at which both terms of C_reg are equal (for B ≪ N);
    - `signal_to_noise[B]`: ‖∇C‖² over (N−B)/(N−1) Γ/B;
    - `tail_index` of the norms ‖∇Cⱼ‖; `largest_eigenvalue` of ∇²C, and `stability`: ε λ_max;
    - `spectrum`: curvatures that minibatch noise meets, and how much sharper minibatches are than all examples.
    """

    train_size: int
    sample: int
    confidence: float
    full_loss: Estimate
    full_gradient_squared_norm: Estimate | None
    gradient_covariance_trace: Estimate | None
    implicit_regularizer: dict[int, Estimate]
    noise_scale: Estimate | None
    signal_to_noise: dict[int, Estimate]
    tail_index: Estimate | None
    largest_eigenvalue: Estimate | None
    learning_rate: float | None
    self_test: SelfTest | None
    methods: dict[str, str]
    notes: tuple[str, ...]
    moments: SampleMoments | None = dataclasses.field(repr=False, compare=False)
    spectrum: Spectrum | None = dataclasses.field(repr=False, compare=False, default=None)

    @property
    def per_example(self) -> bool:
        """Whether each example has a gradient of its own: False under batch norm in training mode."""
        return self.moments is not None and (self.self_test is None or self.self_test.passed)

    @property
    def exact(self) -> bool:
        return self.sample == self.train_size

    @property
    def stability(self) -> Estimate | None:
        """ε λ_max: gradient descent on a quadratic is stable below 2, and follows a modified flow below 1."""
        if self.learning_rate is None or self.largest_eigenvalue is None:
            return None
        return self.largest_eigenvalue.scaled(self.learning_rate)

    def regularizer(self, batch_size: int) -> Estimate:
        """C_reg(B) at any batch size, also one that was not asked for at first."""
        if batch_size in self.implicit_regularizer:
            return self.implicit_regularizer[batch_size]
        if not 1 <= batch_size <= self.train_size:
            known = self.train_size
            raise InputError(f"batch_size={batch_size} with {known} examples; expected 1 to {known}.")
        if self.moments is None or not self.per_example:
            raise InputError(
                f"C_reg({batch_size}) is not known: the model mixes the examples of a minibatch, so only the measured "
                f"batch sizes {sorted(self.implicit_regularizer)} have one. Measure with batch_size={batch_size}."
            )
        statistic = regularizer_statistic(batch_size, self.train_size)
        return estimate(self.moments, statistic, confidence=self.confidence, logarithmic=True)

    def to_row(self) -> dict[str, Any]:
        """One flat row of numbers: for JSON Lines, a table, or a plot. Infinite values are None."""
        named: dict[str, Estimate | None] = {
            "full_loss": self.full_loss,
            "full_gradient_squared_norm": self.full_gradient_squared_norm,
            "gradient_covariance_trace": self.gradient_covariance_trace,
            "noise_scale": self.noise_scale,
            "tail_index": self.tail_index,
            "largest_eigenvalue": self.largest_eigenvalue,
            "stability": self.stability,
        }
        named |= {f"implicit_regularizer/{size}": found for size, found in self.implicit_regularizer.items()}
        named |= {f"signal_to_noise/{size}": found for size, found in self.signal_to_noise.items()}
        row: dict[str, Any] = {"train_size": self.train_size, "sample": self.sample, "confidence": self.confidence}
        for name, found in named.items():
            if found is not None:
                row[name] = _finite(found.value)
                row[f"{name}/low"], row[f"{name}/high"] = _finite(found.low), _finite(found.high)
        row["per_example"] = self.per_example
        return row

    def to_json(self) -> str:
        more = {"learning_rate": self.learning_rate, "methods": self.methods, "notes": list(self.notes)}
        more["self_test"] = None if self.self_test is None else _plain(dataclasses.asdict(self.self_test))
        return json.dumps({**self.to_row(), **more}, ensure_ascii=False, indent=1)

    def __str__(self) -> str:
        seen = f"all {self.train_size}" if self.exact else f"{self.sample} of {self.train_size}"
        interval = "exact" if self.exact else f"{self.confidence:.0%} intervals"
        lines = [_sentence(self), f"  from {seen} examples, {interval}"]
        lines += _line("C", "mean loss", self.full_loss)
        lines += _line("‖∇C‖²", "full gradient", self.full_gradient_squared_norm)
        lines += _line("Γ", "trace of the gradient covariance", self.gradient_covariance_trace)
        lines += _line("Γ/‖∇C‖²", "noise scale", self.noise_scale)
        for size, found in self.implicit_regularizer.items():
            lines += _line(f"C_reg({size})", "implicit regularizer, Eq. 22", found)
        for size, found in self.signal_to_noise.items():
            lines += _line(f"B={size}", "signal to noise, ‖∇C‖² / ((N−B)/(N−1) Γ/B)", found)
        lines += _line("α", "tail index of ‖∇Cⱼ‖", self.tail_index)
        lines += _line("λ_max", "largest Hessian eigenvalue", self.largest_eigenvalue)
        if self.stability is not None:
            lines += _line("ε·λ_max", f"at ε = {self.learning_rate:g}; unstable from 2 on a quadratic", self.stability)
        if self.self_test is not None:
            lines.append(f"  {self.self_test}")
        return "\n".join([*lines, *[f"  note: {note}" for note in self.notes]])


def _sentence(seen: Measurement) -> str:
    if not seen.per_example:
        return "The examples of a minibatch influence each other: Γ has no meaning, C_reg is from real minibatches."
    assert seen.noise_scale is not None
    if math.isinf(seen.noise_scale.high):
        return (
            "The full gradient cannot be told from zero with this sample: for batches up to "
            f"{seen.noise_scale.low:.3g} the noise term rules C_reg; beyond, it can't tell."
        )
    if seen.noise_scale.value >= seen.train_size:
        return (
            f"The noise scale {seen.noise_scale.value:.3g} is above N = {seen.train_size}: at all batch sizes below N "
            "SGD mostly regularizes the variance between examples (ε/B matters)."
        )
    return (
        f"At batch sizes well below {seen.noise_scale.value:.3g} SGD mostly regularizes the variance between examples "
        "(ε/B matters); well above, the full gradient (only ε matters)."
    )


def _line(symbol: str, words: str, found: Estimate | None) -> list[str]:
    return [] if found is None else [f"  {symbol:<12} {found!s:<36} {words}"]


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return _finite(value) if isinstance(value, float) else value
