"""What trainers' adapters ask of a `GradientPenalty` or a `SharpnessAware`: its options, and what a call of it gets."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from tacit._util.errors import InputError
from tacit.penalty import GradientPenalty, SharpnessAware

GradientRule = GradientPenalty | SharpnessAware  # what gives the gradient of a step


def check_options(kind: type[GradientRule], value: Any, options: Mapping[str, Any], *, accumulation: str) -> None:
    """Refuse what `kind` would refuse, on a stand-in model; `accumulation` replaces micro-batches.

    `value` is the strength or the radius, the first argument after the model.
    """
    known = set(list(inspect.signature(kind).parameters)[2:])
    for name in options:
        if name not in known:
            raise InputError(f"option {name!r} is unknown; expected one of {', '.join(sorted(known))}.")
    if options.get("micro_batch_size") is not None and options.get("sampled") is None:
        raise InputError(
            f"micro_batch_size={options['micro_batch_size']} without sampled; expected sampled=q beside it, for the "
            f"penalty of q drawn micro-batches. For that of all use smaller batches with {accumulation}."
        )
    kind(nn.Linear(1, 1), value, **{name: options[name] for name in options if name != "exclude"})


def needs_batch(rule: GradientRule) -> bool:
    """Whether its closures take the batch as an argument, since it passes on drawn rows of it."""
    return (rule.sampled if isinstance(rule, SharpnessAware) else rule.micro_batch_size) is not None


def finds_direction(rule: GradientRule) -> bool:
    """Whether the pass that runs now counts for nothing but the direction of `SharpnessAware`."""
    return isinstance(rule, SharpnessAware) and rule.finds_direction


def logs_share(rule: GradientRule, share: float) -> bool:
    """Whether the log says which share of the batches was penalised."""
    if isinstance(rule, SharpnessAware):
        return False
    return rule.every > 1 or rule.probability is not None or share < 1


class CallsOfStep:
    """Which of the calls of one optimizer step is the next one, as `GradientPenalty` takes it for `part`."""

    def __init__(self) -> None:
        self.step, self.count = -1, 0

    def next(self, rule: GradientRule, step: int, calls: int) -> dict[str, Any]:
        """Nothing where the rule does not ask: it draws whole calls if it samples and has no micro-batches."""
        if isinstance(rule, SharpnessAware) or rule.sampled is None or rule.micro_batch_size is not None:
            return {}
        self.count = self.count + 1 if step == self.step else 0
        self.step = step
        return {"part": (self.count % calls, calls)}
