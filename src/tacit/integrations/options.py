"""Options of a penalty that a trainer's adapter passes on, and the calls that one optimizer step of it makes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from tacit._errors import InputError
from tacit.penalty import GradientPenalty
from tacit.penalty.strength import Value


def check_penalty_options(strength: Value, options: Mapping[str, Any], *, accumulation: str) -> None:
    """Refuse what `GradientPenalty` would refuse, on a stand-in model; `accumulation` replaces micro-batches."""
    if options.get("micro_batch_size") is not None and options.get("sampled") is None:
        raise InputError(
            f"micro_batch_size={options['micro_batch_size']} without sampled; expected sampled=q beside it, for the "
            f"penalty of q drawn micro-batches. For that of all use smaller batches with {accumulation}."
        )
    known = set(inspect.signature(GradientPenalty).parameters) - {"model", "strength"}
    for name in options:
        if name not in known:
            raise InputError(f"option {name!r} is unknown; expected one of {', '.join(sorted(known))}.")
    GradientPenalty(nn.Linear(1, 1), strength, **{name: options[name] for name in options if name != "exclude"})


class CallsOfStep:
    """Which of the calls of one optimizer step is the next one, as `GradientPenalty` takes it for `part`."""

    def __init__(self) -> None:
        self.step, self.count = -1, 0

    def next(self, penalty: GradientPenalty, step: int, calls: int) -> tuple[int, int] | None:
        """None where the penalty does not ask: it draws whole calls if it samples and has no micro-batches."""
        if penalty.sampled is None or penalty.micro_batch_size is not None:
            return None
        self.count = self.count + 1 if step == self.step else 0
        self.step = step
        return self.count % calls, calls
